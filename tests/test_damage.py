"""Encodings and indexes of every engine: any changed or missing byte of any file is detected before the file is used."""

import itertools
import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import CommandResult, run_in_process

DAMAGES = ("flip", "other flip", "empty", "short")
ENGINES = {"faiss": "global=faiss:factory=Flat,rescore=true"}


@pytest.fixture(scope="module", params=["encodings", "exact", "bm25", *ENGINES])
def artifact(request, encodings, index, bm25_index):
    """A copy that may be damaged, next to the checkpoint it was made with."""
    path = encodings.with_name(f"harmed-{request.param}")
    if request.param in ENGINES:
        if request.param == "faiss":
            pytest.importorskip("faiss", reason="needs faiss (moeir[cpu])")
        result = run_in_process("index", "--encodings", encodings, "--engine", ENGINES[request.param], "--output", path)
        assert result.code == 0, result.stderr
        return path
    shutil.copytree({"encodings": encodings, "exact": index, "bm25": bm25_index}[request.param], path)
    return path


def run_reader(artifact: Path, toy: Path) -> CommandResult:
    """Run the command that reads the artifact."""
    output = artifact.with_name(f"{artifact.name}.out")
    if artifact.name == "harmed-encodings":
        return run_in_process("index", "--encodings", artifact, "--output", output)
    return run_in_process("search", "--index", artifact, "--queries", toy / "test-queries.tsv", "--output", output)


def assert_refused(artifact: Path, toy: Path, file: Path) -> None:
    result = run_reader(artifact, toy)
    assert result.code == 4, (file, result.stderr)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and str(file) in lines[0] and "damaged" in lines[0] and " again" in lines[0]
    assert not artifact.with_name(f"{artifact.name}.out").exists()


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.torture)])
def test_every_damaged_file_is_refused(artifact: Path, toy: Path, every: int) -> None:
    """Both flips and both cuts of each file; the plain run does one in seven."""
    files, generator = sorted(path for path in artifact.rglob("*") if path.is_file()), random.Random(1)
    assert len(files) > 5
    for file, damage in list(itertools.product(files, DAMAGES))[::every]:
        content = file.read_bytes()
        damaged = bytearray(content[: {"empty": 0, "short": len(content) - 1}.get(damage)])
        if "flip" in damage:
            damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(damaged)
        assert_refused(artifact, toy, file)
        file.write_bytes(content)
    assert run_reader(artifact, toy).code == 0
