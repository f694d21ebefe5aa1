"""Products opened while another process makes them again: each open has one of the two contents, never parts of both, and never fails."""

import json
import random
import shutil
from pathlib import Path

import pytest

from moeir.architectures.checkpoint import open_checkpoint
from moeir.records.ids import IdColumn
from moeir.representations import encodings as opened_encodings
from moeir.representations.encodings import open_encodings
from moeir.retrieval.searcher import open_index
from tests.conftest import run_in_process
from tests.rewrites import count_rewrites, rewriting
from tests.split_encodings import write_encodings


def write_two_orders(folder: Path, count: int) -> list[Path]:
    """Two corpora of the same documents, one of them in another order: document dN alone has the word wN."""
    lines = [json.dumps({"_id": f"d{number}", "text": f"w{number} owls hunt mice"}) for number in range(count)]
    paths = [folder / "ascending.jsonl", folder / "shuffled.jsonl"]
    for path in paths:
        path.write_text("\n".join(lines) + "\n")
        random.Random(0).shuffle(lines)
    return paths


@pytest.fixture
def two_orders(tmp_path):
    """Two indexes of the same documents in different orders."""
    for path in write_two_orders(tmp_path, 50):
        assert run_in_process("index", "--corpus", path, "--engine", "bm25", "--output", tmp_path / path.stem).code == 0
    return tmp_path / "ascending", tmp_path / "shuffled"


def find_first(searcher, numbers):
    return [hits[0][0] for hits in searcher.search([f"w{number}" for number in numbers], 1)]


@pytest.mark.parametrize(
    ("opens", "documents"), [(40, 60), pytest.param(10_000, 6000, marks=pytest.mark.torture)], ids=["sample", "10,000 opens"]
)
def test_an_index_opened_beside_rewrites_is_one_of_the_two(opens, documents, tmp_path, record_property):
    commands = [
        ("index", "--corpus", path, "--engine", "bm25", "--output", tmp_path / "idx", "--force")
        for path in write_two_orders(tmp_path, documents)
    ]
    with rewriting(tmp_path / "log", *commands):
        rng, before = random.Random(0), count_rewrites(tmp_path / "log")
        for _ in range(opens):
            numbers = rng.sample(range(documents), 5)
            assert find_first(open_index(tmp_path / "idx"), numbers) == [f"d{number}" for number in numbers]
        rewrites = count_rewrites(tmp_path / "log") - before
    record_property("opens", (opens, rewrites))
    assert rewrites > 0


def test_an_index_replaced_between_two_of_its_files_is_opened_again(two_orders, monkeypatch):
    path, other = two_orders
    read = IdColumn.read.__func__

    def read_and_replace(cls, *arguments):
        folder = read(cls, *arguments)
        if other.exists():
            path.rename(path.with_name("earlier"))
            other.rename(path)
        return folder

    monkeypatch.setattr(IdColumn, "read", classmethod(read_and_replace))
    assert find_first(open_index(path), range(50)) == [f"d{number}" for number in range(50)]
    assert path.with_name("earlier").is_dir()


def test_an_index_removed_while_it_is_opened_is_missing(two_orders, monkeypatch):
    path, _ = two_orders
    monkeypatch.setattr(IdColumn, "read", lambda *arguments: path.rename(path.with_name("elsewhere")) / "ids.txt")
    with pytest.raises(Exception, match=f"{path}: no such index"):
        open_index(path)


def test_a_checkpoint_opened_beside_rewrites_is_one_of_the_two(tiny_model, tmp_path):
    """The length is in one file of a checkpoint, the sizes of the heads in others."""
    init = ("init", "--model", tiny_model, "--output", tmp_path / "ckpt", "--force")
    with rewriting(tmp_path / "log", (*init, "--arch", "dense", "--document-length", 12), (*init, "--arch", "colbert:dim=8")):
        for _ in range(4):
            checkpoint = open_checkpoint(tmp_path / "ckpt")
            assert (checkpoint.input_config.document_length == 12) == ("global" in checkpoint.architecture.representation_kinds)


def test_encodings_replaced_between_two_of_their_files_are_opened_again(encodings, tmp_path, monkeypatch):
    shutil.copytree(encodings, tmp_path / "enc")
    read = opened_encodings.read_ids

    def read_and_replace(folder):
        ids = read(folder)
        if not (tmp_path / "earlier").exists():
            (tmp_path / "enc").rename(tmp_path / "earlier")
            write_encodings(encodings, tmp_path / "enc", [2, 1, 0], ["x2", "x1", "x0"])
        return ids

    monkeypatch.setattr(opened_encodings, "read_ids", read_and_replace)
    opened = open_encodings(tmp_path / "enc")
    assert opened.ids == ["x2", "x1", "x0"] and len(opened["global"]) == 3
