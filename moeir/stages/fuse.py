"""`moeir fuse`: several runs become one; a weight can be tuned on judged queries first."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage, check_depth, check_word
from moeir.stages.evaluate import check_answers, check_groups, check_judgements, grouped, read_answers, read_groups

if TYPE_CHECKING:
    from ir_measures import Measure

    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run

TUNED, GRID = "alpha", "0.5:2.0:0.1"
MOST_STEPS = 1000
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Merge the runs of several experts into one. With --tune, try every alpha of a grid, keep the best, and say which it was."""

    run: tuple[Path, ...] = source("run", "One run per expert; repeat the flag.", names=("--runs",))
    method: str = option("How scores combine; see: moeir variants fusion.", "came-sum")
    depth: int = option("Documents kept per query.", 1000, names=("--hits", "--k"))
    tune: str | None = option("Measure to tune alpha of --method for, e.g. Success@20; among equals the smallest alpha wins.", None)
    grid: str = option("With --tune: the values of alpha, FIRST:LAST:STEP.", GRID)
    qrels: Path | None = source("qrels", "With --tune: judgements.", None)
    answers: Path | None = source("texts", "With --tune, instead of judgements: questions with answers.", None)
    corpus: Path | None = source("texts", "With --answers: the documents in which they are looked for.", None)
    match: str = option("With --answers: string (tokens, as DPR compares them) or regex.", "string")
    group_by: str | None = option("With --tune: the mean over the values of this field of the queries, not over queries.", None)
    queries: Path | None = source("texts", "With --group-by: the queries, if --answers does not hold the field.", None, names=("--topics",))
    tag: str = option("Run tag.", "moeir.fused", names=("--runtag",))
    output: Path = product("run", "Where to write; - is stdout.", STREAM)

    def check(self) -> None:
        if variants.parse(self.method).name.replace("_", "-") == "exact-sum":
            raise UsageError("--method exact-sum: a run does not hold the scores of what it lacks; use moeir search --fuse exact-sum")
        variant, given = variants.resolve("fusion", self.method)
        check_word("--tag", self.tag)
        check_depth(self.depth)
        if len(self.run) < 2:
            raise UsageError(f"fuse: expected two runs or more, found {len(self.run)}; repeat --run")
        if self.tune is None:
            if any(place is not None for place in (self.qrels, self.answers, self.corpus, self.group_by, self.queries)):
                raise UsageError("fuse: judgements and answers are for tuning; add --tune MEASURE")
            if self.grid != GRID:
                raise UsageError("fuse: --grid is for tuning; add --tune MEASURE")
            return
        if TUNED not in (one.name for one in variant.options):
            raise UsageError(f"--tune: {variant.name} has no {TUNED} to tune; hybrid has one")
        if TUNED in given:
            raise UsageError(f"--tune: --method {self.method} says {TUNED} already; leave it out, or leave out --tune")
        check_judgements("fuse --tune", self.qrels, self.answers)
        check_answers("--answers", self.answers, self.corpus, self.match)
        check_groups(self.group_by, self.queries, self.answers)
        grid(self.grid)

    def work(self) -> Counts:
        from moeir import fusion
        from moeir.records import runs

        read = [runs.read(path) for path in self.run]
        tuned = {} if self.tune is None else self._tuned(read, self.tune)
        method = self._spec(tuned[TUNED]) if tuned else self.method
        merged = fusion.fused(read, variants.bind("fusion", method), self.depth)
        runs.write(merged, self.output, tag=self.tag)
        return {"queries": len(merged), "hits": len(merged.scores), **tuned}

    def _spec(self, alpha: str) -> str:
        spec = variants.parse(self.method)
        return str(variants.Spec(spec.name, (*spec.options, (TUNED, alpha))))

    def _tuned(self, read: "Sequence[Run]", wanted: str) -> dict[str, Any]:
        """The best alpha, its measure, and what every alpha of the grid gave."""
        from moeir.evaluation import measures, tables
        from moeir.evaluation.groups import MACRO

        measure = measures.parse(wanted)
        place = self.queries or self.answers
        groups = read_groups(self.group_by, place)
        means: dict[str, float] = {}
        for alpha, run, judged in self._tried(read, measure):
            try:
                values = measures.per_query(run, judged, [measure])
            except DataError as problem:
                raise DataError(f"{self.run[0]}: {problem}") from None
            sample = values if groups is None else grouped(values, groups, str(self.group_by), place)[MACRO]
            means[alpha] = measures.overall(sample)[str(measure)]
        best = max(means, key=lambda alpha: means[alpha])  # the first of equals: the grid ascends
        name = str(measure) if groups is None else f"{measure}, {MACRO} by {self.group_by}"
        for line in tables.text([TUNED, name], [[alpha, mean] for alpha, mean in means.items()]).splitlines():
            log.info("%s", line)
        log.info("tuned: --method %s", self._spec(best))
        if len(means) > 1 and best == list(means)[-1]:
            log.info("the best is the last of the grid; a larger LAST in --grid may be better")
        return {TUNED: best, "measure": name, "grid": means}

    def _tried(self, read: "Sequence[Run]", measure: "Measure") -> "Iterator[tuple[str, Run, Qrels]]":
        """The fused run of every alpha with its judgements; what answers look at is kept until the corpus has passed by."""
        from moeir import fusion
        from moeir.evaluation import answers
        from moeir.records import qrels

        depth = self.depth if self.answers is None else min(self.depth, answers.deepest([measure]) or self.depth)
        steps = grid(self.grid)
        made = (fusion.fused(read, variants.bind("fusion", self._spec(alpha)), depth) for alpha in steps)
        if self.answers is None or self.corpus is None:
            assert self.qrels is not None
            judged = qrels.read(self.qrels)
            yield from ((alpha, run, judged) for alpha, run in zip(steps, made, strict=True))
            return
        asked = read_answers(self.answers, self.match)
        kept = list(made)
        yield from zip(steps, kept, answers.judged(kept, asked, self.corpus), strict=True)


def grid(text: str) -> list[str]:
    """The values from FIRST to LAST, as people write them.

    >>> grid("0.5:0.8:0.1"), grid("1:1:1")
    (['0.5', '0.6', '0.7', '0.8'], ['1'])
    """
    try:
        first, last, step = (Decimal(part) for part in text.split(":"))
        if not (first.is_finite() and last.is_finite() and step.is_finite() and 0 <= first <= last and step > 0):
            raise ValueError
        count = int((last - first) / step) + 1
        if count > MOST_STEPS:
            raise ValueError
    except (ValueError, ArithmeticError):
        raise UsageError(f"--grid {text}: expected FIRST:LAST:STEP, ascending from 0 or more, at most {MOST_STEPS} values") from None
    return [format(first + step * place, "f") for place in range(count)]
