"""Every format of a kind into another and back gives the same bytes."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from moeir import variants
from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
EXAMPLES = ("examples", "tevatron", "dpr", "flagembedding", "triplets")  # groups that convert into one another without loss
PAIRS = ("pairs", "examples", "flagembedding", "dpr")
TEXTS = ("texts", "tsv", "tevatron-texts")
QRELS = ("qrels", "beir-qrels")
RUNS = ("run",)
COLLECTIONS = ("beir", "msmarco")


def file_contents(path: Path) -> dict[str, bytes]:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file() and "manifest" not in file.name}


def convert_file(moeir: Moeir, source: Path, to: str, output: Path, *flags: object) -> str:
    """Convert to `output` -> how many records were written."""
    result = moeir("convert", "--input", source, "--to", to, "--output", output, *flags)
    assert result.code == 0, result.stderr
    assert variants.bind_variant("formats", to)().is_folder == output.is_dir()
    return re.findall(r": (\S+) records?, from ", result.stderr)[-1]


def check_round_trips(moeir: Moeir, first: Path, formats: tuple[str, ...], folder: Path, *flags: object, suffix: str = "") -> None:
    """Convert `first` into every format, then each format into the next one and back."""
    by_format = {format_: folder / f"{number}{suffix}" for number, format_ in enumerate(formats)}
    counts = {format_: convert_file(moeir, first, format_, path, *flags) for format_, path in by_format.items()}
    assert len({count for format_, count in counts.items() if format_ not in ("pairs", "triplets")}) == 1  # those count passages
    for number, (format_, other) in enumerate(pairwise((*formats, formats[0]))):
        there, back = folder / f"there{number}{suffix}", folder / f"back{number}{suffix}"
        convert_file(moeir, by_format[format_], other, there, "--from", format_, *flags)
        convert_file(moeir, there, format_, back, "--from", other, *flags)
        assert file_contents(there) == file_contents(by_format[other]), (format_, other)
        assert file_contents(back) == file_contents(by_format[format_]), (format_, other)


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    """Texts without titles, and runs, judgements and examples that refer to them."""
    (tmp_path / "texts.jsonl").write_text(
        "".join(f'{{"_id": "{number:02}", "title": "", "text": "Tëxt {number}."}}\n' for number in range(6))
    )
    lines = ["q1 Q0 02 1 -1 moeir", "q1 Q0 01 2 -2 moeir", "q1 Q0 00 3 -3 moeir", "q2 Q0 05 1 -1 moeir", "q2 Q0 03 2 -2 moeir"]
    (tmp_path / "lists.trec").write_text("\n".join(lines) + "\n")
    (tmp_path / "judged.qrels").write_text("q1 0 02 2\nq1 0 01 0\nq2 0 05 1\n")
    rows = [{"query": f"who {number}?", "pos": [f"it {number}"], "neg": [f"not {number}", f"nor {number}"]} for number in range(3)]
    (tmp_path / "flag.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\nwho?\tshe\nwho?\the\nwhy?\tthat is so\n")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "formats", "suffix"),
    [
        ("texts.jsonl", TEXTS, ".x"),
        ("judged.qrels", QRELS, ""),
        ("lists.trec", RUNS, ""),
        ("pairs.tsv", PAIRS, ".jsonl"),
        ("flag.jsonl", EXAMPLES, ""),
    ],
)
def test_files(file: str, formats: tuple[str, ...], suffix: str, data_folder: Path, moeir: Moeir) -> None:
    check_round_trips(moeir, data_folder / file, formats, data_folder, suffix=suffix)


def test_collections(data_folder: Path, moeir: Moeir) -> None:
    beir = data_folder / "collection"
    (beir / "qrels").mkdir(parents=True)
    (beir / "corpus.jsonl").write_text((data_folder / "texts.jsonl").read_text())
    (beir / "queries.jsonl").write_text('{"_id": "q1", "title": "", "text": "who?"}\n')
    for split, grade in (("dev", 1), ("test", 0)):
        (beir / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\nq1\t03\t{grade}\n")
    check_round_trips(moeir, beir, COLLECTIONS, data_folder)
    convert_file(moeir, beir, "beir", data_folder / "same")
    assert file_contents(data_folder / "same") == file_contents(beir)


def test_every_format_is_among_the_round_trips() -> None:
    groups = {spec.split(":")[0] for spec in (*EXAMPLES, *TEXTS, *QRELS, *RUNS, *COLLECTIONS, *PAIRS, "tevatron-ids", "colbert")}
    others = {"checkpoint", "sentence-transformers", "pylate", "bge-m3", "labelled", "id-triples", "msmarco-hard-negatives"}
    assert {variant.name for variant in variants.list_variants("formats")} == groups | others


def test_titled_passages_and_ids_beside_their_texts(toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    example = {"query_id": "t1", "positive_ids": ["owl", "cat"], "negative_ids": ["bat", "ant"]}
    (tmp_path / "train.jsonl").write_text(json.dumps(example) + "\n")
    flags = ("--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    inline, ids, back = tmp_path / "tevatron.jsonl", tmp_path / "ids.jsonl", tmp_path / "again.jsonl"
    convert_file(moeir, tmp_path / "train.jsonl", "tevatron", inline, *flags)
    check_round_trips(moeir, inline, ("examples", "tevatron", "dpr"), tmp_path, suffix=".e")
    convert_file(moeir, inline, "tevatron-ids", ids, *flags)
    convert_file(moeir, ids, "tevatron", back, *flags)
    assert back.read_bytes() == inline.read_bytes()
