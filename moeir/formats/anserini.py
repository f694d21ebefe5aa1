"""Anserini's and Pyserini's collection layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.errors import ArtifactError
from moeir.formats.anserini_texts import AnseriniTexts
from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.beir import write_trec_qrels
from moeir.formats.row_files import chain_texts, read_qrels_splits
from moeir.formats.tsv import Tsv


class Anserini(Format):
    """A folder of corpus/*.jsonl {"id", "contents"}, topics.tsv and qrels.SPLIT.txt: what Anserini and Pyserini index and search."""

    kind: ClassVar[str] = "collection"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = [file for file in sorted((path / "corpus").glob("*")) if ".json" in file.name]
        topics = sorted(path.glob("topics*.tsv*"))
        if not files or not topics:
            raise ArtifactError(f"{path}: no {'topics.tsv' if files else 'corpus/*.jsonl'}; expected corpus/*.jsonl and topics.tsv")
        yield Collection(
            chain_texts(files, conversion), chain_texts(topics, conversion), read_qrels_splits(path, "qrels.", (".txt", ".tsv"))
        )

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        collection = next(items)
        (path / "corpus").mkdir()
        count = AnseriniTexts().write(iter(collection.corpus), path / "corpus" / "documents.jsonl", conversion)
        Tsv().write(iter(collection.queries), path / "topics.tsv", conversion)
        for split, grades in collection.qrels.items():
            write_trec_qrels(dict(grades), path / f"qrels.{split}.txt", conversion, separator="space")
        return count
