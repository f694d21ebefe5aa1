"""The eight measures of the speed comparison against ranx, if it is installed: query by query, on a run without ties."""

import random

import pytest

from moeir.evaluation import measures
from moeir.records.runs import Run
from tests.benchmarks.fusion_speed import MEASURES, THEIRS


def test_the_measures_are_those_of_ranx():
    ranx = pytest.importorskip("ranx")
    generator = random.Random(8)
    hits, grades = {}, {}
    for query in range(300):
        names = [f"d{number}" for number in generator.sample(range(5000), 120)]
        hits[f"q{query}"] = {name: float(score) for name, score in zip(names, generator.sample(range(10_000), 120), strict=True)}
        judged = generator.sample(names, generator.randint(1, 12)) + [f"e{number}" for number in range(generator.randint(0, 3))]
        grades[f"q{query}"] = {name: generator.randint(1, 3) for name in judged}
    run = ranx.Run(hits)
    ranx.evaluate(ranx.Qrels(grades), run, list(THEIRS))
    values = measures.evaluate_run(Run.from_hits(hits), grades, [measures.parse_measure(name) for name in MEASURES])
    for ours, theirs in zip(MEASURES, THEIRS, strict=True):
        for query in hits:
            assert values[ours][query] == pytest.approx(run.scores[theirs][query], abs=1e-12), (ours, query)
