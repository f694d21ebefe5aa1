"""MS MARCO's top1000 files: candidates with their texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import ranked
from moeir.formats.base import Conversion, Format, looked_up, one_line, whole
from moeir.formats.reading import rows, write_rows
from moeir.records.runs import Run


class Top1000(Format):
    """Tab-separated query, document, query text and passage, best first: MS MARCO's top1000 files. Writing needs the texts."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        def hits() -> Iterator[tuple[str, str, str, int]]:
            for rank, (where, (query, document, query_text, passage)) in enumerate(rows(path, 4, "query, document, query text, passage")):
                for text_id, text, texts_by_id in ((query, query_text, conversion.queries), (document, passage, conversion.corpus)):
                    if texts_by_id is None or text_id not in texts_by_id or whole(texts_by_id[text_id]) != text:
                        conversion.lose(where, f"the text of {text_id!r} (name files that have it with --queries and --corpus)")
                yield where, query, document, rank

        yield ranked.gathered(ranked.by_rank(hits()), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        ranked.lose_scores(run, conversion)
        ranked.lose_tag(run, conversion)
        return write_rows(_rows(run, conversion), path)


def _rows(run: Run, conversion: Conversion) -> Iterator[tuple[str, ...]]:
    for query, document, _, _ in ranked.hits_of(run):
        words = whole(looked_up(conversion.queries, query, "--queries", f"query {query!r}", conversion.target))
        where = f"document {document!r}"
        passage = whole(looked_up(conversion.corpus, document, "--corpus", where, conversion.target))
        yield query, document, one_line(words, f"query {query!r}", conversion), one_line(passage, where, conversion)
