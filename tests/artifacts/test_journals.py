"""Work can be interrupted anywhere: what the journal records is on disk, and the rest is done again."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from moeir.artifacts.journals import HEADER_BYTES, AppendableNpy, AppendableText, JsonlJournal
from moeir.errors import ArtifactError
from moeir.representations import encodings
from moeir.representations.dense import Dense

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
        assert [json.loads(line)["number"] for line in (tmp_path / "journal.jsonl").read_text().splitlines()] == [0, 1, 2]


@pytest.mark.parametrize("line", ["x{}", "[1]", "7", "\\udc80", "{}", '{"number": 1}', '{"number": 1, "crc32": 7}', 9_999 * "["])
def test_a_journal_with_a_changed_line_is_refused(tmp_path, line):
    path = tmp_path / "journal.jsonl"
    journal = JsonlJournal(path)
    for number in range(3):
        journal.write({"number": number})
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + line.encode("utf-8", "backslashreplace") + b"\n" + lines[2])
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
    AppendableNpy(tmp_path / "c.npy", "float16", 3).close()
    AppendableNpy(tmp_path / "d.npy", "int32").close()
    assert np.load(tmp_path / "c.npy").shape == (0, 3) and np.load(tmp_path / "d.npy").shape == (0,)


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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to know the file of a descriptor")
def test_a_journal_counts_only_what_is_on_disk(tmp_path, monkeypatch):
    """A power cut keeps only what was synced, so every file comes to disk before the entry that counts its rows."""
    synced = []  # (name, bytes in the file) of every fsync of a file, in order

    def note_size(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            synced.append((path.name, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", note_size)
    monkeypatch.setattr(encodings, "FLUSH_SECONDS", 0.0)
    writer = encodings.ResumableEncodingWriter(tmp_path, ["global"], encodings.Pruning())
    for number in range(2):
        writer.add(["a", "bb"], {"global": Dense(torch.full((2, 4), float(number)))})
    writer.close()
    for entry in (1, 2):
        *files, (last, _) = synced[3 * entry - 3 : 3 * entry]
        assert last == "journal.jsonl" and dict(files) == {"vectors.npy": HEADER_BYTES + entry * 2 * 4 * 2, "ids.txt": entry * 5}
    assert len(synced) == 6


@pytest.mark.parametrize("size", [None, 0, HEADER_BYTES + 7])
def test_a_file_shorter_than_its_journal_has_is_refused(tmp_path, size):
    """Never filled with zeros, as by a truncation."""
    path = tmp_path / "vectors.npy"
    if size is not None:
        path.write_bytes(bytes(size))
    with pytest.raises(ArtifactError, match=f"vectors.npy: damaged: {size or 0} bytes, but its journal has 136; --force starts over"):
        AppendableNpy(path, np.float32, rows=2)
