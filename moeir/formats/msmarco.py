"""MS MARCO's collection layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.beir import write_trec
from moeir.formats.folders import judged, named, union
from moeir.formats.reading import read_texts, write_rows
from moeir.formats.tsv import row


class Msmarco(Format):
    """A folder of collection.tsv, queries.tsv and qrels.SPLIT.tsv, tab-separated: MS MARCO's layout."""

    kind: ClassVar[str] = "collection"
    folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = sorted(path.glob("queries*.tsv*")) or [named(path, "queries.tsv")]
        corpus = read_texts(named(path, "collection.tsv"), conversion)
        yield Collection(corpus, union(files, conversion), judged(path, "qrels.", (".tsv", ".txt")))

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        collection = next(items)
        count = write_rows((row(text, conversion) for text in collection.corpus), path / "collection.tsv")
        write_rows((row(text, conversion) for text in collection.queries), path / "queries.tsv")
        for split, grades in collection.qrels.items():
            write_trec(dict(grades), path / f"qrels.{split}.tsv", conversion, separator="tab")
        return count
