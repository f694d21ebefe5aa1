"""Runs of MS MARCO's evaluation script."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import ranked
from moeir.formats.base import Conversion, Format
from moeir.formats.reading import rows, write_rows
from moeir.records.runs import Run


class MsmarcoRun(Format):
    """Tab-separated query, document and rank: MS MARCO's runs. Read scores come from ranks: the last hit gets 1."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        row_items = rows(path, 3, "query, document, rank")
        hits = ((where, query, document, ranked.whole(rank, "rank", where)) for where, (query, document, rank) in row_items)
        yield ranked.gathered(ranked.by_rank(hits), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        ranked.lose_scores(run, conversion)
        ranked.lose_tag(run, conversion)
        return write_rows(((query, document, rank) for query, document, rank, _ in ranked.hits_of(run)), path)
