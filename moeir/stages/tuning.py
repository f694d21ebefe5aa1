"""`moeir fuse --tune`: choose the best value of a fusion method's option on judged queries."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.stages import besides
from moeir.stages.evaluate import grouped, read_answers, read_groups

if TYPE_CHECKING:
    from ir_measures import Measure

    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run
    from moeir.stages.fuse import Fuse

TUNED = ("alpha", "weights")  # the options that can be tuned
GRIDS = {"hybrid": "0.5:2.0:0.1", "interpolation": "0:1:0.05"}
MOST_STEPS = 1000
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tuning:
    """Search for the option value that maximises a measure."""

    stage: "Fuse"
    read: "Sequence[Run]"
    wanted: str

    @cached_property
    def judged(self) -> "Qrels":
        """The judgements of --qrels."""
        from moeir.records import qrels

        assert self.stage.qrels is not None
        return qrels.read(self.stage.qrels)

    def tuned(self) -> dict[str, Any]:
        """The best value, the measure, the score of every value tried, and the method with the best value; --save writes them."""
        from moeir.evaluation import measures, tables
        from moeir.evaluation.groups import MACRO
        from moeir.learned_fusion import files, tuning
        from moeir.records import lines

        stage, measure = self.stage, measures.parse(self.wanted)
        variant, _ = variants.resolve("fusion", stage.method)
        option = next(one.name for one in variant.options if one.name in TUNED)
        name = str(measure) if stage.group_by is None else f"{measure}, {MACRO} by {stage.group_by}"
        means = partial(self._means, option, measure)
        if option == "alpha":
            steps = grid(stage.grid or GRIDS[variant.name])
            best, scores = tuning.best_of(steps, means)
        else:
            steps = []
            best, scores = tuning.coordinates(self._starts(), means)
        method = self._spec(option, best)
        for line in tables.text([option, name], [[step, mean] for step, mean in scores.items()]).splitlines():
            log.info("%s", line)
        log.info("tuned: --method %s", method)
        if len(steps) > 1 and best == steps[-1] and variant.name == "hybrid":
            log.info("the best value is the last of the grid; a larger LAST in --grid may be better")
        if stage.save is not None:
            provenance = {"by": "moeir fuse --tune", "measure": name, "value": scores[best], "tried": len(scores)}
            with besides.written(stage, stage.save, "fusion") as partial_path:
                files.write(files.Found(method, tuple(lines.stem(path).stem for path in stage.run), provenance), partial_path)
        return {option: best, "measure": name, "grid": scores, "method": method}

    def _spec(self, option: str, value: str) -> str:
        spec = variants.parse(self.stage.method)
        return str(variants.Spec(spec.name, (*spec.options, (option, value))))

    def _starts(self) -> list[list[float]]:
        """Starting points: equal weights, as in came-sum, and weights that give all lists the same mean score range."""
        spreads = [float((run.scores[run.starts[:-1]] - run.scores[run.starts[1:] - 1]).mean()) for run in self.read]
        return [[1.0] * len(spreads), [1.0 / spread if spread > 0 else 1.0 for spread in spreads]]

    def _means(self, option: str, measure: "Measure", steps: list[str]) -> list[float]:
        from moeir.evaluation import measures
        from moeir.evaluation.groups import MACRO

        stage, means = self.stage, []
        queries_path = stage.queries or stage.answers
        groups = read_groups(stage.group_by, queries_path)
        for run, qrels in self._tried(option, measure, steps):
            try:
                values = measures.per_query(run, qrels, [measure])
            except DataError as problem:
                raise DataError(f"{stage.run[0]}: {problem}") from None
            sample = values if groups is None else grouped(values, groups, str(stage.group_by), queries_path)[MACRO]
            means.append(measures.overall(sample)[str(measure)])
        return means

    def _tried(self, option: str, measure: "Measure", steps: list[str]) -> "Iterator[tuple[Run, Qrels]]":
        """The fused run of every value with its judgements; with --answers all runs are kept in memory for one pass over the corpus."""
        from moeir import fusion
        from moeir.evaluation import answers

        stage = self.stage
        depth = stage.depth if stage.answers is None else min(stage.depth, answers.deepest([measure]) or stage.depth)
        fused_runs = (fusion.fused(self.read, variants.bind("fusion", self._spec(option, step)), depth) for step in steps)
        if stage.answers is None or stage.corpus is None:
            yield from ((run, self.judged) for run in fused_runs)
            return
        all_runs = list(fused_runs)
        yield from zip(all_runs, answers.judged(all_runs, read_answers(stage.answers, stage.match), stage.corpus), strict=True)


def grid(text: str) -> list[str]:
    """The decimal values from FIRST to LAST.

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
    return [format(first + step * number, "f") for number in range(count)]
