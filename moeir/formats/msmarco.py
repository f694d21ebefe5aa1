"""MS MARCO's collections, runs and top1000 files."""

from collections.abc import Iterator
from pathlib import Path

from moeir.formats.base import Collection, Conversion, Format, collapse_whitespace, title_and_text
from moeir.formats.qrels import TrecQrels, read_qrels_splits, write_collection
from moeir.formats.run import (
    TabSeparatedRun,
    check_run_ids,
    drop_scores,
    drop_tag,
    iter_hits,
    read_hit_rows,
    run_from_hits,
    scores_from_ranks,
)
from moeir.formats.texts import Tsv, chain_texts, read_unique_texts, require_file
from moeir.records import lines
from moeir.records.runs import Run


class Msmarco(Format):
    """A folder of collection.tsv, queries.tsv and qrels.SPLIT.tsv, tab-separated: MS MARCO's layout."""

    kind = "collection"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = sorted(path.glob("queries*.tsv*")) or [require_file(path, "queries.tsv")]
        corpus = read_unique_texts(require_file(path, "collection.tsv"), conversion)
        yield Collection(corpus, chain_texts(files, conversion), read_qrels_splits(path, "qrels.", (".tsv", ".txt")))

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        writers = {"collection.tsv": Tsv(), "queries.tsv": Tsv(), "qrels.SPLIT.tsv": TrecQrels(separator="tab")}
        return write_collection(next(items), path, conversion, writers)


class MsmarcoRun(TabSeparatedRun, Format):
    """Tab-separated query, document and rank: MS MARCO's runs. Read scores come from ranks: the last hit gets 1."""

    columns = ("query", "document", "rank")


class Top1000(Format):
    """Tab-separated query, document, query text and passage, best first: MS MARCO's top1000 files. Writing needs the texts."""

    kind = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        def hits() -> Iterator[tuple[str, str, str, int]]:
            rows = read_hit_rows(path, 4, "query, document, query text, passage")
            for rank, (where, (query, document, query_text, passage)) in enumerate(rows):
                for text_id, text, texts_by_id in ((query, query_text, conversion.queries), (document, passage, conversion.corpus)):
                    if texts_by_id is None or text_id not in texts_by_id or title_and_text(texts_by_id[text_id]) != text:
                        conversion.drop_or_refuse(where, f"the text of {text_id!r} (name files that have it with --queries and --corpus)")
                yield where, query, document, rank

        yield run_from_hits(scores_from_ranks(hits()), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = check_run_ids(next(items), path)
        drop_scores(run, conversion)
        drop_tag(run, conversion)
        return lines.write_rows(_to_rows(run, conversion), path)


def _to_rows(run: Run, conversion: Conversion) -> Iterator[tuple[str, ...]]:
    for query, document, _, _ in iter_hits(run):
        sources = (("queries", query, f"query {query!r}"), ("corpus", document, f"document {document!r}"))
        looked_up = [(title_and_text(conversion.look_up_text(source, text_id, where)), where) for source, text_id, where in sources]
        yield query, document, *(collapse_whitespace(words, where, conversion) for words, where in looked_up)
