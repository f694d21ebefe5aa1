"""Settings of a stage: default < YAML < flag, and the stage as YAML.

A stage is a frozen dataclass whose fields are defined by `input_field`, `option`, `output_field` and `argument`.
The command line, the YAML file and the manifest are three views of the same fields.
"""

import dataclasses
import functools
import inspect
import operator
import re
import typing
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moeir import data_sources
from moeir.errors import DataError, UsageError
from moeir.parsing import kebab_case, parse_value, suggest

LIMITS = {
    "minimum": ("at least", operator.ge),
    "above": ("more than", operator.gt),
    "maximum": ("at most", operator.le),
    "below": ("less than", operator.lt),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a stage, as used by the command line and YAML.

    `kind` is what a source or product is; `affects_result` is false if the setting cannot change the product; a spec
    names a variant in `package`. A setting that is repeated needs `least_count` values. A data set fills a
    source only with one of the settings (or values of the argument) `only_with` [default: `needs`], and without those in `unless`
    [default: `excludes`]. Whoever sets it has to set all of `needs` (of "one or other" either), and none of `excludes`. `group` is the
    heading in the help, if not that of the role. `name` and the fields below it come from the stage.
    """

    role: str
    help: str
    kind: str = ""
    aliases: tuple[str, ...] = ()
    affects_result: bool = True
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    package: str = ""
    single_word: bool = False
    least_count: int = 1
    words: tuple[str, ...] = ()
    group: str = ""
    only_with: tuple[str, ...] | None = None
    unless: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    name: str = ""
    annotation: str = ""
    repeated: bool = False
    default: Any = None

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def part(self) -> str:
        """The part of a data set that a source is; empty for others."""
        part = self.name.removeprefix("dev_").removeprefix("query_")
        return part if part in data_sources.PARTS and self.role == "source" else ""

    def is_filled(self, chosen: Set[str]) -> bool:
        """Whether a data set fills this source where these settings, and values of the argument, are chosen."""
        is_read = self.only_with is None or not chosen.isdisjoint(self.only_with)
        return is_read and chosen.isdisjoint((self.name, *self.unless))

    @property
    def help_group(self) -> str:
        """The heading of this setting in the help."""
        in_role = {"argument": "Arguments", "source": "Inputs", "product": "Output"}.get(self.role)
        return self.group or in_role or ("Options" if self.affects_result and self.name != "dtype" else "Speed and memory")

    def check(self, value: Any) -> None:
        """UsageError if a value of this setting is none of the choices, or outside the limits, or if there are too few values."""
        if self.repeated and (self.required or value) and len(value) < self.least_count:
            raise UsageError(f"{self.flag}: expected {self.least_count} or more, found {len(value)}; repeat the flag")
        limits = [(words, limit, holds) for name, (words, holds) in LIMITS.items() if (limit := getattr(self, name)) is not None]
        for item in value if self.repeated else () if value is None else (value,):
            if self.choices and item not in self.choices:
                *others, last = map(str, self.choices)
                raise UsageError(f"{self.flag} {item}: expected {', '.join(others)}{' or ' if others else ''}{last}")
            if self.single_word and item.split() != [item]:
                raise UsageError(f"{self.flag} {item!r}: expected a word without spaces")
            if not all(holds(item, limit) for _, limit, holds in limits):
                both = self.minimum is not None and self.maximum is not None
                expected = f"{self.minimum} to {self.maximum}" if both else ", ".join(f"{words} {limit}" for words, limit, _ in limits)
                number = f"{item:g}" if isinstance(item, float) else item
                raise UsageError(f"{self.flag} {number}: expected {expected} ({self.help.removesuffix('.')})")


def option(help: str, default: Any = dataclasses.MISSING, *, package: str = "", **details: Any) -> Any:
    """A setting with a flag; `details` are fields of `Setting`, such as `minimum`, `choices` or `aliases`, other established flags."""
    help = f"{help.removesuffix('.')}; see: moeir variants {package}." if package else help
    return _make_field(default, Setting(role="option", help=help, package=package, **details))


def input_field(kind: str, help: str, default: Any = dataclasses.MISSING, **details: Any) -> Any:
    """An input: a text file, or an artifact of `kind`; `details` are fields of `Setting`."""
    details = {"only_with": details.get("needs"), "unless": details.get("excludes", ())} | details
    return _make_field(default, Setting(role="source", help=help, kind=kind, **details))


def output_field(kind: str, help: str, default: Any = dataclasses.MISSING) -> Any:
    """The output of the stage; there is only one."""
    return _make_field(default, Setting(role="product", help=help, kind=kind))


def argument(help: str, default: Any = dataclasses.MISSING, *, words: tuple[str, ...] = ()) -> Any:
    """A positional setting, without a flag; `words` never stand for further values of a flag before it."""
    return _make_field(default, Setting(role="argument", help=help, words=words))


def _make_field(default: Any, setting: Setting) -> Any:
    return dataclasses.field(default=default, metadata={"setting": setting})


def list_settings(stage: type) -> tuple[Setting, ...]:
    """The settings of a stage class: its own fields in order, then inherited ones, then its output."""
    return _collect_settings(typing.cast(Hashable, stage))


@functools.cache
def _collect_settings(stage: Any) -> tuple[Setting, ...]:
    settings, hints = [], typing.get_type_hints(stage)
    shared = {name for kind in stage.__mro__[1:] for name in getattr(kind, "__dataclass_fields__", ())}
    fields = [field for field in stage.__dataclass_fields__.values() if "setting" in field.metadata]
    for field in sorted(fields, key=lambda field: (field.metadata["setting"].role == "product", field.name in shared)):
        hint = hints[field.name]
        repeated = typing.get_origin(hint) is tuple
        annotation = re.sub(r"[\w.]+\.", "", inspect.formatannotation(typing.get_args(hint)[0] if repeated else hint))  # without modules
        facts = {"name": field.name, "annotation": annotation, "repeated": repeated, "default": field.default}
        settings.append(dataclasses.replace(field.metadata["setting"], **facts))
    return tuple(settings)


def check_combinations(stage: Any) -> None:
    """UsageError for a setting without one that it needs, or beside one that it excludes."""
    settings = {setting.name: setting for setting in list_settings(type(stage))}
    chosen = {name for name, setting in settings.items() if getattr(stage, name) not in (None, (), setting.default)}
    for setting in (settings[name] for name in settings if name in chosen):
        if other := next((name for name in setting.excludes if name in chosen), None):
            raise UsageError(f"{setting.flag} and {settings[other].flag} exclude one another: leave one of them out")
        for names in (need.split(" or ") for need in setting.needs):
            if chosen.isdisjoint(names):
                flags = [settings[name].flag for name in names]
                flags += ["--dataset"] if any(settings[name].part and settings[name].is_filled(chosen) for name in names) else []
                raise UsageError(f"{setting.flag} needs {' or '.join(flags)}")


def list_shorthands(stage: type) -> tuple[Setting, ...]:
    """`--dataset` and `--split`, which stand for other settings of a stage, if it reads a part of a data set."""
    settings = list_settings(stage)
    filled = [setting for setting in settings if setting.part and setting.only_with != ()]
    if not filled:
        return ()
    *others, last = (setting.flag for setting in filled)
    flags = f"{', '.join(others)} and {last}" if others else last
    forms = "a folder in BEIR's layout, irds:NAME or hf:NAME"
    help = f"Data set for {flags} where not set: {forms}. Each of these flags takes one, too (hf:NAME/CONFIG)."
    dataset = Setting(role="source", name="dataset", annotation="str | None", help=help)
    if {setting.part for setting in filled} == {"corpus"} or "split" in {setting.name for setting in settings}:
        return (dataset,)
    default = getattr(stage, "default_split", "test")
    words = "Split of --dataset, with the queries that it judges; a single flag takes FOLDER#SPLIT"
    help = f"{words} [default: {f'{default}, or the only one' if default else 'all'}]."
    return dataset, Setting(role="option", name="split", annotation="str | None", help=help, group="Inputs")


def _expand_data_set(stage: type, values: dict[str, Any], dataset: str | None, split: str | None) -> dict[str, Any]:
    """The values with the files of a data set, and of folders that stand for files."""
    settings = [setting for setting in list_settings(stage) if setting.part]
    if dataset is not None:
        folder, named = data_sources.split_folder(dataset)
        if None not in (named, split) and named != split:
            raise UsageError(f"--dataset {dataset}: names the split {named}, and --split {split}; name one of them")
        dataset, split = folder, named if split is None else split
    chosen = {name for name, value in values.items() if value not in (None, False, ())}
    chosen |= {values[setting.name] for setting in list_settings(stage) if setting.role == "argument" and setting.name in chosen}
    filled = [] if dataset is None else [setting for setting in settings if setting.is_filled(chosen)]
    is_known = all(values.get(setting.name) in (None, *setting.words) for setting in list_settings(stage) if setting.words)
    if dataset is not None and is_known and not filled and not any(setting.name in values for setting in settings):
        raise UsageError(f"--dataset {dataset}: {kebab_case(stage.__name__)} reads no part of it with these settings")
    expanded = dict(values)
    for setting in settings:
        wanted, default = ("dev", "dev") if setting.name.startswith("dev_") else (split, getattr(stage, "default_split", "test"))
        sources: list[str] = []
        if setting in filled:
            sources += data_sources.locate_part(str(dataset), setting.part, wanted, default)
        for value in values.get(setting.name) or () if setting.repeated else (values.get(setting.name),):
            if value is not None:
                sources += data_sources.locate_source(str(value), setting.part, wanted if split else None, default)
        if sources and not setting.repeated and len(sources) > 1:
            raise UsageError(f"{setting.flag}: expected one file, found {', '.join(sources)}; name one with FOLDER#SPLIT")
        if sources:
            expanded[setting.name] = tuple(map(Path, sources)) if setting.repeated else Path(sources[0])
    if split is not None and expanded == values:
        needs = "needs --dataset, or a folder in its place" if dataset is None else "every input is named; leave it out"
        raise UsageError(f"--split {split}: {needs}")
    return expanded if dataset is None else expanded | {"data_set": (dataset, split)}


def build_stage(stage: type, flags: Mapping[str, Any], config: Path | None = None) -> Any:
    """Build a stage from command-line values (text), which override a YAML file, which overrides the defaults.

    `--dataset` and `--split` become the files that they stand for.
    """
    shorthands = list_shorthands(stage)
    settings = (*list_settings(stage), *shorthands)
    from_flags = ((setting, flags[setting.name], setting.flag) for setting in settings if flags.get(setting.name) is not None)
    raw_values = (*_read_config(settings, config), *from_flags)
    values = {setting.name: _parse_setting(setting, value, where) for setting, value, where in raw_values}
    short = {shorthand.name: values.pop(shorthand.name, None) for shorthand in shorthands}
    values = _expand_data_set(stage, values, short.get("dataset"), short.get("split"))
    for setting in settings:
        if setting.required and setting.name not in values:
            name = setting.flag if setting.role != "argument" else setting.name.upper()
            name += " or --dataset" if setting.part and shorthands else ""
            raise UsageError(f"{kebab_case(stage.__name__)} needs {name}: {setting.help}")
    return stage(**values)


def _read_config(settings: tuple[Setting, ...], config: Path | None) -> typing.Iterator[tuple[Setting, Any, str]]:
    if config is None:
        return
    known = {name.lstrip("-").replace("-", "_"): setting for setting in settings for name in (setting.name, *setting.aliases)}
    keys: dict[str, Any] = {}
    for key, value in read_yaml(config).items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise UsageError(f"{config}: unknown key {key!r}{suggest(name, known)}")
        if (other := keys.setdefault(known[name].name, key)) != key:
            raise UsageError(f"{config}: {other!r} and {key!r} are the same setting; leave one out")
        yield known[name], value, f"{config}: {key}"


class _SettingsLoader(yaml.SafeLoader):
    """YAML of settings: text, which their settings parse as they parse flags; no key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_SettingsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith(":null")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}  # without numbers and booleans: 010 would be 8, 1:30 be 90, and the name `no` false


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file with one mapping; numbers and booleans are text."""
    try:
        loaded = _SettingsLoader(path.read_text(encoding="utf-8")).get_single_data()
    except OSError as problem:
        raise DataError(f"{path}: cannot be read: {problem.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError) as problem:  # also of tags
        raise DataError(f"{path}: not YAML of settings: {' '.join(str(problem).split())}") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: expected a mapping `flag: value`, found {type(loaded).__name__}")
    return loaded


def change_yaml(text: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """What `to_yaml` wrote, with its settings changed."""
    return _dump_yaml(change(yaml.safe_load(text)))


def _parse_setting(setting: Setting, value: Any, where: str) -> Any:
    if setting.repeated:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_parse_single(setting, item, where) for item in items)
    if isinstance(value, list | tuple):
        raise UsageError(f"{where}: expected one value, found {len(value)}")
    return _parse_single(setting, value, where)


def _parse_single(setting: Setting, value: Any, where: str) -> Any:
    if value is None and setting.annotation.endswith("None"):
        return None
    if value is None or isinstance(value, Mapping | list | tuple | set):
        raise UsageError(f"{where}: expected one plain value, found {'none' if value is None else type(value).__name__}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not text.isprintable() and ("\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text)):
        raise UsageError(f"{where}: {text!r}: expected UTF-8 text without zero bytes; rename the file, or set a locale of UTF-8")
    if not text and (setting.role in ("source", "product") or setting.name == "split"):
        raise UsageError(f"{where}: expected a {'name' if setting.name == 'split' else 'path'}, found nothing")
    if "Path" in setting.annotation:
        return Path(text)
    return parse_value(text, setting.annotation, where)


def to_dict(stage: Any, *, results_only: bool = False) -> dict[str, Any]:
    """The settings of a stage as plain types, keyed by flag; with `results_only`, those that can change its product."""
    plain = {}
    for setting in list_settings(type(stage)):
        if not results_only or (setting.affects_result and setting.role not in ("source", "product")):
            value = getattr(stage, setting.name)
            items = [str(item) if isinstance(item, Path) else item for item in (value if setting.repeated else (value,))]
            plain[setting.name.replace("_", "-")] = items if setting.repeated else items[0]
    return plain


def to_yaml(stage: Any) -> str:
    """The resolved settings as YAML that `--config` accepts."""
    return _dump_yaml(to_dict(stage))


def _dump_yaml(values: dict[str, Any]) -> str:
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=False))
