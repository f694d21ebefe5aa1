"""Ranges of measures over all orders of tied documents."""

import itertools

import pytest

from moeir.errors import UsageError
from moeir.evaluation import measures, ties
from moeir.records.runs import Run

TIE_MEASURES = ["nDCG@3", "nDCG", "AP", "RR@2", "R@2", "P@3", "Success@1", "Rprec"]


def tie_orders(hits):
    """Every list that sorting by score allows, as scores without ties."""
    by_score: dict[float, list[str]] = {}
    for document, score in sorted(hits.items(), key=lambda hit: -hit[1]):
        by_score.setdefault(score, []).append(document)
    for permutation in itertools.product(*(itertools.permutations(tied) for tied in by_score.values())):
        documents = list(itertools.chain.from_iterable(permutation))
        yield {document: float(len(documents) - rank) for rank, document in enumerate(documents)}


def test_the_range_is_that_of_all_orders():
    hits = {"q": {"a": 2.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 0.5, "f": 0.5}, "p": {"a": 1.0, "b": 1.0}, "o": {"a": 1.0}}
    grades = {"q": {"b": 2, "c": 1, "f": 1, "x": 3}, "p": {"b": 1, "a": 0}, "o": {"z": 1}, "n": {"a": 1}}
    wanted = [measures.parse_measure(name) for name in TIE_MEASURES]
    ranges = ties.tie_ranges(Run.from_hits(hits), grades, wanted)
    for measure in wanted:
        means = []
        for q, p in itertools.product(tie_orders(hits["q"]), tie_orders(hits["p"])):
            values = measures.evaluate_run(Run.from_hits({"q": q, "p": p, "o": hits["o"]}), grades, [measure])
            means.append(measures.aggregate_values(values)[str(measure)])
        assert ranges[str(measure)] == (pytest.approx(min(means)), pytest.approx(max(means))), measure
    assert ranges["nDCG@3"][0] < ranges["nDCG@3"][1]


def test_lists_with_ties_are_counted():
    assert ties.count_queries_with_ties(Run.from_hits({"q": {"a": 1.0, "b": 1.0}, "p": {"a": 1.0, "b": 0.5}, "o": {}, "n": {"a": 0.5}})) == 1


def test_a_measure_whose_extremes_are_not_known_is_refused():
    with pytest.raises(UsageError, match="--ties: Bpref: not known over orders of ties"):
        ties.tie_ranges(Run.from_hits({"q": {"a": 1.0}}), {"q": {"a": 1}}, [measures.parse_measure("bpref")])
