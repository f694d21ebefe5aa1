"""Arrays that another program might have written: one array of an artifact is changed, the manifest is made to match it, and a child that
may crash reads the artifact."""

import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moeir.artifacts import manifests
from moeir.errors import MoeirError
from moeir.stages.index import Index
from moeir.stages.search import Search
from tests.conftest import run_in_process, run_in_subprocess

SECONDS = 30  # for a case, which takes a tenth of one
PROGRAM = """
import sys
root, every, *paths = sys.argv[1:]
sys.path.insert(0, root)
from tests import bad_arrays
bad_arrays.read_changed_arrays(int(every), *map(bad_arrays.Path, paths))
"""


def _set_first(array: np.ndarray, position: int, value: Any) -> np.ndarray:
    changed = array.copy()
    changed.reshape(-1)[position] = value
    return changed


def _is_whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu"


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "float64": lambda array: array.astype(np.float64),
    "int8": lambda array: array.astype(np.int8),
    "other sign": lambda array: array.astype(f"{'i' if array.dtype.kind == 'u' else 'u'}{array.itemsize}"),
    "other byte order": lambda array: array.astype(array.dtype.newbyteorder()),
    "row short": lambda array: array[:-1],
    "row long": lambda array: np.concatenate([array, array[-1:]]),
    "empty": lambda array: array[:0],
    "dimension more": lambda array: array[..., None],
    "no dimension": lambda array: array.reshape(-1)[0],
    "columns first": np.asfortranarray,
    "reversed": lambda array: array[::-1],
    "maximum raised": lambda array: _set_first(array, array.argmax(), np.iinfo(array.dtype).max) if _is_whole(array) else array,
    "minimum -1": lambda array: _set_first(array, array.argmin(), np.array(-1).astype(array.dtype)) if _is_whole(array) else array,
    "NaN": lambda array: array if _is_whole(array) else _set_first(array, 0, np.nan),
}


class Reading(NamedTuple):
    """What became of a change: the exit code of the command, or minus the signal that ended it, and the lines of its error."""

    artifact: str
    file: str
    change: str
    code: int
    errors: list[str]


class Case(NamedTuple):
    """A change of one file of an artifact."""

    artifact: Path
    file: Path
    change: str

    def content(self) -> bytes:
        """The changed array as the bytes of a file."""
        with np.errstate(invalid="ignore"):
            return _file_bytes(np.asarray(CHANGES[self.change](np.load(self.file))))


def read_all(artifacts: list[Path], queries: Path, every: int) -> list[Reading]:
    """Index or search the artifacts with each change of each array that changes its bytes, in a subprocess, one in `every` through the
    command line."""
    result = run_in_subprocess(Path(__file__).parents[1], every, queries, *artifacts, program=PROGRAM)
    assert result.code == 0, result.stderr
    return [Reading(*json.loads(line)) for line in result.stdout.splitlines()]


def read_changed_arrays(every: int, queries: Path, *artifacts: Path) -> None:
    """The part of `read_all` in the subprocess: print the readings as JSON lines."""
    originals = {file: file.read_bytes() for artifact in artifacts for file in artifact.rglob("*") if file.suffix in (".npy", ".json")}
    files = [(artifact, file) for artifact in artifacts for file in sorted(artifact.rglob("*.npy"))]
    cases = [case for place in files for change in CHANGES if (case := Case(*place, change)).content() != originals[case.file]]
    readings = artifacts[0].with_name("readings.jsonl")
    readings.touch()
    while (count := len(readings.read_text().splitlines())) < len(cases):
        signal_number = _read_in_child(cases, count, every, queries, readings)
        if (count := len(readings.read_text().splitlines())) < len(cases):
            _write_reading(readings, cases[count], -signal_number or 70, [])
        for file, content in originals.items():
            file.write_bytes(content)
    sys.stdout.write(readings.read_text())


def _read_in_child(cases: list[Case], first: int, every: int, queries: Path, readings: Path) -> int:
    """Read the cases from `first` on in a child, and write their readings; the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            for number, case in enumerate(cases[first:], first):
                signal.alarm(SECONDS)
                with _changed(case):
                    outcome = _run(case.artifact, queries) if number % every == 0 else _catch_work(case.artifact, queries)
                _write_reading(readings, case, *outcome)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@contextmanager
def _changed(case: Case) -> Iterator[None]:
    """The artifact with the changed array, and a manifest whose checksums match it."""
    manifest = case.artifact / manifests.MANIFEST
    before = {file: file.read_bytes() for file in (case.file, manifest)}
    case.file.write_bytes(case.content())
    facts = json.loads(before[manifest])
    facts["files"][str(case.file.relative_to(case.artifact))] = manifests.compute_checksums([case.file])[0]
    manifest.write_text(manifests.serialize_manifest(facts))
    yield
    for file, content in before.items():
        file.write_bytes(content)


def _run(artifact: Path, queries: Path) -> tuple[int, list[str]]:
    """Index or search through the command line."""
    source = ("index", "--encodings", artifact) if _is_encodings(artifact) else ("search", "--index", artifact, "--queries", queries)
    with tempfile.TemporaryDirectory() as folder:
        result = run_in_process(*source, "--output", Path(folder) / "output")
    return result.code, [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def _catch_work(artifact: Path, queries: Path) -> tuple[int, list[str]]:
    """The work of the same command, without its checks of arguments and checksums, which take most of its time."""
    try:
        _work(artifact, queries)
    except MoeirError as problem:
        return problem.exit_code, f"error: {problem}".splitlines()
    except Exception as problem:  # noqa: BLE001 - a fault of the code is an outcome to report
        return 70, [f"{type(problem).__name__}: {problem}"]
    return 0, []


def _work(artifact: Path, queries: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        output, is_encodings = Path(folder), _is_encodings(artifact)
        (Index(encodings=artifact, output=output) if is_encodings else Search(index=(artifact,), queries=queries, output=output)).work()


def _is_encodings(artifact: Path) -> bool:
    return bool(manifests.read_manifest(artifact)["kind"] == "encodings")


def _file_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def _write_reading(readings: Path, case: Case, code: int, errors: list[str]) -> None:
    with open(readings, "a", encoding="utf-8") as file:
        file.write(json.dumps([case.artifact.name, str(case.file.relative_to(case.artifact)), case.change, code, errors]) + "\n")
