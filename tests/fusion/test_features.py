import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.fusion import features, formulas
from moeir.fusion.features import WordCounts
from moeir.fusion.score_lists import ScoreLists
from moeir.records.runs import Run
from tests.oracles import fusion as by_dictionary
from tests.oracles import learned_fusion as oracle

hits = st.dictionaries(st.integers(0, 30), st.floats(-100, 100, width=16), max_size=25)
QUERY = ["query: what is the owl", "the cat and the bat", "the owl"]


def best_first(hits_of_list):
    return dict(sorted(hits_of_list.items(), key=lambda hit: -hit[1]))


def to_arrays(hits_of_list):
    return np.array(list(hits_of_list), np.int64), np.array(list(hits_of_list.values()), np.float64)


@given(st.lists(hits, min_size=1, max_size=3))
def test_features_match_their_dictionaries(lists):
    ordered = [best_first(hits_of_list) for hits_of_list in lists]
    computed = features.compute_features([ScoreLists.from_hits(to_arrays(hits_of_list), depth=25) for hits_of_list in ordered])
    documents = sorted({document for hits_of_list in lists for document in hits_of_list})
    assert computed.documents.tolist() == documents and set(computed.query_rows.tolist()) <= {0}
    for row, document in enumerate(documents):
        assert computed.document_features[:, row] == pytest.approx(oracle.document_features(ordered, document), abs=1e-9)
        assert computed.best_rank[row] == min(
            list(hits_of_list).index(document) + 1 for hits_of_list in ordered if document in hits_of_list
        )
    assert computed.scores.sum(axis=0) == pytest.approx(list(by_dictionary.came_sum(ordered, 25).values()), abs=1e-6)
    expected = [value for hits_of_list in ordered for value in oracle.list_features(hits_of_list)]
    expected += [value for pair in itertools.combinations(ordered, 2) for value in oracle.list_pair_features(*pair)]
    assert computed.query_features[0] == pytest.approx(expected, abs=1e-9)


def test_features_by_hand():
    lexical, dense = (np.array([4, 7, 1]), np.array([9.0, 6.0, 5.0])), (np.array([7, 2]), np.array([0.5, 0.25]))
    computed = features.compute_features([lexical, dense])
    assert computed.documents.tolist() == [1, 2, 4, 7]
    assert computed.scores.tolist() == [[5.0, 5.0, 9.0, 6.0], [0.25, 0.25, 0.25, 0.5]]
    assert computed.document_features[0].tolist() == [0.0, 0.0, 1.0, 0.25]  # of the first: from 0 to 1
    assert computed.document_features[6].tolist() == [0.0, 0.5, 0.0, 1.0]  # of the second: 1 / rank
    assert computed.document_features[-1].tolist() == [0.0, 0.0, 0.0, 1.0]  # held by all
    # one document in common, at ranks 2 and 1: from depth 2 on it counts 1 / depth
    overlap = sum(0.1 * 0.9 ** (depth - 1) / depth for depth in range(2, 101))
    assert computed.query_features[0].tolist()[10:] == pytest.approx([0.1, 0.01, overlap])


def test_many_queries_at_once_have_the_features_of_each_alone():
    generator = np.random.default_rng(0)
    hits_by_run = [
        {f"q{query}": {f"d{row}": float(generator.normal()) for row in generator.choice(30, 12, replace=False)} for query in range(9)}
        for _ in range(2)
    ]
    del hits_by_run[1]["q4"]
    both = [Run.from_hits(hits_of_list) for hits_of_list in hits_by_run]
    names, blocks = formulas.align_runs(both, both[0].queries)
    together = features.compute_features(next(blocks))
    for row, query in enumerate(both[0].queries):
        alone = features.compute_features(next(formulas.align_runs(both, [query])[1]))
        own = together.query_rows == row
        assert (together.documents[own] - row * len(names)).tolist() == alone.documents.tolist()
        assert (together.document_features[:, own] == alone.document_features).all() and (together.scores[:, own] == alone.scores).all()
        assert together.query_features[row] == pytest.approx(alone.query_features[0], abs=1e-12)


def test_rows_and_columns_are_counted():
    computed = features.compute_features([to_arrays({1: 2.0}), to_arrays({2: 1.0}), to_arrays({})], WordCounts.from_texts(QUERY), {})
    assert features.count_features(3, words=True) == (len(computed.document_features), computed.query_features.shape[1])


def test_words_are_counted_by_query_and_rarity_falls_with_the_count():
    words = WordCounts.from_texts(QUERY)
    assert words.counts == {"the": 3}
    known, unknown = words.query_features("The the"), words.query_features("quokka")
    assert known == pytest.approx([2, 3, 0, 0]) and unknown == pytest.approx([1, 6, np.log(4), np.log(4)])
    assert words.query_features("?!") == [0.0] * 4
