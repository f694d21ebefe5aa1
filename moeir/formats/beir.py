"""BEIR's collections and judgements, and MS MARCO's collections."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from moeir import data_sources
from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.qrels import Judgement, TrecQrels, iter_judgements
from moeir.formats.texts import JsonlTexts, Tsv, chain_texts, read_unique_texts, require_file
from moeir.records import lines, qrels
from moeir.records.qrels import Qrels


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


class BeirQrels(TrecQrels, Format):
    """A header and three tab-separated columns, query-id, corpus-id, score: BEIR's judgements."""

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        return lines.write_rows(chain([("query-id", "corpus-id", "score")], qrels.validate_judgements(items, path)), path) - 1


class Msmarco(Format):
    """A folder of collection.tsv, queries.tsv and qrels.SPLIT.tsv, tab-separated: MS MARCO's layout."""

    kind = "collection"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = sorted(path.glob("queries*.tsv*")) or [require_file(path, "queries.tsv")]
        corpus = read_unique_texts(require_file(path, "collection.tsv"))
        yield Collection(corpus, chain_texts(files), read_qrels_splits(path, "qrels.", (".tsv", ".txt")))

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        writers = {"collection.tsv": Tsv(), "queries.tsv": Tsv(), "qrels.SPLIT.tsv": TrecQrels("\t")}
        return write_collection(next(items), path, conversion, writers)


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
