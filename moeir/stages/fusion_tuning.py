"""`moeir fuse --tune`: choose the best value of a fusion method's option on judged queries."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.stages import side_outputs
from moeir.stages.evaluate import group_values, read_answers, read_groups

if TYPE_CHECKING:
    from ir_measures import Measure

    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run
    from moeir.stages.fuse import Fuse

TUNABLE_OPTIONS = ("alpha", "weights")  # the options that can be tuned
DEFAULT_GRIDS = {"hybrid": "0.5:2.0:0.1", "interpolation": "0:1:0.05"}
MAX_GRID_VALUES = 1000
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FusionTuner:
    """Search for the option value that maximises a measure."""

    stage: "Fuse"
    runs: "Sequence[Run]"
    measure_name: str

    @cached_property
    def qrels(self) -> "Qrels":
        """The judgements of --qrels."""
        from moeir.records import qrels

        assert self.stage.qrels is not None
        return qrels.read_qrels(self.stage.qrels)

    def tune(self) -> dict[str, Any]:
        """The best value, the measure, the score of every value tried, and the method with the best value; --save writes them."""
        from moeir.evaluation import measures, tables
        from moeir.evaluation.result_tables import MACRO
        from moeir.fusion import files, tuning
        from moeir.records import lines

        stage, measure = self.stage, measures.parse_measure(self.measure_name)
        variant, _ = variants.resolve_spec("fusion", stage.method)
        option = next(one.name for one in variant.options if one.name in TUNABLE_OPTIONS)
        name = str(measure) if stage.group_by is None else f"{measure}, {MACRO} by {stage.group_by}"
        means = partial(self._evaluate, option, measure)
        if option == "alpha":
            steps = parse_grid(stage.grid or DEFAULT_GRIDS[variant.name])
            best, scores = tuning.grid_search(steps, means)
        else:
            steps = []
            best, scores = tuning.coordinate_search(self._initial_weights(), means)
        method = self._method_with(option, best)
        for line in tables.format_table([option, name], [[step, mean] for step, mean in scores.items()]).splitlines():
            log.info("%s", line)
        log.info("tuned: --method %s", method)
        if len(steps) > 1 and best == steps[-1] and variant.name == "hybrid":
            log.info("the best value is the last of the grid; a larger LAST in --grid may be better")
        if stage.save is not None:
            provenance = {"by": "moeir fuse --tune", "measure": name, "value": scores[best], "tried": len(scores)}
            with side_outputs.write_side_output(stage, stage.save, "fusion") as partial_path:
                files.write_fusion(
                    files.SavedFusion(method, tuple(lines.strip_compression_suffix(path).stem for path in stage.run), provenance),
                    partial_path,
                )
        return {option: best, "measure": name, "grid": scores, "method": method}

    def _method_with(self, option: str, value: str) -> str:
        spec = variants.parse_spec(self.stage.method)
        return str(variants.Spec(spec.name, (*spec.options, (option, value))))

    def _initial_weights(self) -> list[list[float]]:
        """Starting points: equal weights, as in came-sum, and weights that give all lists the same mean score range."""
        spreads = [float((run.scores[run.starts[:-1]] - run.scores[run.starts[1:] - 1]).mean()) for run in self.runs]
        return [[1.0] * len(spreads), [1.0 / spread if spread > 0 else 1.0 for spread in spreads]]

    def _evaluate(self, option: str, measure: "Measure", steps: list[str]) -> list[float]:
        from moeir.evaluation import measures
        from moeir.evaluation.result_tables import MACRO

        stage, means = self.stage, []
        queries_path = stage.queries or stage.answers
        groups = read_groups(stage.group_by, queries_path)
        for run, qrels in self._fused_runs(option, measure, steps):
            try:
                values = measures.evaluate_run(run, qrels, [measure])
            except DataError as problem:
                raise DataError(f"{stage.run[0]}: {problem}") from None
            sample = values if groups is None else group_values(values, groups, str(stage.group_by), queries_path)[MACRO]
            means.append(measures.aggregate_values(sample)[str(measure)])
        return means

    def _fused_runs(self, option: str, measure: "Measure", steps: list[str]) -> "Iterator[tuple[Run, Qrels]]":
        """The fused run of every value with its judgements; with --answers all runs are kept in memory for one pass over the corpus."""
        from moeir.evaluation import answer_match
        from moeir.fusion import formulas

        stage = self.stage
        depth = stage.depth if stage.answers is None else min(stage.depth, answer_match.max_cutoff([measure]) or stage.depth)
        fused_runs = (
            formulas.fuse_runs(self.runs, variants.bind_variant("fusion", self._method_with(option, step)), depth) for step in steps
        )
        if stage.answers is None or stage.corpus is None:
            yield from ((run, self.qrels) for run in fused_runs)
            return
        all_runs = list(fused_runs)
        yield from zip(
            all_runs, answer_match.qrels_from_answers(all_runs, read_answers(stage.answers, stage.match), stage.corpus), strict=True
        )


def parse_grid(text: str) -> list[str]:
    """The decimal values from FIRST to LAST.

    >>> parse_grid("0.5:0.8:0.1"), parse_grid("1:1:1")
    (['0.5', '0.6', '0.7', '0.8'], ['1'])
    """
    try:
        first, last, step = (Decimal(part) for part in text.split(":"))
        if not (first.is_finite() and last.is_finite() and step.is_finite() and 0 <= first <= last and step > 0):
            raise ValueError
        count = int((last - first) / step) + 1
        if count > MAX_GRID_VALUES:
            raise ValueError
    except (ValueError, ArithmeticError):
        raise UsageError(f"--grid {text}: expected FIRST:LAST:STEP, ascending from 0 or more, at most {MAX_GRID_VALUES} values") from None
    return [format(first + step * number, "f") for number in range(count)]
