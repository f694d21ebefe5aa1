"""Scores of other tools against slow reimplementations of them."""

import pytest
import pytrec_eval

from moeir.evaluation import measures
from moeir.records import runs

LINES = [
    # query, document, rank, score: ties whose order in the file is not that of ids; a document with the query's id
    ("q1", "b", 1, 3.0), ("q1", "a", 2, 3.0), ("q1", "c", 3, 1.0),
    ("q2", "q2", 1, 9.0), ("q2", "a", 3, 5.0), ("q2", "b", 2, 4.0),
    ("q3", "z", 1, 1.0),
    ("q4", "q4", 1, 2.0),
    ("extra", "a", 1, 1.0),
]  # fmt: skip
QRELS = {"q1": {"a": 1, "c": 2}, "q2": {"b": 1, "q2": 1, "a": 0}, "q3": {"a": 1, "z": 0}, "q4": {"a": 1}, "never": {"a": 1}}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "run.trec"
    file.write_text("".join(f"{query} Q0 {document} {rank} {score} t\n" for query, document, rank, score in LINES))
    return file


def tool_mean(path, tool, name):
    measure = measures.parse_measure(name)
    mean = measures.aggregate_values(measures.evaluate_as(tool, runs.read_run(path), QRELS, [measure]))[str(measure)]
    return round(mean, 5) if tool == "beir" else mean


def hits_by_query(own_ids=True):
    hits: dict[str, dict[str, float]] = {query: {} for query, *_ in LINES}  # without its own document q4 has an empty list, worth 0
    for query, document, _, score in LINES:
        if own_ids or query != document:
            hits[query][document] = score
    return hits


def pytrec(name, own_ids=True):
    values = pytrec_eval.RelevanceEvaluator(QRELS, {name}).evaluate(hits_by_query(own_ids))
    return sum(value[name.replace(".", "_")] for value in values.values()) / len(values)


@pytest.mark.parametrize(("name", "theirs"), [("nDCG@2", "ndcg_cut.2"), ("AP", "map"), ("R@2", "recall.2"), ("RR", "recip_rank")])
def test_trec_eval_averages_over_judged_queries_with_hits(path, name, theirs):
    assert tool_mean(path, "trec_eval", name) == pytest.approx(pytrec(theirs), abs=1e-12)
    ours = measures.aggregate_values(measures.evaluate_run(runs.read_run(path), QRELS, [measures.parse_measure(name)]))
    assert tool_mean(path, "trec_eval", name) != pytest.approx(*ours.values())


@pytest.mark.parametrize(("name", "theirs"), [("nDCG@2", "ndcg_cut.2"), ("AP@3", "map_cut.3"), ("R@2", "recall.2"), ("P@2", "P.2")])
def test_beir_takes_the_querys_own_document_out(path, name, theirs):
    assert tool_mean(path, "beir", name) == round(pytrec(theirs, own_ids=False), 5)


def test_reciprocal_ranks_of_beir_are_over_all_judged_queries(path):
    # q1: a and b tie, b is first by its id; q2: a, of grade 0, before b; q3, q4, never: 0
    assert tool_mean(path, "beir", "RR@10") == round((1 / 2 + 1 / 2) / 5, 5)
    assert tool_mean(path, "trec_eval", "RR@10") == pytest.approx((1 / 2 + 1) / 4)
