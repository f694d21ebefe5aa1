"""Each kind of bad input ends with its exit code and one line with place and cause, and leaves every file unchanged."""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bad_input import GOOD, TABLE, BadInput, FullDisk


@pytest.fixture(scope="module")
def shop(tmp_path_factory, moeir, toy, tiny_model, came_checkpoint, encodings, index, bm25_index):
    """A folder with one valid artifact or file of every kind."""
    folder = tmp_path_factory.mktemp("shop")
    for name, path in {"tiny": tiny_model, "came": came_checkpoint, "enc": encodings, "idx": index, "bm25": bm25_index}.items():
        (folder / name).symlink_to(path)
    for name in ("corpus.jsonl", "train-queries.jsonl"):
        shutil.copy(toy / name, folder)
    shutil.copy(toy / "test-queries.tsv", folder / "queries.tsv")
    (folder / "test.qrels").write_text("q1 0 owl 1\n")
    (folder / "good.jsonl").write_text(GOOD + "\n")
    (folder / "one.trec").write_text("q1 Q0 owl 1 2.0 t\nq1 Q0 cat 2 1.0 t\n")
    (folder / "two.trec").write_text("q1 Q0 cat 1 2.0 t\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert moeir("fuse", "--run", "one.trec", "--run", "two.trec", "--output", "made.trec").code == 0
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def circumstances(bad: BadInput, folder: Path) -> Iterator[dict[str, bytes]]:
    """Make the input bad and yield the folder's contents."""
    resource = bad.setup(folder) if bad.setup else None
    yield contents(folder)
    if isinstance(resource, FullDisk | io.IOBase):
        resource.close()


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.message)
def test_bad_input_ends_with_its_code_one_line_and_untouched_files(bad, shop, tmp_path, monkeypatch, moeir):
    folder = tmp_path / "shop"
    shutil.copytree(shop, folder, symlinks=True)
    monkeypatch.chdir(folder)
    with circumstances(bad, folder) as before:
        result = moeir(*bad.command.strip().split(" "))
    assert (result.code, result.stdout) == (bad.code, ""), result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "moeir"))]
    assert len(lines) == 1 and lines[0] == result.stderr.splitlines()[-1], result.stderr
    assert bad.message in lines[0]
    assert contents(folder) == before
