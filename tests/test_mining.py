from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir import mining
from moeir.records.runs import Run

BM25 = Run.from_hits({"q1": {"a": 9, "b": 8, "c": 7}, "q2": {"a": 5}, "q9": {"a": 1}})
DENSE = Run.from_hits({"q1": {"d": 0.5, "c": 0.25, "b": 0.125}, "q2": {}})
RUNS = {"bm25": BM25, "dense": DENSE}


def test_a_pool_takes_runs_in_turns_and_keeps_every_place():
    pool = mining.pool_negatives(RUNS, "q1", {"a"}, mining.band)
    assert pool == {
        "b": [("bm25", 2, 8.0), ("dense", 3, 0.125)],
        "d": [("dense", 1, 0.5)],
        "c": [("bm25", 3, 7.0), ("dense", 2, 0.25)],
    }
    assert list(pool) == ["b", "d", "c"]
    deeper = mining.pool_negatives(RUNS, "q1", {"a"}, partial(mining.band, first=2))
    assert list(deeper) == ["c", "b"] and deeper["b"] == pool["b"], "ranks outside the band are told, too"


@pytest.mark.parametrize(("grade", "positives"), [(1, ("a", "b")), (2, ("b",))])
def test_the_grade_decides_what_is_positive(grade, positives):
    qrels = {"q1": {"a": 1, "b": 2, "c": 0}}
    counts = mining.MiningCounts()
    (example,) = mining.mine_negatives({"bm25": BM25}, qrels, mining.band, counts, positive_grade=grade)
    assert example.positive_ids == positives
    assert example.negative_ids == ("c",) and counts.with_grades == len({"a", "b"} - set(positives))
    (example,) = mining.mine_negatives({"bm25": BM25}, qrels, mining.band, counts, positive_grade=grade, negative_grade=1)
    assert set(example.negative_ids) == {"a", "b", "c"} - set(positives)


def test_a_band_is_cut_before_positives_are_removed():
    assert mining.band(["a", "b", "c", "d"], {"a"}, last=2) == ["b"]
    assert mining.band(["a", "b", "c", "d"], {"b"}, first=1, last=3) == ["c"]


def test_candidates_are_what_would_be_mined():
    qrels = {"q1": {"a": 1, "b": 0}, "q2": {"a": 0}}
    bm25, dense = mining.select_candidates(RUNS, qrels, partial(mining.band, last=2))
    assert [bm25.hits(query) for query in bm25.queries] == [[("b", 8.0)], [], []]
    assert [dense.hits(query) for query in dense.queries] == [[("d", 0.5), ("c", 0.25)], []]


def test_every_query_is_mined_or_counted_and_so_is_what_is_refused():
    qrels = {"q1": {"a": 1, "b": 0}, "q2": {"a": 1}, "q3": {"a": 1}, "q4": {"a": 0}}
    for excluded, negatives, counted in (
        ({}, ("b", "d", "c"), {}),
        ({"with_answers": {"q1": {"b", "a"}}}, ("d", "c"), {"with_answers": 1}),
        ({"near_positives": {"q1": {"b", "c"}}}, ("d",), {"near_positives": 2}),
        ({"near_positives": {}}, ("b", "d", "c"), {"unfiltered": 1}),
    ):
        tally = mining.MiningCounts()
        mined = mining.mine_negatives(RUNS, qrels, partial(mining.band, last=3), tally, excluded=excluded)
        assert [(one.query_id, one.positive_ids, one.negative_ids) for one in mined] == [("q1", ("a",), negatives)]
        assert tally == mining.MiningCounts(mined=1, without_positives=2, without_hits=1, without_negatives=1, **counted)


def test_a_sample_of_the_candidates_is_kept_in_their_order_by_seed():
    def kept(size, seed, qrels):
        mined = mining.mine_negatives(RUNS, qrels, mining.band, mining.MiningCounts(), max_negatives=size, seed=seed)
        return {example.query_id: example for example in mined}

    qrels = {"q1": {"a": 1}, "q2": {"z": 1}}
    examples = [kept(2, seed, qrels)["q1"] for seed in range(20)]
    assert {example.negative_ids for example in examples} == {("b", "d"), ("b", "c"), ("d", "c")}
    assert kept(2, 7, qrels) == kept(2, 7, dict(reversed(qrels.items())))
    whole = kept(None, 7, qrels)["q1"]
    by_document = dict(zip(whole.negative_ids, whole.provenance))
    assert all(example.provenance == tuple(by_document[document] for document in example.negative_ids) for example in examples)
    assert kept(3, 7, qrels)["q1"] == whole


def likely_relevant(hits, positives, margin, relative_margin):
    """Documents near to a positive, by a loop over pairs."""
    near = set()
    for document, score in hits.items():
        for positive in positives & hits.keys():
            if margin is not None and score > hits[positive] - margin:
                near.add(document)
            size = hits[positive] if hits[positive] >= 0 else -hits[positive]
            if relative_margin is not None and not score < hits[positive] - relative_margin * size:
                near.add(document)
    return near


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdefg"), st.integers(-16, 16).map(lambda number: number / 4)), min_size=1, max_size=3),
    st.sets(st.sampled_from("abcdefg"), min_size=1, max_size=3),
    st.none() | st.sampled_from([0.0, 0.25, 2.0]),
    st.none() | st.sampled_from([0.0, 0.25, 1.0]),
)
def test_documents_near_to_a_positive_are_those_of_a_loop(lists, positives, margin, relative_margin):
    runs = [Run.from_hits({"q": hits}) for hits in lists]
    near = mining.find_near_positives(runs, {"q": dict.fromkeys(positives, 1)}, margin=margin, relative_margin=relative_margin)
    if not any(positives & hits.keys() for hits in lists):
        assert near == {}
    else:
        assert near == {"q": set().union(*(likely_relevant(hits, positives, margin, relative_margin) for hits in lists))}
