"""Runs as TREC's."""

from collections.abc import Iterator
from pathlib import Path

from moeir.formats.base import Conversion, Format
from moeir.records import runs
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
