"""Scales of experts: fitted on queries with judgements, better than none where one expert is too loud."""

from functools import partial

import numpy as np
import pytest

from moeir.evaluation import measures
from moeir.fusion import formulas
from moeir.fusion.calibration import ScaleFitter
from moeir.records.runs import Run
from tests.oracles import fusion as by_dictionary

MEASURE = measures.parse_measure("nDCG@10")


def loud_and_weak(queries: range, loudness: float = 1.7) -> tuple[list[Run], dict[str, dict[str, int]]]:
    """Two experts' lists of 20 documents: the relevant one is a deviation above the others for the first, half of one for the second,
    whose scores are `loudness` times too large."""
    generator = np.random.default_rng(queries.start)
    runs: list[dict[str, dict[str, float]]] = [{}, {}]
    for query in queries:
        for run, signal, scale in zip(runs, (1.0, 0.5), (1.0, loudness), strict=True):
            scores = scale * (5 + generator.normal(size=20) + signal * (np.arange(20) == 0))
            run[f"q{query}"] = {f"d{document}": float(score) for document, score in enumerate(scores)}
    return [Run.from_hits(run) for run in runs], {f"q{query}": {"d0": 1} for query in queries}


def mean_of_sum(runs: list[Run], qrels: dict[str, dict[str, int]], scales: list[float]) -> float:
    fused = formulas.fuse_runs(runs, partial(formulas.linear, weights="+".join(map(str, scales))))
    return float(np.mean(list(measures.evaluate_run(fused, qrels, [MEASURE])[str(MEASURE)].values())))


def test_scales_quieten_an_expert_that_is_too_loud() -> None:
    runs, qrels = loud_and_weak(range(400))
    scales = ScaleFitter.from_runs(runs, qrels).fit()
    # the best weight of a score of unit noise is its signal: 1 : 0.5 / 1.7, and a geometric mean of 1
    assert scales[1] / scales[0] == pytest.approx(0.5 / 1.7, rel=0.3)
    assert np.prod(scales) == pytest.approx(1, rel=1e-3)
    other_runs, other_qrels = loud_and_weak(range(1000, 1400))
    assert mean_of_sum(other_runs, other_qrels, scales) > mean_of_sum(other_runs, other_qrels, [1, 1]) + 0.02


def test_the_overall_factor_is_free_and_each_list_has_its_own() -> None:
    runs, qrels = loud_and_weak(range(60))
    first, second = ScaleFitter.from_runs(runs, qrels).fit()
    louder = ScaleFitter.from_runs(loud_and_weak(range(60), loudness=4 * 1.7)[0], qrels).fit()
    assert louder == pytest.approx([2 * first, second / 2], rel=1e-2)


def test_an_expert_that_only_harms_has_a_hundredth_of_the_others_scale() -> None:
    runs, qrels = loud_and_weak(range(60))
    upside_down = [{query: {document: -score for document, score in runs[0].hits(query)} for query in runs[0].queries}]
    scales = ScaleFitter.from_runs([runs[0], Run.from_hits(upside_down[0])], qrels).fit()
    assert scales == [10.0, 0.1]  # both lists spread as far; their geometric mean is 1


def test_an_expert_that_only_harms_does_not_change_the_others() -> None:
    (first, second), qrels = loud_and_weak(range(200))
    generator = np.random.default_rng(9)
    third = {  # against the first, and against the relevant document: a negative weight would help
        query: {document: -score + float(generator.normal()) for document, score in first.hits(query)} for query in first.queries
    }
    alone = ScaleFitter.from_runs([first, second], qrels).fit()
    together = ScaleFitter.from_runs([first, second, Run.from_hits(third)], qrels).fit()
    assert together[1] / together[0] == pytest.approx(alone[1] / alone[0], rel=0.02)


def test_folds_hold_out_every_query_once() -> None:
    runs, qrels = loud_and_weak(range(23))
    qrels["q7"] = {"nothing found": 1}  # no list has a relevant document: not fitted on
    folds = list(ScaleFitter.from_runs(runs, qrels).fit_folds())
    assert sorted(query for _, queries in folds for query in queries) == sorted(set(qrels) - {"q7"})
    assert len({tuple(scales) for scales, _ in folds}) == len(folds) == 5
    assert list(ScaleFitter.from_runs(runs, {"q1": qrels["q1"]}).fit_folds()) == []


def test_a_sum_of_scaled_scores_is_that_of_its_dictionary() -> None:
    runs, _ = loud_and_weak(range(3))
    fused = formulas.fuse_runs([run.top(7) for run in runs], partial(formulas.linear, weights="2.5+0.4"))
    for query in fused.queries:
        lists = [{int(document[1:]): score for document, score in run.top(7).hits(query)} for run in runs]
        scaled = [{document: scale * score for document, score in hits.items()} for hits, scale in zip(lists, (2.5, 0.4), strict=True)]
        expected = by_dictionary.came_sum(scaled, 7)
        assert {int(document[1:]): score for document, score in fused.hits(query)} == pytest.approx(expected, rel=1e-6)
