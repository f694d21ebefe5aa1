"""BEIR's collections and judgements."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.qrels import Judgement, iter_judgements, read_qrels_splits, write_collection
from moeir.formats.texts import JsonlTexts, read_unique_texts, require_file
from moeir.records import lines, qrels


class Beir(Format):
    """A folder of corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv: BEIR's layout."""

    kind = "collection"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        corpus, queries = (read_unique_texts(require_file(path, name)) for name in ("corpus.jsonl", "queries.jsonl"))
        yield Collection(corpus, queries, read_qrels_splits(path / "qrels", "", (".tsv", ".txt", ".qrels", ".trec")))

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        writers = {"corpus.jsonl": JsonlTexts(), "queries.jsonl": JsonlTexts(), "qrels/SPLIT.tsv": BeirQrels()}
        return write_collection(next(items), path, conversion, writers)


class BeirQrels(Format):
    """A header and three tab-separated columns, query-id, corpus-id, score: BEIR's judgements."""

    kind = "qrels"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Judgement]:
        return iter_judgements(qrels.read_qrels(path))

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        return lines.write_rows(chain([("query-id", "corpus-id", "score")], qrels.validate_judgements(items, path)), path) - 1
