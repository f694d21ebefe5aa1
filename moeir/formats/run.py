"""Runs as TREC's, MS MARCO's and Tevatron's."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np

from moeir.formats import base
from moeir.formats.base import Conversion, Format
from moeir.records import lines, runs, trec_columns
from moeir.records.runs import Run


class TrecRun(Format):
    """Lines `query Q0 document rank score tag`: TREC's runs, and moeir's."""

    kind = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        yield runs.read_run(path)

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        runs.write_run(run, path)
        return len(run.scores)


class _ThreeColumns(base.Format):
    """A run of tab-separated query, document, and rank or score."""

    kind = "run"
    columns: ClassVar[tuple[str, str, str]]

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        """The run; without a score column, its scores are minus the ranks."""
        table = trec_columns.read_columns(path, self.columns, 2)
        scores = table.numbers if "score" in self.columns else -table.numbers
        columns = table.queries, table.query_codes, table.document_ids, table.document_codes
        yield Run.from_columns(*columns, scores, where=f"{lines.source_name(path)}: ")

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        """Write the run and return its number of hits; a score that is minus the rank, and a tag that moeir sets, are no loss."""
        run = next(items)
        ranks = np.arange(1, len(run.scores) + 1) - np.repeat(run.starts[:-1], np.diff(run.starts))
        if "score" not in self.columns and (run.scores != -ranks).any():
            conversion.drop_or_refuse(str(path), "the scores")
        if run.tag.split(".")[0] != "moeir":
            conversion.drop_or_refuse(f"tag {run.tag!r}", "the tag of the run")
        positions = [runs.RUN_COLUMNS.index(name) for name in self.columns]
        rows = (line.split(" ") for hits in runs.format_lists(run, run.tag, str(path)) for line in hits.split("\n"))
        return lines.write_rows(([row[position] for position in positions] for row in rows), path)


class MsmarcoRun(_ThreeColumns, Format):
    """Tab-separated query, document and rank: MS MARCO's runs. Read scores are minus the ranks."""

    columns = ("query", "document", "rank")


class TevatronRun(_ThreeColumns, Format):
    """Tab-separated query, document and score: the text output of Tevatron's search."""

    columns = ("query", "document", "score")
