"""Some documents of an index, searched alone or indexed again: the full ranking without the others, and the bytes of a new index."""

from functools import partial

import numpy as np
import pytest
import torch

from moeir.indexes import subset
from moeir.indexes.base import SearchableIndex
from moeir.indexes.bm25 import Bm25
from moeir.indexes.scan import Scan
from moeir.indexes.subset import SubsetIndex
from tests.indexes import engine_checks
from tests.indexes.engine_checks import same_bytes
from tests.representations.test_representations import random_texts

DOCUMENTS, QUERIES = 300, 9
WORDS = [f"word{number}" for number in range(40)]


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(count)]


RANDOM = partial(partial, random_texts, width=12, vocabulary=30, fewest=0)
ENGINES = {name: (engine.type, RANDOM(engine.type.kind)) for name, engine in engine_checks.ENGINES.items()}
ENGINES |= {"scan": (Scan, RANDOM("dense")), "bm25": (Bm25, texts)}


def select(documents, rows):
    return [documents[row] for row in rows] if isinstance(documents, list) else documents.select(torch.from_numpy(np.asarray(rows)))


def read_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module", params=ENGINES)
def built(request, tmp_path_factory):
    """An opened index with ties among its scores, its documents, queries of which some are empty, and the ranks of ids."""
    engine, make_texts = ENGINES[request.param]
    documents, folder = make_texts(DOCUMENTS, 1), tmp_path_factory.mktemp("subset") / request.param
    index = engine()
    index.add(documents)
    index.save(folder)
    id_ranks = np.random.default_rng(3).permutation(DOCUMENTS)
    return engine.open(folder, id_ranks=id_ranks), documents, make_texts(QUERIES, 50), id_ranks


def filter_full_ranking(index, queries, rows, depth):
    """The oracle: rank all documents, drop those that are not in `rows`, and cut."""
    hits, values = index.search(queries, len(index))
    width = min(depth, len(rows))
    expected_rows, expected_scores = np.full((len(hits), width), -1), np.full((len(hits), width), -np.inf, np.float32)
    for query in range(len(hits)):
        kept = [position for position, row in enumerate(hits[query]) if row in rows][:width]
        expected_rows[query, : len(kept)] = np.searchsorted(rows, hits[query][kept])
        expected_scores[query, : len(kept)] = values[query][kept]
    return expected_rows, expected_scores


@pytest.mark.parametrize("count", [1, 120, 299, 300])
def test_a_subset_has_the_full_ranking_without_the_others(built, count, monkeypatch):
    index, _, queries, id_ranks = built
    rows = np.sort(np.random.default_rng(count).choice(DOCUMENTS, count, replace=False))
    alone = SubsetIndex(index, rows, id_ranks[rows])
    for depth, hits_at_once in ((1, 1), (20, 100), (60, subset.HITS_AT_ONCE), (300, subset.HITS_AT_ONCE)):
        monkeypatch.setattr(subset, "HITS_AT_ONCE", hits_at_once)
        assert same_bytes(alone.search(queries, depth), filter_full_ranking(index, queries, rows, depth))


def test_the_worst_documents_of_a_query_are_found_too(built):
    index, _, queries, id_ranks = built
    hits = index.search(queries, DOCUMENTS)[0][0]
    rows = np.sort(hits[hits >= 0][len(hits[hits >= 0]) // 2 :])  # a search must go deeper than an even spread of the documents needs
    for depth in (1, 3, len(rows)):
        alone = SubsetIndex(index, rows, id_ranks[rows])
        assert same_bytes(alone.search(queries, depth), filter_full_ranking(index, queries, rows, depth))


def test_a_subset_of_a_subset_is_a_subset(built):
    index, _, queries, id_ranks = built
    outer, inner = np.arange(0, DOCUMENTS, 2), np.arange(0, DOCUMENTS // 2, 3)
    nested = SubsetIndex(SubsetIndex(index, outer, id_ranks[outer]), inner, id_ranks[outer[inner]])
    assert same_bytes(nested.search(queries, 10), SubsetIndex(index, outer[inner], id_ranks[outer[inner]]).search(queries, 10))
    assert nested._index is index


def test_an_approximate_engine_is_only_searched_deeper(built):
    index, _, queries, id_ranks = built
    rows = np.arange(0, DOCUMENTS, 7)
    expected = SubsetIndex(index, rows, id_ranks[rows]).search(queries, 5)

    depths = []

    class Approximate(SearchableIndex):
        kind, exact = index.kind, False

        def __len__(self):
            return DOCUMENTS

        def _search_into(self, queries, depth, rows, scores):
            depths.append(depth)
            rows[:], scores[:] = index.search(queries, depth)

    assert same_bytes(SubsetIndex(Approximate(id_ranks), rows, id_ranks[rows]).search(queries, 5), expected)
    assert depths[0] < DOCUMENTS


class FirstRows(SearchableIndex):
    """Finds the first `hits` rows of 1000 documents, in this order with the same score for each `tied` of them, for every query."""

    kind = "any"

    def __init__(self, hits, documents=1000, tied=1, *, exact=False):
        super().__init__(np.arange(documents)[::-1])
        self.hits, self.documents, self.tied, self.exact, self.depths = hits, documents, tied, exact, []

    def __len__(self):
        return self.documents

    def _search_into(self, queries, depth, rows, scores):
        self.depths.append(depth)
        rows[:, : self.hits] = np.arange(self.hits)[:depth]
        scores[:, : self.hits] = -(np.arange(self.hits)[:depth] // self.tied)


@pytest.mark.parametrize(("hits", "rows", "depths", "found"), [
    (1000, range(0, 1000, 2), [23], [0, 1, 2]),  # 3 · 1000 / 500 hits, a tenth more, and 16 more
    (1000, range(500, 1000), [23, 92, 368, 1000], [0, 1, 2]),  # four times as deep each time, but not deeper than there are documents
    (11, range(10, 510), [23], [0, -1, -1]),  # there is nothing deeper
])  # fmt: skip
def test_a_search_goes_deeper_until_it_has_enough_or_all(hits, rows, depths, found):
    index = FirstRows(hits)
    assert SubsetIndex(index, np.array(rows), np.arange(500)).search(["any"], 3)[0].tolist() == [found]
    assert index.depths == depths


@pytest.mark.parametrize("hits", [0, 1])
def test_an_approximate_index_of_one_document_has_a_subset(hits):
    assert SubsetIndex(FirstRows(hits, 1), np.array([0]), np.array([0])).search(["any"], 3)[0].tolist() == [[0 if hits else -1]]
