"""BEIR's collection layout."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.beir_qrels import QRELS_HEADER
from moeir.formats.qrels import TrecQrels
from moeir.formats.row_files import find_file, read_qrels_splits, read_unique_texts, write_rows
from moeir.formats.texts import JsonlTexts

QRELS_SUFFIXES = (".tsv", ".txt", ".qrels", ".trec")


class Beir(Format):
    """A folder of corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv: BEIR's layout."""

    kind: ClassVar[str] = "collection"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        corpus, queries = (read_unique_texts(find_file(path, name), conversion) for name in ("corpus.jsonl", "queries.jsonl"))
        yield Collection(corpus, queries, read_qrels_splits(path / "qrels", "", QRELS_SUFFIXES))

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        collection = next(items)
        count = JsonlTexts().write(iter(collection.corpus), path / "corpus.jsonl", conversion)
        JsonlTexts().write(iter(collection.queries), path / "queries.jsonl", conversion)
        if collection.qrels:
            (path / "qrels").mkdir()
        for split, grades in collection.qrels.items():
            write_rows(chain([QRELS_HEADER], _iter_judgements(grades)), path / "qrels" / f"{split}.tsv")
        return count


def _iter_judgements(grades: dict[str, dict[str, int]]) -> Iterator[tuple[str, str, int]]:
    return ((query, document, grade) for query, documents in grades.items() for document, grade in documents.items())


def write_trec_qrels(grades: dict[str, dict[str, int]], path: Path, conversion: Conversion, *, separator: str) -> None:
    """Write judgements as TREC qrels, four columns."""
    TrecQrels(separator=separator).write(_iter_judgements(grades), path, conversion)
