"""`moeir mine-negatives`: what the runs rank high and the judgements do not know becomes negatives."""

import logging
from dataclasses import dataclass
from pathlib import Path

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import Counts, Stage
from moeir.stages.evaluate import named_runs

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MineNegatives(Stage):
    """Make training examples: positives from judgements, negatives from the union of runs, each with its source run, rank and score."""

    run: tuple[Path, ...] = source("run", "Ranked lists of the training queries; repeat the flag.", names=("--runs",))
    qrels: Path = source("qrels", "Judgements of the training queries.")
    method: str = option("Which ranks are negatives; see: moeir variants mining.", "band:first=0,last=200")
    positive_grade: int = option("Smallest grade that makes a document positive.", 1)
    output: Path = product("examples", "JSON lines to write; - is stdout.")

    def check(self) -> None:
        variants.resolve("mining", self.method)
        if not self.run:
            raise UsageError("mine-negatives: expected at least one --run")

    def work(self) -> Counts:
        from moeir import mining
        from moeir.records import examples, qrels, runs

        tally = mining.Tally()
        read = {name: runs.read(path) for name, path in named_runs(self.run).items()}
        made = mining.mined(read, qrels.read(self.qrels), variants.bind("mining", self.method), tally, positive_grade=self.positive_grade)
        examples.write(made, self.output)
        if not tally.mined:
            places = ", ".join(map(str, self.run))
            raise DataError(f"{self.qrels}: no query has both positives and negatives in {places}; do the ids agree?")
        log.info(
            "%d examples; skipped %d queries without positives, %d without hits, %d without negatives",
            *(tally.mined, tally.without_positives, tally.without_hits, tally.without_negatives),
        )
        return vars(tally)
