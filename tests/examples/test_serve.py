"""The Dockerfile and the unit of systemd in examples/serve are of commands and files that there are."""

import re
import shlex
from pathlib import Path

from moeir import settings
from moeir.stages.serve import Serve
from tests.examples.shell import EXAMPLES

ROOT = EXAMPLES.parent
DOCKERFILE = (EXAMPLES / "serve" / "Dockerfile").read_text(encoding="utf-8")


def known_flags() -> set[str]:
    return {flag for setting in settings.list_settings(Serve) for flag in (setting.flag, *setting.aliases)}


def test_the_image_is_built_from_what_there_is_with_the_tested_versions() -> None:
    copied = {word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    ignored = (EXAMPLES / "serve" / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "*" and copied <= {word.removeprefix("!") for word in ignored}
    assert "--constraint constraints.txt" in DOCKERFILE and "grep '^torch==' constraints.txt" in DOCKERFILE
    constrained = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for package in re.findall(r"\"([\w-]+)>=", re.findall(r"^serve = (.*)$", project, re.MULTILINE)[0]):
        assert f"\n{package}==" in constrained, package
    needed = re.findall(r'readme = "(.*?)"|license-files = \["(.*?)"\]', project)
    assert {name for pair in needed for name in pair if name} <= copied, "setuptools reads these"


def test_the_commands_have_flags_of_serve() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
    unit = (EXAMPLES / "serve" / "moeir.service").read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    for words in (re.findall(r'"([^"]*)"', entry), shlex.split(start)):
        assert words[0].endswith("moeir") and words[1] == "serve"
        assert {word for word in words if word.startswith("--")} <= known_flags()
    timeout = next(setting.default for setting in settings.list_settings(Serve) if setting.name == "timeout")
    for seconds in (re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[0], re.findall(r"--stop-timeout (\d+)", DOCKERFILE)[0]):
        assert int(seconds) > timeout, "what has not stopped by then is killed"


def test_the_image_gives_its_own_address_to_nobody_but_who_publishes_it() -> None:
    assert Path(EXAMPLES / "serve" / "moeir.service").read_text().count("--host") == 0
    assert "--publish 127.0.0.1:8000:8000" in DOCKERFILE
