"""Data of an HTML page: measures of runs, pages of single queries with their documents, training charts and a projection.

Everything is columns of numbers and tables of words, in chunks that the page reads on demand.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ir_measures import Measure

from moeir.evaluation import measures, significance
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

VALUE_SCALE = 10_000  # values are stored as integers in units of 1 / 10,000 to keep pages small
RunMeasureValues = Mapping[str, Mapping[str, Mapping[str, float]]]  # run → measure → query → value


def evaluate_runs(runs: Mapping[str, Run], qrels: Qrels, wanted: Sequence[Measure]) -> dict[str, dict[str, dict[str, float]]]:
    """Value of each measure for each judged query, by run."""
    return {name: measures.evaluate_run(run, qrels, wanted) for name, run in runs.items()}


def comparison_table(by_run: RunMeasureValues, queries: Sequence[str]) -> dict[str, Any]:
    """By measure: mean, low and high of each run, p of each pair of runs, values [run][query] as integers."""
    names = list(next(iter(by_run.values()), ()))
    return {
        "measures": names,
        "means": [[_mean_with_interval([of_run[measure][query] for query in queries]) for of_run in by_run.values()] for measure in names],
        "p": [[_p_values_against(by_run, measure, base) for base in by_run] for measure in names],
        "values": [[[round(of_run[measure][query] * VALUE_SCALE) for query in queries] for of_run in by_run.values()] for measure in names],
    }


def _mean_with_interval(sample: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval."""
    return math.fsum(sample) / len(sample), *significance.confidence_interval(sample)


def _p_values_against(by_run: RunMeasureValues, measure: str, base: str) -> list[float | None]:
    """p of each run against `base` by the paired t-test, corrected by Holm; None for `base` itself."""
    others = [name for name in by_run if name != base]
    p_values = significance.correct_p_values([significance.paired_t_test(by_run[name][measure], by_run[base][measure]) for name in others], "holm")
    by_name = dict(zip(others, p_values, strict=True))
    return [by_name.get(name) for name in by_run]
