from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import UsageError
from moeir.fusion import formulas
from moeir.fusion.score_lists import ScoreLists
from moeir.records.runs import Run
from moeir.variants import bind_variant
from tests.oracles import fusion as by_dictionary

scores = st.floats(-1000, 1000, width=32)
lists = st.lists(st.dictionaries(st.integers(0, 9), scores, max_size=8), max_size=4)

LEXICAL = {4: 9.0, 7: 5.0}
DENSE = {7: 0.5, 2: 0.25, 9: 0.25}


def best_first(hits):
    return dict(sorted(hits.items(), key=lambda hit: -hit[1]))


def cut(hits, depth):
    return dict(list(best_first(hits).items())[:depth])


def to_arrays(hits):
    return np.array(list(hits), dtype=np.int64), np.array(list(hits.values()), dtype=np.float32)


def merge_hits(merge, *hits, depth=None):
    documents, values = merge([ScoreLists.from_hits(to_arrays(best_first(one)), depth) for one in hits])
    assert values.dtype == np.float32
    return dict(zip(documents.tolist(), values.tolist(), strict=True))


depths = st.integers(1, 10)  # lists are as long or shorter


@given(lists, depths)
def test_a_missing_document_is_worth_the_kth_score_of_a_list_that_has_one(hits, depth):
    hits = [cut(one, depth) for one in hits]
    expected = by_dictionary.came_sum(hits, depth)
    rounded = {document: float(np.float32(score)) for document, score in expected.items()}
    assert merge_hits(formulas.came_sum, *hits, depth=depth) == rounded


def test_a_list_that_ends_before_the_depth_misses_documents_that_score_nothing():
    """A lexical list of two hits at depth 3: every other document shares no term with the query, so document 1 has 0 + 0.2, not 5.2."""
    lexical, dense = {4: 9.0, 7: 5.0}, {4: 0.75, 7: 0.5, 1: 0.25}
    assert merge_hits(formulas.came_sum, lexical, dense, depth=3) == {1: 0.25, 4: 9.75, 7: 5.5}
    assert merge_hits(formulas.came_sum, lexical, {1: 0.2, 2: 0.15, 3: 0.1}, depth=3)[1] == float(np.float32(0.2))
    assert merge_hits(formulas.came_sum, lexical, dense, depth=2) == {1: 5.25, 4: 9.75, 7: 5.5}  # K hits: the second is the K-th
    assert merge_hits(partial(formulas.linear, weights="2+4"), lexical, dense, depth=3) == {1: 1.0, 4: 21.0, 7: 12.0}
    # scores may be negative: then the bound is the last of them
    assert merge_hits(formulas.came_sum, {4: 1.0, 7: -2.0}, {1: 0.5, 4: 0.25, 7: 0.0}, depth=3) == {1: -1.5, 4: 1.25, 7: -2.0}


@pytest.mark.parametrize("formula", [formulas.came_sum, formulas.sumrr])
def test_the_depth_of_a_run_is_its_own_or_its_longest_list(formula):
    lexical = Run.from_hits({"q1": {"d4": 9, "d7": 5}, "q2": {"d1": 3, "d2": 2, "d3": 1}})
    dense = Run.from_hits({"q1": {"d1": 0.5, "d4": 0.25, "d7": 0.125}})
    missing = {formulas.came_sum: (0.0, 0.0), formulas.sumrr: (1 / 3, 1 / 8)}[formula]
    own = {formulas.came_sum: 0.5, formulas.sumrr: 1.0}[formula]
    for depth, score in zip((None, 8), missing, strict=True):
        fused = dict(formulas.fuse_runs([replace(lexical, depth=depth), dense], formula).hits("q1"))
        assert fused["d1"] == float(np.float32(own + score))
    assert (lexical.list_depth, lexical.top(2).list_depth, replace(lexical, depth=8).top(5).list_depth) == (3, 2, 5)


@given(lists, depths)
def test_every_method_is_that_of_its_dictionary(hits, depth):
    hits = ordered = [cut(one, depth) for one in hits]
    assert merge_hits(formulas.rrf, *hits) == pytest.approx(by_dictionary.rrf(ordered, 60), rel=1e-6)
    for name, tolerance in {"combsum": 1e-3, "zscore": 1e-4, "normsum": 1e-6, "normmax": 1e-6, "combmnz": 1e-6}.items():
        assert merge_hits(getattr(formulas, name), *hits) == pytest.approx(getattr(by_dictionary, name)(ordered), abs=tolerance), name
    assert merge_hits(formulas.sumrr, *hits, depth=depth) == pytest.approx(by_dictionary.sumrr(ordered, depth), abs=1e-6)
    assert merge_hits(formulas.maxrr, *hits, depth=depth) == pytest.approx(by_dictionary.maxrr(ordered, depth), abs=1e-6)
    weights = [0.5, 2.0, 1.0, 0.25][: len(hits)]
    if hits:
        merge = partial(formulas.linear, weights="+".join(map(str, weights)))
        assert merge_hits(merge, *hits, depth=depth) == pytest.approx(by_dictionary.linear(ordered, weights, depth), abs=1e-3)


NAMES = ("came_sum", "combsum", "rrf", "zscore", "normsum", "normmax", "sumrr", "maxrr", "combmnz")
FORMULAS = {name: getattr(formulas, name) for name in NAMES} | {
    "hybrid": partial(formulas.hybrid, alpha=0.3, depth=4, normalise="centred"),
    "linear": partial(formulas.linear, weights="1+0.3"),
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_many_queries_at_once_fuse_as_each_alone(formula, monkeypatch):
    """Two runs of 40 queries, some missing from one run: fused in one block, in many, and query by query."""
    generator = np.random.default_rng(0)
    hits_by_run = [
        {
            f"q{query}": {f"d{document}": float(generator.integers(0, 9)) / 8 for document in generator.choice(30, 12, replace=False)}
            for query in generator.permutation(40)
            if query % 7 != side
        }
        for side in range(2)
    ]
    both, merge = [Run.from_hits(hits) for hits in hits_by_run], FORMULAS[formula]
    whole = formulas.fuse_runs(both, merge, depth=9)
    monkeypatch.setattr(formulas, "_HITS_PER_BLOCK", 60)
    blocks = formulas.fuse_runs(both, merge, depth=9)
    assert (whole.starts.tolist(), whole.documents.tolist(), whole.scores.tolist()) == (
        *(blocks.starts.tolist(), blocks.documents.tolist(), blocks.scores.tolist()),
    )
    for query in whole.queries:
        one = formulas.fuse_runs([Run.from_hits({query: hits.get(query, {})}) for hits in hits_by_run], merge, depth=9)
        assert one.hits(query) == whole.hits(query)


def test_the_rows_of_apart_add_up_to_the_scores():
    for merge in FORMULAS.values():
        documents, parts = merge([to_arrays(LEXICAL), to_arrays(DENSE)], apart=True)
        assert parts.sum(axis=0).astype(np.float32).tolist() == list(merge_hits(merge, LEXICAL, DENSE).values())
        assert documents.tolist() == [2, 4, 7, 9]


@pytest.mark.parametrize(("spec", "lists", "words"), [
    ("linear:weights=1+x", 2, r"linear:weights=1\+x: expected 2 finite numbers"),
    ("linear:weights=1+2+3", 2, r"linear:weights=1\+2\+3: expected 2 finite numbers"),
    ("rrf:constant=-1", 2, "rrf:constant=-1.0: expected 0 or more"), ("hybrid:alpha=-1", 2, "hybrid:alpha=-1.0: expected"),
    ("hybrid:normalise=l2", 2, "hybrid:normalise=l2: expected"),
    ("hybrid:depth=0", 2, "hybrid:depth=0: expected"), ("hybrid", 1, "hybrid: expected two runs, found 1"),
])  # fmt: skip
def test_what_a_formula_cannot_do_it_says(spec, lists, words):
    with pytest.raises(UsageError, match=words):
        bind_variant("fusion", spec)([to_arrays(DENSE)] * lists)


@given(st.tuples(lists.filter(lambda hits: len(hits) > 1), st.sampled_from([0.0, 0.3, 1.0, 1.7]), st.integers(1, 8), st.booleans()))
def test_a_hybrid_matches_its_dictionary(case):
    hits, alpha, depth, centred = case
    merge = partial(formulas.hybrid, alpha=alpha, depth=depth, normalise="centred" if centred else "none")
    expected = by_dictionary.hybrid(*map(best_first, hits[:2]), alpha, depth, centred)
    assert merge_hits(merge, *hits[:2]) == {document: float(np.float32(score)) for document, score in expected.items()}


def test_runs_with_different_documents_and_queries_align():
    first = Run.from_hits({"q1": {"a": 3, "b": 2}, "q2": {"z": 1}})
    second = Run.from_hits({"q3": {"b": 1}, "q1": {"c": 5, "b": 4}})
    fused = formulas.fuse_runs([first, second], formulas.came_sum)
    assert fused.queries == ["q1", "q2", "q3"]
    assert fused.hits("q1") == [("c", 7.0), ("a", 7.0), ("b", 6.0)]
    assert (fused.hits("q2"), fused.hits("q3")) == ([("z", 1.0)], [("b", 1.0)])
    assert formulas.fuse_runs([first, second], formulas.came_sum, depth=1).documents_of("q1") == ["c"]
    first, second = Run.from_hits({"q1": {"a": 1, "b": 2}}), Run.from_hits({"q2": {"a": 1, "b": 2}})
    run = formulas.fuse_runs([first, second], partial(formulas.hybrid, alpha=0.5))  # one side lacks the query
    assert (run.hits("q1"), run.hits("q2")) == ([("b", 2.0), ("a", 1.0)], [("b", 1.0), ("a", 0.5)])


def test_runs_over_the_same_names_and_no_runs_at_all_fuse():
    run = Run.from_hits({"q": {"a": 1, "b": 2}, "none": {}})
    assert formulas.fuse_runs([run, run], formulas.combsum).hits("q") == [("b", 4.0), ("a", 2.0)]
    assert formulas.fuse_runs([run], formulas.rrf).queries == ["q", "none"]
    assert len(formulas.fuse_runs([], formulas.rrf)) == 0
