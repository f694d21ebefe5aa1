"""MS MARCO's collection layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.beir import write_trec_qrels
from moeir.formats.row_files import chain_texts, find_file, read_qrels_splits, read_unique_texts, write_rows
from moeir.formats.tsv import text_to_row


class Msmarco(Format):
    """A folder of collection.tsv, queries.tsv and qrels.SPLIT.tsv, tab-separated: MS MARCO's layout."""

    kind: ClassVar[str] = "collection"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = sorted(path.glob("queries*.tsv*")) or [find_file(path, "queries.tsv")]
        corpus = read_unique_texts(find_file(path, "collection.tsv"), conversion)
        yield Collection(corpus, chain_texts(files, conversion), read_qrels_splits(path, "qrels.", (".tsv", ".txt")))

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        collection = next(items)
        count = write_rows((text_to_row(text, conversion) for text in collection.corpus), path / "collection.tsv")
        write_rows((text_to_row(text, conversion) for text in collection.queries), path / "queries.tsv")
        for split, grades in collection.qrels.items():
            write_trec_qrels(dict(grades), path / f"qrels.{split}.tsv", conversion, separator="tab")
        return count
