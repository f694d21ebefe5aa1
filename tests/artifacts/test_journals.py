"""Work can be interrupted anywhere: what the journal records is on disk, and the rest is done again."""

import os

import numpy as np
import pytest

from moeir.artifacts.journals import HEADER_BYTES, AppendableNpy, AppendableText, JsonlJournal
from moeir.errors import ArtifactError

BLOCKS = [np.arange(6).reshape(2, 3), np.arange(3).reshape(1, 3) + 10, np.zeros((0, 3)), np.arange(9).reshape(3, 3) - 5]


def test_a_journal_keeps_whole_lines_and_forgets_a_torn_one(tmp_path):
    journal = JsonlJournal(tmp_path / "journal.jsonl")
    for number in range(3):
        journal.write({"number": number})
    journal.close()
    whole = (tmp_path / "journal.jsonl").stat().st_size
    for cut in range(1, whole // 3):
        os.truncate(tmp_path / "journal.jsonl", whole - cut)
        again = JsonlJournal(tmp_path / "journal.jsonl")
        assert again.entries == [{"number": 0}, {"number": 1}]
        again.write({"number": 2})
        again.close()
        assert (tmp_path / "journal.jsonl").read_text() == '{"number": 0}\n{"number": 1}\n{"number": 2}\n'


@pytest.mark.parametrize("line", ["x{}", "[1]", "7", "\\udc80"])
def test_a_journal_with_a_changed_line_is_refused(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"number": 0}\n' + line.encode("utf-8", "backslashreplace") + b'\n{"number": 2}\n')
    before = path.read_bytes()
    with pytest.raises(ArtifactError) as refused:
        JsonlJournal(path)
    assert str(refused.value) == f"{path}:2: damaged: not an entry of a journal; --force starts over"
    assert path.read_bytes() == before


def write_blocks(path, blocks, dtype="float16", rows=0):
    array = AppendableNpy(path, dtype, 3, rows)
    for block in blocks:
        array.append(block)
    return array


def test_a_grown_array_is_a_plain_npy_file(tmp_path):
    write_blocks(tmp_path / "a.npy", BLOCKS).close()
    loaded = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    assert loaded.dtype == np.float16
    np.testing.assert_array_equal(loaded, np.concatenate(BLOCKS))
    flat = AppendableNpy(tmp_path / "b.npy", "int64")
    flat.append(np.array([2**40, -1]))
    flat.close()
    assert np.load(tmp_path / "b.npy").tolist() == [2**40, -1]


def test_an_array_without_rows_is_one_too(tmp_path):
    AppendableNpy(tmp_path / "a.npy", "float16", 3).close()
    AppendableNpy(tmp_path / "b.npy", "int32").close()
    assert np.load(tmp_path / "a.npy").shape == (0, 3) and np.load(tmp_path / "b.npy").shape == (0,)


@pytest.mark.parametrize("done", range(len(BLOCKS)))
@pytest.mark.parametrize("torn", [0, 1, 5])
def test_an_array_continued_after_a_kill_has_the_undisturbed_bytes(tmp_path, done, torn):
    write_blocks(tmp_path / "whole.npy", BLOCKS).close()
    first = write_blocks(tmp_path / "cut.npy", BLOCKS[:done])
    first.flush()
    rows = first.rows
    with open(tmp_path / "cut.npy", "ab") as file:  # written after the journal's last line
        file.write(b"\xff" * torn)
    write_blocks(tmp_path / "cut.npy", BLOCKS[done:], rows=rows).close()
    assert (tmp_path / "cut.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_an_array_can_be_cut_back_to_fewer_rows(tmp_path):
    write_blocks(tmp_path / "a.npy", BLOCKS).flush()
    array = write_blocks(tmp_path / "a.npy", BLOCKS[1:2], rows=2)
    array.close()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.concatenate(BLOCKS[:2]))


def test_lines_continued_after_a_kill_have_the_undisturbed_bytes(tmp_path):
    lines = AppendableText(tmp_path / "ids.txt")
    lines.append(["a", "é"])
    size = lines.flush()
    lines.append(["torn"])
    lines.close()
    again = AppendableText(tmp_path / "ids.txt", size)
    again.append(["b"])
    assert again.flush() == size + 2
    again.close()
    assert (tmp_path / "ids.txt").read_bytes() == "a\né\nb\n".encode()


@pytest.mark.parametrize("size", [None, 0, HEADER_BYTES + 7])
def test_a_file_shorter_than_its_journal_has_is_refused(tmp_path, size):
    """Never filled with zeros, as by a truncation."""
    path = tmp_path / "vectors.npy"
    if size is not None:
        path.write_bytes(bytes(size))
    with pytest.raises(ArtifactError, match=f"vectors.npy: damaged: {size or 0} bytes, but its journal has 136; --force starts over"):
        AppendableNpy(path, np.float32, rows=2)
