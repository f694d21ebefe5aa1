"""Run a script of `examples/` in a shell, list its `moeir` commands, and parse the tables it printed; import a program."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moeir import console
from tests.conftest import CommandResult, InMemoryStream
from tests.examples import server

EXAMPLES = Path(__file__).parents[2] / "examples"
EVIDENCE = EXAMPLES.with_name("tests") / "benchmarks" / "evidence"
TABLE_HEADERS = {"run", "by", "model", "group", "side", "R@100", "nDCG@10"}
LEGEND = "significantly better"  # below a table with marks


class CommandServer(NamedTuple):
    """A running `moeir` process: the clients to call in place of `moeir` and of `python`, and the journal of commands."""

    client: Path
    python: Path
    journal: Path

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.journal.read_text(encoding="utf-8").splitlines()]


def run_script(script: str | Path, *arguments: object, **settings: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("MOEIR", "MODEL", "DATA", "WORK", "BEIR")}
    served = isinstance(settings.get("MOEIR"), Path) and settings["MOEIR"].with_name("python")
    python = served if served and served.exists() else sys.executable
    environment |= {"PYTHON": str(python), **{name: str(value) for name, value in settings.items()}}
    command = ["bash", str(EXAMPLES / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)


class Experiment(NamedTuple):
    """A declared experiment at toy size: its collections, its model, and the folder of its work and results."""

    server: CommandServer
    data: Path
    model: Path
    folder: Path

    def run(self, script: str, *rows: str, code: int = 0, **settings: object) -> str:
        """The messages of a script, which ends with this code."""
        given = {"MOEIR": self.server.client, "SIZE": "toy", "RESULTS": self.folder / "results"} | settings
        completed = run_script(EVIDENCE / script, self.data, self.folder / "work", self.model, *rows, **given)
        assert completed.returncode == code, completed.stderr
        return completed.stderr

    def lines(self, name: str) -> list[dict[str, Any]]:
        """All records of an experiment."""
        return [json.loads(line) for line in gzip.decompress((self.folder / f"results/{name}.jsonl.gz").read_bytes()).splitlines()]

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        """The records of its rows."""
        return {line["row"]: line for line in self.lines(name) if "row" in line}

    def change_rows(self, name: str, rows: dict[str, dict[str, Any]]) -> None:
        """Replace its records."""
        text = "".join(json.dumps(row) + "\n" for row in rows.values())
        (self.folder / f"results/{name}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def run_program(name: str, *arguments: object, folder: Path = EXAMPLES) -> CommandResult:
    """`python NAME ARGUMENTS` for a program of `examples/`, in this process."""
    streams = {"stdout": InMemoryStream(), "stderr": InMemoryStream()}
    with pytest.MonkeyPatch.context() as patch:
        for name_of_stream, stream in streams.items():
            patch.setattr(sys, name_of_stream, stream)
        code = server.run_program([str(folder / name), *map(str, arguments)])
    console.configure_logging()
    return CommandResult(code, streams["stdout"].text(), streams["stderr"].text())


def record_calls(script: str, folder: Path, python: Path, recorder: str = "", *, code: int = 0, **settings: object) -> list[list[str]]:
    """The words of the commands of a script, which a program in place of moeir notes instead; `recorder` is what else it does, in bash."""
    program, calls = folder / "recorder", folder / "calls"
    program.write_text(f'#!/bin/bash\necho "$*" >>{calls}\n{recorder}', encoding="utf-8")
    program.chmod(0o755)
    calls.unlink(missing_ok=True)
    programs = {"MOEIR": program, "PYTHON": write_recording_python(folder, python)}
    completed = run_script(script, **programs | {"WORK": folder / "work"} | settings)
    assert completed.returncode == code, completed.stderr
    for stream in ("stdout", "stderr"):
        (folder / stream).write_text(getattr(completed, stream), encoding="utf-8")
    return [line.split() for line in calls.read_text(encoding="utf-8").splitlines()]


def flags_of(call: list[str]) -> dict[str, str]:
    """Flag and value of a command in which no flag is repeated."""
    return dict(zip(call[1::2], call[2::2], strict=True))


def write_recording_python(folder: Path, python: Path) -> Path:
    """A `python` that notes calls of the programs of figures in FOLDER/calls instead, for scripts whose commands make no runs."""
    recording, note = folder / "recording-python", f'name=$(basename "$1" .py); shift; echo "$name $*" >>{folder}/calls; exit 0'
    programs = "*/grid.py | */divergence.py | */project_vectors.py"
    recording.write_text(f'#!/bin/sh\ncase "$1" in {programs}) {note} ;; esac\nexec "{python}" "$@"\n')
    recording.chmod(0o755)
    return recording


def parse_tables(stdout: str) -> list[tuple[list[str], list[str]]]:
    """The measures and row names of each table."""
    parsed: list[tuple[list[str], list[str]]] = []
    for words in (line.split() for line in stdout.splitlines() if line.strip("- ") and not line.startswith(LEGEND)):
        if words[0] in TABLE_HEADERS:
            parsed.append(([word for word in words[1:] if word != "p" and not word.startswith("(")], []))
        else:
            parsed[-1][1].append(words[0])
    return parsed


def load_program(name: str) -> Any:
    """The module of a program of `examples/`."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
