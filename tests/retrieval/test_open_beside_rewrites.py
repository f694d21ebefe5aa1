"""Products that another process replaces while they are opened: each open has one of the two contents, never parts of both."""

import json
import shutil
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from moeir.architectures.checkpoint import open_checkpoint
from moeir.records.ids import IdColumn
from moeir.representations.encodings import open_encodings
from moeir.retrieval.searcher import open_index
from tests.conftest import run_moeir
from tests.split_encodings import write_encodings

DOCUMENTS = 12
waiting = []  # (path, product to put there, number of files of the path to be opened before)


def replace_before_open(event, arguments):
    """An audit hook: put the waiting product into its place once enough files are opened there."""
    if event == "open" and waiting and str(arguments[0]).startswith(f"{waiting[0][0]}/"):
        path, other, files = waiting.pop()
        if files:
            waiting.append((path, other, files - 1))
        else:
            path.rename(path.with_name("earlier"))
            other.rename(path)


sys.addaudithook(replace_before_open)


@contextmanager
def replacing(path: Path, other: Path, files: int):
    """Replace a product by another one when so many of its files have been opened; yields a list that is empty once this is done."""
    waiting.append((path, other, files))
    try:
        yield waiting
    finally:
        waiting.clear()


def make_indexes(folder, **_):
    """Two indexes of the same documents in different orders: document dN alone has the word wN."""
    lines = [json.dumps({"_id": f"d{number}", "text": f"w{number} owls hunt mice"}) + "\n" for number in range(DOCUMENTS)]
    for name, part in (("first", lines), ("second", lines[::-1])):
        (folder / f"{name}.jsonl").write_text("".join(part))
        run_moeir("index", "--corpus", folder / f"{name}.jsonl", "--engine", "bm25", "--output", folder / name)


def read_index(path):
    searcher = open_index(path)
    return list(searcher.ids), [hits[0][0] for hits in searcher.search([f"w{number}" for number in range(DOCUMENTS)], 1)]


def make_checkpoints(folder, *, tiny_model, **_):
    """The length is in one file of a checkpoint, the sizes of the heads in others."""
    for name, options in (("first", ("dense", "--document-length", 12)), ("second", ("colbert:dim=8",))):
        run_moeir("init", "--model", tiny_model, "--arch", *options, "--output", folder / name)


def read_checkpoint(path):
    checkpoint = open_checkpoint(path)
    return checkpoint.input_config.document_length, list(checkpoint.architecture.representation_kinds)


def make_encodings(folder, *, encodings, **_):
    write_encodings(encodings, folder / "first", [0, 1, 2, 3], ["x0", "x1", "x2", "x3"])
    write_encodings(encodings, folder / "second", [2, 1, 0], ["x2", "x1", "x0"])


def read_encodings(path):
    opened = open_encodings(path)
    return list(opened.ids), opened["global"].vectors.tolist()


@pytest.mark.parametrize(("make", "read"), [
    (make_indexes, read_index), (make_checkpoints, read_checkpoint), (make_encodings, read_encodings),
])  # fmt: skip
def test_a_product_replaced_before_any_of_its_files_is_opened_is_one_of_the_two(make, read, tmp_path, tiny_model, encodings):
    make(tmp_path, tiny_model=tiny_model, encodings=encodings)
    contents = [read(tmp_path / name) for name in ("first", "second")]
    for files in count():
        folder = tmp_path / str(files)
        for name in ("first", "second"):
            shutil.copytree(tmp_path / name, folder / name)
        with replacing(folder / "first", folder / "second", files) as left:
            assert read(folder / "first") in contents, files
            if left:
                break
    assert files > 5 and contents[0] != contents[1]


def test_an_index_removed_while_it_is_opened_is_missing(tmp_path, monkeypatch):
    make_indexes(tmp_path)
    monkeypatch.setattr(IdColumn, "read", lambda *arguments: (tmp_path / "first").rename(tmp_path / "elsewhere") / "ids.txt")
    with pytest.raises(Exception, match=f"{tmp_path / 'first'}: no such index"):
        open_index(tmp_path / "first")
