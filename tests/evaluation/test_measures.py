"""Names of measures, and values of runs."""

import re

import pytest

from moeir.errors import DataError, UsageError
from moeir.evaluation import measures
from moeir.evaluation.measures import Coverage
from moeir.records.runs import Run

QRELS = {"q1": {"a": 1, "b": 0}, "q2": {"a": 2, "c": 1, "d": -1}, "none": {"a": 0}, "absent": {"a": 1}}
RUN = Run.from_hits({"q1": {"b": 2, "a": 1}, "q2": {"d": 3, "x": 2, "c": 1}, "none": {"a": 1}, "extra": {"a": 1}})


def values(*names, run=RUN, qrels=QRELS):
    return measures.evaluate_run(run, qrels, [measures.parse_measure(name) for name in names])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nDCG@10", "nDCG@10"), ("NDCG@10", "nDCG@10"), ("ndcg@10", "nDCG@10"), ("ndcg_cut_10", "nDCG@10"), ("ndcg_cut.10", "nDCG@10"),
        ("ndcg_10", "nDCG@10"), ("ndcg", "nDCG"), ("RR@10", "RR@10"), ("MRR@10", "RR@10"), ("mrr", "RR"), ("recip_rank", "RR"),
        ("R@100", "R@100"), ("recall_1000", "R@1000"), ("Recall@50", "R@50"), ("map", "AP"), ("map_cut_10", "AP@10"), ("MAP", "AP"),
        ("P_10", "P@10"), ("precision@5", "P@5"), ("success_20", "Success@20"), ("hit@20", "Success@20"), ("Rprec", "Rprec"),
        ("bpref", "Bpref"), ("infAP", "infAP"), ("set_F", "SetF"), (" R(rel=2)@1000 ", "R(rel=2)@1000"), ("judged@10", "Judged@10"),
        ("nDCG(gains={1:1,2:3})@10", "nDCG(gains={2:3})@10"), ("nDCG(judged_only=True)@10", "nDCG(judged_only=True)@10"),
    ],
)  # fmt: skip
def test_names_of_the_field_are_understood(name, expected):
    assert str(measures.parse_measure(name)) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nDGC@10", "no measure is called 'nDGC@10' (did you mean nDCG"),
        ("ndcg10", "no measure is called 'ndcg10' (did you mean nDCG@10?)"),
        ("errx@10", "no measure is called 'errx@10' (did you mean ERR or RR or NERR9?)"),
        ("", "no measure is called ''"),
        ("nDCG@", "no measure is called 'nDCG@'"),
        ("nDCG@ten", "measure 'nDCG@ten' cannot be read"),
        ("nDCG@0", "measure 'nDCG@0': cutoff is 0; expected numbers from 1 to 2147483647"),
        ("nDCG@1.5", "measure 'nDCG@1.5' cannot be read: invalid param cutoff=1.5"),
        ("R", "measure 'R' cannot be read: invalid param cutoff="),
        ("R(relevance=2)@10", "measure 'R(relevance=2)@10' cannot be read: unsupported params found: ['relevance']"),
        ("R(2)@10", "measure 'R(2)@10' cannot be read: "),
        ("R(rel=2@10", "no measure is called 'R(rel=2@10'"),
        ("R(rel=__import__)@10", "measure 'R(rel=__import__)@10' cannot be read"),
        ("ERR@20", "measure 'ERR@20' is not computed here"),
        ("IPrec@0.1", "measure 'IPrec@0.1' is not computed here"),
        ("RBP(p=0.8)", "measure 'RBP(p=0.8)' is not computed here"),
        ("nDCG(dcg='exp-log2')@10", "measure \"nDCG(dcg='exp-log2')@10\" is not computed here"),
    ],
)
def test_unknown_measures_are_refused_with_what_is_near(name, message):
    with pytest.raises(UsageError) as caught:
        measures.parse_measure(name)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value) and ("gains=" in str(caught.value)) == ("dcg=" in name)  # advised only to those who ask for them


FORMS = ("nDCG(gains={{1:{}}})@5", "nDCG(gains={{{}:1}})@5", "Bpref(rel={})", "P@{}")
BAD_NUMBERS = (-1, -(2**31), 10**30, 2**63 - 1, "True", "'a'")


def test_options_and_grades_that_break_the_libraries_are_refused():
    names = [form.format(number) for form in FORMS for number in BAD_NUMBERS]
    names += [f"SetF(beta={beta})" for beta in ("0.0", "1e-9", "1e300")]
    for name in (*names, "Bpref(rel=0)", "Bpref(rel=20000)", "Judged@0", "nDCG(gains={1:1.5})@5"):
        with pytest.raises(UsageError, match=rf"^measure {re.escape(repr(name))}(: | cannot be read: )"):
            measures.parse_measure(name)
    assert values("SetF(beta=0.001)")["SetF(beta=0.001)"] == pytest.approx(values("SetP")["SetP"], abs=1e-3)  # precision alone
    for name in ("Bpref", "SetF", "infAP", "nDCG(judged_only=True)@5"):
        with pytest.raises(DataError, match="query 'q1': a grade of 1000000000"):
            values(name, qrels=QRELS | {"q1": QRELS["q1"] | {"a": 10**9}})


def test_every_judged_query_has_a_value_and_no_other():
    by_measure = values("RR@10", "nDCG@10", "R@1", "P@2", "AP", "Judged@2", "Success@3")
    assert all(list(by_query) == list(QRELS) for by_query in by_measure.values())
    assert by_measure["RR@10"] == {"q1": 0.5, "q2": 1 / 3, "none": 0.0, "absent": 0.0}
    assert by_measure["Judged@2"] == {"q1": 1.0, "q2": 0.5, "none": 1.0, "absent": 0.0}
    assert by_measure["nDCG@10"]["q2"] == pytest.approx((1 / 2) / (2 + 1 / 1.584962500721156))  # negative grades gain nothing


def test_a_cut_does_not_change_a_measure():
    hits = {f"q{number}": {f"d{document}": float((document * 7 + number) % 13) for document in range(60)} for number in range(20)}
    qrels = {query: {f"d{document}": (document + len(query)) % 4 - 1 for document in range(0, 60, 3)} for query in hits}
    run, names = Run.from_hits(hits), ("nDCG@10", "RR@10", "R@20", "P@5", "AP@10", "Success@3", "Judged@5", "nDCG(gains={1:2})@10")
    together = values(*names, "AP", "P(judged_only=True)@5", run=run, qrels=qrels)
    assert values("P(judged_only=True)@5", "Judged@1", run=run, qrels=qrels)["P(judged_only=True)@5"] == together["P(judged_only=True)@5"]
    for name in names:
        assert values(name, run=run, qrels=qrels)[name] == together[name]
        assert values(name, run=run.top(20), qrels=qrels)[name] == together[name]


def test_batches_of_queries_change_nothing(monkeypatch):
    whole = values("Bpref", "Judged@2", "NumRel")
    monkeypatch.setattr(measures, "_QUERIES_PER_BATCH", 1)
    assert values("Bpref", "Judged@2", "NumRel") == whole


def test_means_count_every_judged_query_and_counts_are_summed_and_coverage_counts_both_sides():
    means = measures.aggregate_values(values("RR@10", "NumRel", "NumRet", "NumQ"))
    assert means == {"RR@10": pytest.approx((1 / 2 + 1 / 3) / 4), "NumRel": 4.0, "NumRet": 6.0, "NumQ": 4.0}
    assert measures.aggregate_values(values("NumQ")) == {"NumQ": 4.0}
    assert measures.aggregate_values({"RR": {}}) == {"RR": 0.0}
    counts = Coverage(judged=4, returned=4, missing=1, extra=1, depth=2, unjudged_at_depth=1 / 5)
    assert measures.compute_coverage(RUN, QRELS, depth=2) == counts
    assert measures.compute_coverage(Run.from_hits({}), QRELS) == Coverage(4, 0, 4, 0, depth=10, unjudged_at_depth=0.0)


def test_a_run_of_another_collection_is_refused():
    message = r"run of another collection: it shares no query with the judgements \(it has 'q1', they have '7'\)"
    with pytest.raises(DataError, match=message):
        values("AP", qrels={"7": {"a": 1}})
    with pytest.raises(DataError, match="run of another collection"):
        values("AP", run=Run.from_hits({}))
