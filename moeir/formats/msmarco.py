"""MS MARCO's collections."""

from collections.abc import Iterator
from pathlib import Path

from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.qrels import TrecQrels, read_qrels_splits, write_collection
from moeir.formats.texts import Tsv, chain_texts, read_unique_texts, require_file


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
