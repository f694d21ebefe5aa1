"""Splits by `convert`: the seed alone decides, and equal queries stay together."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moeir.records import qrels, texts
from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]


@pytest.fixture
def beir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection of 40 queries in train and 5 in test, and 100 documents; each pair of train queries has one text."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    queries = [texts.Text(f"q{number:02}", f"Who is {number // 2}?" if number % 2 else f"who  is {number // 2}?") for number in range(45)]
    texts.write_texts(queries, folder / "queries.jsonl")
    texts.write_texts([texts.Text(f"d{number:02}", f"Text {number}.") for number in range(100)], folder / "corpus.jsonl")
    for split, numbers in (("train", range(40)), ("test", range(40, 45))):
        rows = "".join(f"q{number:02}\td{number:02}\t1\n" for number in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    monkeypatch.chdir(tmp_path)
    return Path("beir")


def ids(path: Path) -> list[str]:
    return [text.id for text in texts.read_texts(path)]


def test_a_collection_is_divided_without_a_leak(beir: Path, moeir: Moeir) -> None:
    result = moeir("convert", "--input", beir, "--to", "beir", "--split", "dev=0.25", "--output", "divided")
    assert result.code == 0 and result.stderr.startswith("queries: test 5, train 30, dev 10\n")
    parts = {split: qrels.read_qrels(f"divided/qrels/{split}.tsv") for split in ("train", "dev", "test")}
    assert parts["test"] == qrels.read_qrels(beir / "qrels/test.tsv")
    assert parts["train"] | parts["dev"] == qrels.read_qrels(beir / "qrels/train.tsv")
    groups = {split: {int(query[1:]) // 2 for query in parts[split]} for split in ("train", "dev")}
    assert not groups["train"] & groups["dev"]
    assert ids(Path("divided/queries.jsonl")) == ids(beir / "queries.jsonl")


def test_a_collection_with_test_queries_alone_gets_a_train_split(beir: Path, moeir: Moeir) -> None:
    (beir / "qrels" / "train.tsv").rename(beir / "qrels" / "test.tsv")
    result = moeir("convert", "--input", beir, "--split", "train=0.5,dev=0.25", "--output", "divided")
    assert result.code == 0 and result.stderr.startswith("queries: test 10, train 20, dev 10\n")
    refused = moeir("convert", "--input", beir, "--split", "train=0.5,test=0.25", "--output", "no")
    assert refused.code == 2 and "the shares add up to 0.75; expected 1, as there is a share of test, which is the rest" in refused.stderr


def test_the_order_of_lines_does_not_matter(beir: Path, moeir: Moeir) -> None:
    command = ("convert", "--input", beir, "--split", "dev=0.2,held=0.1", "--output")
    assert moeir(*command, "one").code == 0
    for name in ("queries.jsonl", "qrels/train.tsv"):
        header, *rows = (beir / name).read_text().splitlines()
        (beir / name).write_text("\n".join([header, *reversed(rows)] if "qrels" in name else [*reversed(rows), header]) + "\n")
    assert moeir(*command, "two").code == 0
    for split in ("train", "dev", "held"):
        assert qrels.read_qrels(f"one/qrels/{split}.tsv") == qrels.read_qrels(f"two/qrels/{split}.tsv")


@pytest.mark.parametrize(("flags", "code", "message"), [
    ("", 2, "convert needs --to, or --split or --passages"),
    ("--split dev", 2, "--split dev: expected NAME=SHARE"),
    ("--split dev=0.6,held=0.6", 2, "--split: the shares add up to 1.2; expected 1 or less"),
    ("--split train=0.5", 2, "--split: the shares add up to 0.5; expected 1, as there is a share of train, which is the rest"),
    ("--split test=0.5", 2, "--split test: the collection has this split already"),
    ("--split dev=0.001", 2, "--split dev=0.001: none of 40 queries is in it"),
    *((f"--split {split}", 2, "expected NAME=SHARE, a name of letters, digits, - and _")
        for split in ("a#b=0.5", ".=0.5", "..=0.5", "a/b=0.5", "dev=0.2,Dev=0.2")),
])  # fmt: skip
def test_what_cannot_be_divided_is_one_line(flags: str, code: int, message: str, beir: Path, moeir: Moeir) -> None:
    result = moeir("convert", "--input", beir, *flags.split(), "--output", "out")
    assert result.code == code and message in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
    assert not Path("out").exists()


def test_other_kinds_are_not_divided(beir: Path, moeir: Moeir) -> None:
    for file in (beir / "qrels/train.tsv", beir / "corpus.jsonl"):
        result = moeir("convert", "--input", file, "--split", "dev=0.1", "--output", "out")
        assert result.code == 2 and "--split: is for a folder of documents, queries and judgements" in result.stderr
