"""trec_eval's runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format
from moeir.records import runs
from moeir.records.runs import Run as Lists


class TrecRun(Format):
    """Lines `query Q0 document rank score tag`: TREC's runs, and moeir's."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Lists]:
        yield runs.read_run(path)

    def write(self, items: Iterator[Lists], path: Path, conversion: Conversion) -> int:
        run = next(items)
        runs.write_run(run, path)
        return len(run.scores)
