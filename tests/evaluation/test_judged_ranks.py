"""Native measures against trec_eval and ir-measures."""

import random

import pytest
import pytrec_eval

from moeir.evaluation import measures
from moeir.evaluation.judged_ranks import is_native
from moeir.records.runs import Run

OPTIONS = ["nDCG", "nDCG@3", "AP", "AP(rel=2)", "AP(rel=2)@5", "RR", "RR(rel=2)@3", "R(rel=2)@10", "R@5"]
TREC_EVAL = ["ndcg_cut_10", "ndcg_cut_5", "map", "recip_rank", "recall_10", "recall_1000", "P_5", "success_1", "bpref", "Rprec", "infAP"]


def tied_run(seed):
    """Few distinct scores, so that nearly every rank is decided by the id."""
    generator = random.Random(seed)
    ids = [generator.choice(["d{}", "{}", "D-{:03d}", "é{}"]).format(number) for number in range(40)]
    values = [0.0, -0.0, 1.0, 1.0 + 1e-9, 2.5, -1.0][: generator.randint(1, 6)]
    queries = [f"q{number}" for number in range(generator.randint(1, 3))]
    run = {query: {name: generator.choice(values) for name in generator.sample(ids, generator.randint(1, 30))} for query in queries}
    grades = {query: {name: generator.choice([-1, 0, 0, 1, 2, 3]) for name in generator.sample(ids, 15)} for query in queries}
    return run, grades


def test_runs_full_of_ties_score_as_trec_eval_and_ir_measures_score_them(monkeypatch):
    natives, others = ([measures.parse_measure(name) for name in names] for names in (OPTIONS, TREC_EVAL))
    assert all(is_native(measure) for measure in natives)
    assert not any(is_native(measures.parse_measure(name)) for name in ("nDCG(gains={1:1,2:3})@10", "P@5", "Judged@10", "Bpref"))
    for seed in range(60):
        hits, grades = tied_run(seed)
        trec_eval = pytrec_eval.RelevanceEvaluator(grades, set(TREC_EVAL)).evaluate(hits)
        grades |= {"absent": {"d": 1}, "none-relevant": {"d": 0}}
        run = Run.from_hits(hits | {"not-judged": {"d": 1.0}, "none-relevant": {"d": 2.0, "e": 1.0}})
        ours = measures.evaluate_run(run, grades, [*natives, *others])
        for name, measure in zip(TREC_EVAL, others, strict=True):
            for query in hits:
                assert ours[str(measure)][query] == pytest.approx(trec_eval[query][name], abs=1e-12), (seed, name, query)
        with monkeypatch.context() as patch:
            patch.setattr(measures, "is_native", lambda measure: False)
            for name, values in measures.evaluate_run(run, grades, natives).items():
                assert ours[name] == pytest.approx(values, abs=1e-12), (seed, name)
