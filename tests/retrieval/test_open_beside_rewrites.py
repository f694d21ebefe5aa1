"""Products opened while another process makes them again: each open has one of the two contents, never parts of both, and never fails."""

import json
import random
import shutil
from pathlib import Path

import pytest

from moeir.architectures.checkpoint import InputConfig, open_checkpoint
from moeir.records.ids import IdColumn
from moeir.representations import encodings as opened_encodings
from moeir.representations.encodings import open_encodings
from moeir.retrieval.searcher import open_index
from tests.conftest import run_moeir
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
        run_moeir("index", "--corpus", path, "--engine", "bm25", "--output", tmp_path / path.stem)
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


@pytest.fixture
def replace_after(monkeypatch):
    """`replace_after(owner, name, path, other)`: a function that reads a file of a product then puts another product in its place."""

    def patch(owner, name, path, other):
        read = getattr(owner, name)

        def read_and_replace(*arguments):
            content = read(*arguments)
            if other.exists():
                path.rename(path.with_name("earlier"))
                other.rename(path)
            return content

        monkeypatch.setattr(owner, name, read_and_replace)

    return patch


def test_an_index_replaced_between_two_of_its_files_is_opened_again(two_orders, replace_after):
    path, other = two_orders
    replace_after(IdColumn, "read", path, other)
    assert find_first(open_index(path), range(50)) == [f"d{number}" for number in range(50)]
    assert not other.exists()


def test_a_checkpoint_replaced_between_two_of_its_files_is_opened_again(tiny_model, tmp_path, replace_after):
    for name, options in (("dense", ("--arch", "dense", "--document-length", 12)), ("colbert", ("--arch", "colbert:dim=8"))):
        run_moeir("init", "--model", tiny_model, *options, "--output", tmp_path / name)
    replace_after(InputConfig, "from_dict", tmp_path / "dense", tmp_path / "colbert")
    checkpoint = open_checkpoint(tmp_path / "dense")
    assert checkpoint.input_config.document_length != 12 and list(checkpoint.architecture.representation_kinds) == ["local"]


def test_encodings_replaced_between_two_of_their_files_are_opened_again(encodings, tmp_path, replace_after):
    shutil.copytree(encodings, tmp_path / "enc")
    write_encodings(encodings, tmp_path / "other", [2, 1, 0], ["x2", "x1", "x0"])
    replace_after(opened_encodings, "read_ids", tmp_path / "enc", tmp_path / "other")
    opened = open_encodings(tmp_path / "enc")
    assert opened.ids == ["x2", "x1", "x0"] and len(opened["global"]) == 3


def test_an_index_removed_while_it_is_opened_is_missing(two_orders, monkeypatch):
    path, _ = two_orders
    monkeypatch.setattr(IdColumn, "read", lambda *arguments: path.rename(path.with_name("elsewhere")) / "ids.txt")
    with pytest.raises(Exception, match=f"{path}: no such index"):
        open_index(path)
