"""The commands in the README are valid."""

import re
import shlex
from pathlib import Path

import pytest

from moeir import cli, settings, variants
from moeir.stages import base

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.sub(r"\\\n\s*", "", "\n".join(line[4:] for line in TEXT.splitlines() if line.startswith("    ")))
COMMANDS = [line.split("#")[0].strip() for line in BLOCKS.splitlines() if line.startswith("moeir ")]


def test_the_readme_shows_the_whole_pipeline() -> None:
    commands = {command.split()[1] for command in COMMANDS}
    assert {"finetune", "mine-negatives", "encode", "index", "search", "fuse", "evaluate"} <= commands


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_resolves(command: str) -> None:
    name, *words = shlex.split(command)[1:]
    stage = cli.stage_class(name)
    flags = {flag: setting.name for setting in settings.list_settings(stage) for flag in (setting.flag, *setting.aliases)}
    values: dict[str, list[str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        assert flag in flags, f"{flag} is no flag of {name}"
        values.setdefault(flags[flag], []).append(value)
    repeated = {setting.name for setting in settings.list_settings(stage) if setting.repeated}
    base.check_settings(settings.build_stage(stage, {key: value if key in repeated else value[0] for key, value in values.items()}))


def test_every_stage_is_named_in_the_readme_and_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for name in cli.STAGES:
        assert name in TEXT and name in changes


def test_every_architecture_and_objective_stands_in_the_readme() -> None:
    for room in ("architectures", "training.objectives"):
        for variant in variants.list_variants(room):
            assert f"`{variant.name}`" in TEXT
