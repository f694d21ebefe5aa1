from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from moeir import cli, settings
from moeir.errors import DataError, UsageError
from moeir.parsing import parse_value
from moeir.settings import argument, input_field, option, output_field


@dataclass(frozen=True, kw_only=True)
class Brew:
    """Water and leaves become tea."""

    leaves: tuple[Path, ...] = input_field("texts", "What to brew.", aliases=("--leaf",))
    pot: Path | None = input_field("index", "Where.", None)
    minutes: int = option("How long.", 3, aliases=("--time",))
    heat: float | None = option("How hot.", None)
    sweet: bool = option("With sugar.", False)
    word: str = option("Name of it.", "tea", affects_result=False)
    room: str | None = argument("Where to drink it.", None)
    output: Path = output_field("run", "The cup.", Path("-"))


def write(folder: Path, text: str) -> Path:
    (folder / "brew.yaml").write_text(text)
    return folder / "brew.yaml"


def test_a_flag_wins_over_yaml_and_yaml_over_the_default(tmp_path):
    config = write(tmp_path, "leaves: [a, b]\nminutes: 5\nheat: 80\nsweet: true\n")
    brew = settings.build_stage(Brew, {"minutes": "7", "word": "chai", "sweet": None}, config)
    assert brew == Brew(leaves=(Path("a"), Path("b")), minutes=7, heat=80.0, sweet=True, word="chai")
    assert settings.build_stage(Brew, {"leaves": ["a"], "sweet": False}, config).sweet is False
    with pytest.raises(UsageError, match="brew needs --leaves: What to brew"):
        settings.build_stage(Brew, {})


def test_keys_are_flags_and_their_values_text_as_on_the_command_line(tmp_path):
    config = write(tmp_path, "leaf: [no, 010, 1e3, ~x]\ntime: 010\nsweet: no\n")
    brew = settings.build_stage(Brew, {}, config)
    assert brew == Brew(leaves=(Path("no"), Path("010"), Path("1e3"), Path("~x")), minutes=10)
    config.write_bytes(b"word: th\xe9\n")
    with pytest.raises(DataError, match="not YAML of settings: 'utf-8' codec"):
        settings.build_stage(Brew, {}, config)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("minuts: 5", UsageError, "unknown key 'minuts'; did you mean 'minutes'?"),
        ("zzz: 5", UsageError, "unknown key 'zzz'"),
        ("minutes: five", UsageError, "minutes: expected a whole number, found 'five'"),
        ("minutes: [5, 6]", UsageError, "minutes: expected one value, found 2"),
        ("minutes: {a: 5}", UsageError, "minutes: expected one plain value, found dict"),
        ("minutes:", UsageError, "minutes: expected one plain value, found none"),
        ("leaves: &a [b, *a]", UsageError, "leaves: expected one plain value, found list"),
        ("leaves: [[a]]", UsageError, "leaves: expected one plain value, found list"),
        ("minutes: 5\nminutes: 7", DataError, "not YAML of settings: the key 'minutes' is there twice"),
        ("minutes: 5\ntime: 7", UsageError, "'minutes' and 'time' are the same setting; leave one out"),
        (f"minutes: {400 * '9'}", UsageError, "minutes: expected a whole number of 64 bits, found 999"),
        ("minutes: 1:30", UsageError, "minutes: expected a whole number, found '1:30'"),
        ("minutes: !!timestamp foo", DataError, "not YAML"),
        ('leaves: "a\\0b"', UsageError, "leaves: 'a\\x00b': expected UTF-8 text without zero bytes"),
        ('leaves: "a\\uD800b"', UsageError, "leaves: 'a\\ud800b': expected UTF-8 text without zero bytes"),
        ("sweet: 7", UsageError, "sweet: expected true or false, found '7'"),
        ("a: [", DataError, "not YAML of settings: while parsing a flow node"),
        ("[" * 1000, DataError, "not YAML"),
        ("- a", DataError, "expected a mapping `flag: value`, found list"),
        ("", DataError, "expected a mapping `flag: value`, found NoneType"),
        ("!!python/object/apply:os.getcwd []", DataError, "not YAML of settings: could not determine a constructor"),
    ],
)
def test_yaml_that_says_no_settings_is_refused_with_its_place(tmp_path, text, error, message):
    config = write(tmp_path, text)
    with pytest.raises(error) as caught:
        settings.build_stage(Brew, {"leaves": ["a"]}, config)
    assert str(caught.value).startswith(f"{config}: ") and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_rendered_stage_is_read_back(tmp_path):
    for brew in (
        Brew(leaves=(Path("a"),)),
        Brew(leaves=(Path("a b"), Path("-")), pot=Path("é"), minutes=0, heat=1e-5, sweet=True, word="007: yes", room="null"),
        Brew(leaves=(), word="1.0"),
    ):
        config = write(tmp_path, settings.to_yaml(brew))
        assert settings.build_stage(Brew, {}, config) == brew


def test_only_what_can_change_the_product_is_recorded():
    brew = Brew(leaves=(Path("a"),), word="chai")
    assert settings.to_dict(brew, results_only=True) == {"minutes": 3, "heat": None, "sweet": False, "room": None}
    assert settings.to_dict(brew)["word"] == "chai" and settings.to_dict(brew)["leaves"] == ["a"]


@pytest.mark.parametrize("name", cli.STAGES)
def test_every_stage_shown_is_read_back_by_config(name, tmp_path, moeir):
    required = [setting for setting in settings.list_settings(cli.stage_class(name)) if setting.required]
    flags = [word for one in required for word in ([] if one.role == "argument" else [one.flag]) + [f"some-{one.name}"]]
    result = moeir(name, *flags, "--show")
    assert result.code == 0, result.stderr
    assert list(yaml.safe_load(result.stdout)) == [
        setting.name.replace("_", "-") for setting in settings.list_settings(cli.stage_class(name))
    ]
    again = moeir(name, "--config", write(tmp_path, result.stdout), "--show")
    assert again.stdout == result.stdout, again.stderr


@pytest.mark.parametrize(
    ("details", "value", "message"),
    [
        ({"minimum": 1}, 0, r"--size 0: expected at least 1 \(How large\)"),
        ({"above": 0, "maximum": 1}, 1.5, r"--size 1\.5: expected more than 0, at most 1 \("),
        ({"minimum": 0, "below": 1}, 1.0, "--size 1: expected at least 0, less than 1"),
        ({"minimum": 2, "maximum": 3}, 4, "--size 4: expected 2 to 3"),
        ({"choices": (2, 3, 5)}, 4, "--size 4: expected 2, 3 or 5"),
    ],
)
def test_a_value_outside_the_limits_is_refused_with_the_help_of_its_flag(details, value, message):
    setting = settings.Setting(role="option", help="How large.", name="size", **details)
    setting.check(None)
    with pytest.raises(UsageError, match=message):
        setting.check(value)
    with pytest.raises(UsageError, match=message):
        replace(setting, repeated=True).check((value,))


VALUES = {  # by type: texts, and what they become
    "int": {"7": 7, "-7": -7},
    "float": {"1e-5": 1e-5, "7": 7.0},
    "str": {"007": "007", "none": "none"},
    "bool": {"TRUE": True, "off": False, "0": False},
    "tuple[str, ...]": {"a+b": ("a", "b"), "": ()},
    "int | None": {"None": None, "3": 3},
    "float | None": {"": None},
    "str | None": {"none": None, "": ""},  # --query-prefix "" takes away the prefix that the weights bring
}
REFUSED = {
    "int": ("a whole number", ("7.0", "many", "")),
    "float": ("a number", ("1,5", "nan", "-inf", "1e999")),
    "bool": ("true or false", ("maybe",)),
}


@pytest.mark.parametrize("annotation", VALUES)
def test_text_becomes_the_value_of_its_type_or_is_refused(annotation):
    for text, value in VALUES[annotation].items():
        parsed = parse_value(text, annotation, "--depth")
        assert parsed == value and type(parsed) is type(value)
    expected, texts = REFUSED.get(annotation, ("", ()))
    for text in texts:
        with pytest.raises(UsageError) as caught:
            parse_value(text, annotation, "--depth")
        assert str(caught.value) == f"--depth: expected {expected}, found {text!r}"
