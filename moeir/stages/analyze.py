"""`moeir analyze`: what the experts have in common."""

import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.settings import option, source
from moeir.stages.base import Counts, Stage
from moeir.stages.evaluate import named_runs


@dataclass(frozen=True, kw_only=True)
class Analyze(Stage):
    """Compare the ranked lists of runs pair by pair: rank-biased overlap, or the share of documents in common."""

    run: tuple[Path, ...] = source("run", "A ranked list; repeat the flag.", names=("--runs",))
    overlap: str = option("rbo:persistence=0.9 or overlap:depth=100; see: moeir variants analysis.overlap.", "rbo")

    def check(self) -> None:
        variants.resolve("analysis.overlap", self.overlap)
        if len(self.run) < 2:
            raise UsageError(f"analyze: expected two runs or more, found {len(self.run)}; repeat --run")

    def work(self) -> Counts:
        from moeir.evaluation import tables
        from moeir.records import runs

        compare = variants.bind("analysis.overlap", self.overlap)
        read = {name: runs.read(path) for name, path in named_runs(self.run).items()}
        rows = []
        for one, other in combinations(read, 2):
            shared = [query for query in read[one].queries if query in read[other].places]
            if not shared:
                raise DataError(f"{one} and {other} have no query in common; are they runs of one query set?")
            values = [compare(read[one].documents_of(query), read[other].documents_of(query)) for query in shared]
            rows.append([one, other, len(shared), sum(values) / len(values)])
        sys.stdout.write(tables.text(["run", "run", "queries", self.overlap], rows) + "\n")
        return None
