"""Documents that are some rows of an index, or groups of its rows: the whole ranking, filtered and collapsed, for every exact engine."""

from functools import partial

import numpy as np
import pytest

from moeir.indexes import subset
from moeir.indexes.base import SearchableIndex
from moeir.indexes.bm25 import Bm25
from moeir.indexes.scan import Scan
from moeir.indexes.subset import SubsetIndex
from moeir.records.runs import id_ranks
from tests.indexes import engine_checks
from tests.indexes.engine_checks import open_index, same_bytes
from tests.oracles.passages import collapse_by_dictionary
from tests.representations.test_representations import random_texts

ROWS, DOCUMENTS, QUERIES = 300, 47, 9
WORDS = [f"word{number}" for number in range(40)]
IDS = ["a", "a!", *(f"d{number}" for number in range(ROWS - 2))]  # "a!#0" < "a#0", and "a" < "a!"


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 9))) for _ in range(count)]


RANDOM = partial(partial, random_texts, width=12, vocabulary=30, fewest=0)
ENGINES = {name: (engine.type, RANDOM(engine.type.kind)) for name, engine in engine_checks.ENGINES.items()}
ENGINES |= {"scan": (Scan, RANDOM("dense")), "bm25": (Bm25, texts)}


@pytest.fixture(scope="module", params=ENGINES)
def built(request):
    """An opened index with ties among its scores, and queries of which some are empty."""
    engine, make_texts = ENGINES[request.param]
    return open_index(engine(np.random.default_rng(3).permutation(ROWS)), make_texts(ROWS, 1)), make_texts(QUERIES, 50)


def draw_documents(kind, index, queries):
    """The document of each row: of some rows, of the worse half of a query's, or of passages, all or those of two documents in three; and
    the ids of the documents."""
    rng, documents = np.random.default_rng(5), np.full(ROWS, -1)
    if kind.isdecimal():
        documents[np.sort(rng.choice(ROWS, int(kind), replace=False))] = np.arange(int(kind))
    elif kind == "the worst":  # a search must go deeper than an even spread of the documents needs
        hits = index.search(queries, ROWS)[0][0]
        rows = hits[hits >= 0][np.count_nonzero(hits >= 0) // 2 :]
        documents[rows] = np.arange(len(rows))
    else:
        others = rng.integers(0, DOCUMENTS, ROWS - DOCUMENTS) ** 2 // DOCUMENTS
        documents = rng.permutation(np.concatenate([np.arange(DOCUMENTS), others]))
        if kind == "some passages":
            documents = np.where(documents % 3, documents - documents // 3 - 1, -1)
        return documents, IDS[: documents.max() + 1]
    return documents, [f"{rank:03}" for rank in index.id_ranks[documents >= 0]]


def regroup_full_ranking(index, queries, documents, ids, depth):
    """The oracle: rank all rows, look up the best of each document, sort, and cut."""
    width = min(depth, len(ids))
    rows, scores = np.full((len(queries), width), -1), np.full((len(queries), width), -np.inf, np.float32)
    for query, line in enumerate(zip(*index.search(queries, len(index)), strict=True)):
        pairs = [(f"{ids[documents[row]]}#{row}", value) for row, value in zip(*line, strict=True) if row >= 0 and documents[row] >= 0]
        for rank, (document, score) in enumerate(collapse_by_dictionary(pairs, depth)):
            rows[query, rank], scores[query, rank] = ids.index(document), score
    return rows, scores


@pytest.mark.parametrize("kind", ["1", "120", "299", "300", "the worst", "passages", "some passages"])
def test_documents_are_those_of_the_whole_ranking_filtered_and_collapsed(built, kind, monkeypatch):
    index, queries = built
    (documents, ids), whole = draw_documents(kind, index, queries), subset.HITS_AT_ONCE
    alone = SubsetIndex(index, documents, id_ranks(ids))
    for depth, hits_at_once in ((1, 1), (2, whole), (20, 100), (46, whole), (47, whole), (300, whole)):
        monkeypatch.setattr(subset, "HITS_AT_ONCE", hits_at_once)
        assert same_bytes(alone.search(queries, depth), regroup_full_ranking(index, queries, documents, ids, depth))


def test_a_subset_of_documents_of_passages_is_one_of_passages(built):
    index, queries = built
    passages, inner = (draw_documents(kind, index, queries)[0] for kind in ("passages", "some passages"))
    chosen = np.where(np.arange(DOCUMENTS) % 3, np.arange(DOCUMENTS) - np.arange(DOCUMENTS) // 3 - 1, -1)
    ranks = np.arange(inner.max() + 1)
    nested = SubsetIndex(SubsetIndex(index, passages, np.arange(DOCUMENTS)), chosen, ranks)
    assert nested._index is index and same_bytes(nested.search(queries, 10), SubsetIndex(index, inner, ranks).search(queries, 10))


def test_a_pair_scores_as_the_best_passage_of_its_document(built):
    index, queries = built
    documents, _ = draw_documents("passages", index, queries)
    query, document = np.divmod(np.random.default_rng(2).permutation(QUERIES * DOCUMENTS), DOCUMENTS)
    every = index.score_pairs(queries, np.repeat(np.arange(QUERIES), ROWS), np.tile(np.arange(ROWS), QUERIES)).reshape(QUERIES, ROWS)
    expected = [every[q, documents == d].max() for q, d in zip(query.tolist(), document.tolist(), strict=True)]
    scores = SubsetIndex(index, documents, np.arange(DOCUMENTS)).score_pairs(queries, query, document)
    assert scores.dtype == np.float32 and scores.tolist() == expected


class FirstRows(SearchableIndex):
    """Approximate: finds the first `hits` rows, in this order with the same score for each `tied` of them, for every query."""

    kind, exact = "any", False

    def __init__(self, hits, count, tied):
        super().__init__(np.arange(count)[::-1])
        self.hits, self.count, self.tied, self.depths = hits, count, tied, []

    def __len__(self):
        return self.count

    def _search_into(self, queries, depth, rows, scores):
        self.depths.append(depth)
        rows[:, : self.hits] = np.arange(self.hits)[:depth]
        scores[:, : self.hits] = -(np.arange(self.hits)[:depth] // self.tied)


def number_rows(first, last, step=1):
    """The document of each of 1000 rows, if those of a range are documents."""
    documents = np.full(1000, -1)
    documents[first:last:step] = np.arange(len(range(first, last, step)))
    return documents


@pytest.mark.parametrize(("tied", "hits", "documents", "depths", "expected"), [
    (1, 1000, number_rows(0, 1000, 2), [23], [0, 1, 2]),  # 3 · 1000 / 500 hits, a tenth more, and 16 more
    (1, 1000, number_rows(500, 1000), [23, 92, 368, 1000], [0, 1, 2]),  # four times as deep each time, but not deeper than there are rows
    (1, 11, number_rows(10, 510), [23], [0, -1, -1]),  # there is nothing deeper
    (1, 1000, np.arange(1000) // 10, [49], [0, 1, 2]),  # 3 · 1000 / 100 passages, a tenth more, and 16 more
    (1, 1000, np.maximum(0, np.arange(1000) - 900), [49, 196, 784, 1000], [0, 1, 2]),
    (60, 1000, np.arange(1000) // 10, [49, 196], [5, 4, 3]),  # among the first 49 all are equal: another may be, too
    (1, 20, np.arange(1000) // 10, [49], [0, 1, -1]),
    (1, 0, np.array([0]), [1], [-1]), (1, 1, np.array([0]), [1], [0]),
])  # fmt: skip
def test_a_search_goes_deeper_until_enough_documents_are_above_the_last_row(tied, hits, documents, depths, expected):
    index = FirstRows(hits, len(documents), tied)
    assert SubsetIndex(index, documents, np.arange(documents.max() + 1)).search(["any"], 3)[0].tolist() == [expected]
    assert index.depths == depths
