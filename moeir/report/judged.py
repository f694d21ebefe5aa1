"""Runs against judgements, for a page: means with intervals, corrected p-values, and the value of every query."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ir_measures import Measure

from moeir.evaluation import measures, significance
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

DIGITS = 10_000  # a value is kept as a whole number of these parts: pages stay small
Values = Mapping[str, Mapping[str, Mapping[str, float]]]  # run → measure → query → value


def values(runs: Mapping[str, Run], qrels: Qrels, wanted: Sequence[Measure]) -> dict[str, dict[str, dict[str, float]]]:
    """The value of each measure for each judged query, by run."""
    return {name: measures.per_query(run, qrels, wanted) for name, run in runs.items()}


def table(by_run: Values, queries: Sequence[str]) -> dict[str, Any]:
    """What a page shows, by measure: mean, low and high of each run, p of each pair of runs, values [run][query] in whole numbers."""
    names = list(next(iter(by_run.values()), ()))
    return {
        "measures": names,
        "means": [[_mean([of_run[measure][query] for query in queries]) for of_run in by_run.values()] for measure in names],
        "p": [[_against(by_run, measure, base) for base in by_run] for measure in names],
        "values": [[[round(of_run[measure][query] * DIGITS) for query in queries] for of_run in by_run.values()] for measure in names],
    }


def _mean(sample: Sequence[float]) -> tuple[float, float, float]:
    """The mean and the ends of its 95 % interval."""
    return math.fsum(sample) / len(sample), *significance.interval(sample)


def _against(by_run: Values, measure: str, base: str) -> list[float | None]:
    """p of each run against `base`, by the paired t-test, corrected for how many there are; None for itself."""
    others = [name for name in by_run if name != base]
    p_values = significance.corrected([significance.paired_t(by_run[name][measure], by_run[base][measure]) for name in others], "holm")
    by_name = dict(zip(others, p_values, strict=True))
    return [by_name.get(name) for name in by_run]
