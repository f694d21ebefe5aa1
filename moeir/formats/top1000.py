"""MS MARCO's top1000 files: candidates with their texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import row_files
from moeir.formats.base import Conversion, Format, collapse_whitespace, look_up_text, title_and_text
from moeir.formats.row_files import read_rows, write_rows
from moeir.records.runs import Run


class Top1000(Format):
    """Tab-separated query, document, query text and passage, best first: MS MARCO's top1000 files. Writing needs the texts."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        def hits() -> Iterator[tuple[str, str, str, int]]:
            for rank, (where, (query, document, query_text, passage)) in enumerate(
                read_rows(path, 4, "query, document, query text, passage")
            ):
                for text_id, text, texts_by_id in ((query, query_text, conversion.queries), (document, passage, conversion.corpus)):
                    if texts_by_id is None or text_id not in texts_by_id or title_and_text(texts_by_id[text_id]) != text:
                        conversion.drop_or_refuse(where, f"the text of {text_id!r} (name files that have it with --queries and --corpus)")
                yield where, query, document, rank

        yield row_files.run_from_hits(row_files.scores_from_ranks(hits()), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        row_files.drop_scores(run, conversion)
        row_files.drop_tag(run, conversion)
        return write_rows(_to_rows(run, conversion), path)


def _to_rows(run: Run, conversion: Conversion) -> Iterator[tuple[str, ...]]:
    for query, document, _, _ in row_files.iter_hits(run):
        words = title_and_text(look_up_text(conversion.queries, query, "--queries", f"query {query!r}", conversion.target))
        where = f"document {document!r}"
        passage = title_and_text(look_up_text(conversion.corpus, document, "--corpus", where, conversion.target))
        yield query, document, collapse_whitespace(words, f"query {query!r}", conversion), collapse_whitespace(passage, where, conversion)
