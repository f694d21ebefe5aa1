"""Runs against judgements, for a page: means with intervals, corrected p-values, and the value of every query."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ir_measures import Measure
from scipy.special import stdtrit

from moeir.evaluation import measures, significance
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

DIGITS = 10_000  # a value is kept as a whole number of these parts: pages stay small
Values = Mapping[str, Mapping[str, Mapping[str, float]]]  # run → measure → query → value


def values(runs: Mapping[str, Run], qrels: Qrels, wanted: Sequence[Measure]) -> dict[str, dict[str, dict[str, float]]]:
    """The value of each measure for each judged query, by run."""
    return {name: measures.per_query(run, qrels, wanted) for name, run in runs.items()}


def table(found: Values, queries: Sequence[str]) -> dict[str, Any]:
    """What a page shows, by measure: mean, low and high of each run, p of each pair of runs, values [run][query] in whole numbers."""
    names = list(next(iter(found.values()), ()))
    return {
        "measures": names,
        "means": [[mean_interval([one[measure][query] for query in queries]) for one in found.values()] for measure in names],
        "p": [[_against(found, measure, base) for base in found] for measure in names],
        "values": [[[round(one[measure][query] * DIGITS) for query in queries] for one in found.values()] for measure in names],
    }


def mean_interval(sample: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean, and the ends of its interval by Student's t; a sample of one has no spread to tell of.

    >>> mean_interval([0.0, 1.0, 0.5, 0.5])
    (0.5, -0.1497, 1.1497)
    """
    mean = math.fsum(sample) / len(sample)
    if len(sample) < 2:
        return mean, mean, mean
    reach = float(stdtrit(len(sample) - 1, 0.5 + level / 2)) * float(np.std(sample, ddof=1)) / math.sqrt(len(sample))
    return mean, mean - reach, mean + reach


def corrected(chances: Sequence[float]) -> list[float]:
    """p-values of tests that were made together, each as Holm (1979) raises it.

    >>> corrected([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, highest = [0.0] * len(chances), 0.0
    for place, number in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, min(1.0, chances[number] * (len(chances) - place)))
        found[number] = highest
    return found


def _against(found: Values, measure: str, base: str) -> list[float | None]:
    """p of each run against `base`, by the paired t-test, corrected for how many there are; None for itself."""
    others = [name for name in found if name != base]
    chances = corrected([significance.paired_t(found[name][measure], found[base][measure]) for name in others])
    by_name = dict(zip(others, chances, strict=True))
    return [by_name.get(name) for name in found]
