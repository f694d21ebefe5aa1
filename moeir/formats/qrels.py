"""Judgements as TREC's; parts shared by formats that hold judgements."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from moeir import data_sources
from moeir.formats.base import Collection, Conversion, Format
from moeir.records import lines, qrels
from moeir.records.qrels import Qrels

Judgement = tuple[str, str, int]


class TrecQrels(Format):
    """Lines `query 0 document grade`: TREC's judgements, and MS MARCO's, which are tab-separated in a folder of its layout."""

    kind = "qrels"

    def __init__(self, separator: str = " ") -> None:
        self._separator = separator

    def read(self, path: Path, conversion: Conversion) -> Iterator[Judgement]:
        return iter_judgements(qrels.read_qrels(path))

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        rows = ((query, "0", document, grade) for query, document, grade in qrels.validate_judgements(items, path))
        return lines.write_rows(rows, path, self._separator)


def iter_judgements(grades: Mapping[str, Mapping[str, int]]) -> Iterator[Judgement]:
    """Query, document and grade of every judgement."""
    return ((query, document, grade) for query, documents in grades.items() for document, grade in documents.items())


def write_collection(collection: Collection, folder: Path, conversion: Conversion, writers: Mapping[str, Format]) -> int:
    """Write the files of a collection and return its number of documents.

    `writers` maps the path of the corpus, of the queries, and of the judgements of each SPLIT to their formats, in this order.
    """
    corpus_file, queries_file, qrels_file = writers
    (folder / corpus_file).parent.mkdir(exist_ok=True)
    count = writers[corpus_file].write(iter(collection.corpus), folder / corpus_file, conversion)
    writers[queries_file].write(iter(collection.queries), folder / queries_file, conversion)
    for split, grades in collection.qrels.items():
        path = folder / qrels_file.replace("SPLIT", split)
        path.parent.mkdir(exist_ok=True)
        writers[qrels_file].write(iter_judgements(grades), path, conversion)
    return count


def read_qrels_splits(folder: Path, prefix: str, suffixes: tuple[str, ...]) -> dict[str, Qrels]:
    """Judgements by split, from every file named `prefixSPLITsuffix`, in the order of file names."""
    return {split: qrels.read_qrels(file) for split, file in data_sources.split_files(folder, prefix, suffixes).items()}
