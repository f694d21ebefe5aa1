"""Native measures against ir-measures."""

import pytest

from moeir.evaluation import measures
from moeir.evaluation.judged_ranks import JudgedRanks, is_native
from moeir.records.runs import Run
from tests.records.test_runs import tied_run

NAMES = ["nDCG", "nDCG@3", "AP", "AP(rel=2)", "AP(rel=2)@5", "RR", "RR(rel=2)@3", "R(rel=2)@10", "R@5"]


def test_every_value_is_that_of_ir_measures_which_alone_computes_what_has_other_options(monkeypatch):
    wanted = [measures.parse_measure(name) for name in NAMES]
    assert all(is_native(measure) for measure in wanted)
    assert not any(is_native(measures.parse_measure(name)) for name in ("nDCG(gains={1:1,2:3})@10", "P@5", "Judged@10", "Bpref"))
    for seed in range(30):
        hits, grades = tied_run(seed)
        grades |= {"absent": {"d": 1}, "none-relevant": {"d": 0}}
        run = Run.from_hits(hits | {"not-judged": {"d": 1.0}, "none-relevant": {"d": 2.0, "e": 1.0}})
        ours = measures.evaluate_run(run, grades, wanted)
        with monkeypatch.context() as patch:
            patch.setattr(measures, "is_native", lambda measure: False)
            theirs = measures.evaluate_run(run, grades, wanted)
        for name in theirs:
            assert ours[name] == pytest.approx(theirs[name], abs=1e-12), (seed, name)


def test_ranks_by_hand():
    run = Run.from_hits({"p": {"a": 3.0, "b": 2.0, "c": 1.0}, "q": {"c": 2.0, "a": 1.0}})
    judged = JudgedRanks.from_run(run, {"q": {"a": 1, "b": 2, "x": 1}, "p": {"c": 1, "a": 0}, "r": {"a": 1}})
    assert list(zip(judged.query_rows.tolist(), judged.ranks.tolist(), judged.grades.tolist(), strict=True)) == [
        *((0, 2, 1), (0, 0, 2), (0, 0, 1), (1, 1, 0), (1, 3, 1), (2, 0, 1)),
    ]
    assert judged.compute(measures.parse_measure("RR")) == {"q": 0.5, "p": pytest.approx(1 / 3), "r": 0.0}
