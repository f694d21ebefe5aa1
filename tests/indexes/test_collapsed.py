"""Search for documents in an index of their passages: the whole ranking of passages, collapsed, for every exact engine and any depth."""

import numpy as np
import pytest

from moeir.indexes import subset
from moeir.indexes.subset import CollapsedIndex
from moeir.records.runs import id_ranks
from tests.indexes.engine_checks import same_bytes
from tests.indexes.test_subset import ENGINES, QUERIES, FirstRows
from tests.oracles.passages import collapse_by_dictionary

PASSAGES, DOCUMENTS = 300, 47
IDS = sorted(["a", "a!", *(f"d{number}" for number in range(DOCUMENTS - 2))])  # "a!#0" < "a#0", and "a" < "a!"


@pytest.fixture(scope="module", params=ENGINES)
def built(request, tmp_path_factory):
    """An opened index of passages with ties among their scores, their ids, the document of each, and queries of which some are empty."""
    engine, make_texts = ENGINES[request.param]
    folder, index, rng = tmp_path_factory.mktemp("collapsed") / request.param, engine(), np.random.default_rng(5)
    index.add(make_texts(PASSAGES, 1))
    index.save(folder)
    documents = rng.permutation(np.concatenate([np.arange(DOCUMENTS), rng.integers(0, DOCUMENTS, PASSAGES - DOCUMENTS) ** 2 // DOCUMENTS]))
    names = [f"{IDS[document]}#{number}" for number, document in enumerate(documents.tolist())]
    return engine.open(folder, id_ranks=id_ranks(names)), names, documents, make_texts(QUERIES, 50)


def collapse_full_ranking(index, names, queries, depth):
    """The oracle: rank all passages, look up the best of each document, sort, and cut."""
    hits, values = index.search(queries, len(index))
    rows, scores = np.full((len(hits), min(depth, DOCUMENTS)), -1), np.full((len(hits), min(depth, DOCUMENTS)), -np.inf, np.float32)
    for query in range(len(hits)):
        pairs = [(names[row], value) for row, value in zip(hits[query].tolist(), values[query], strict=True) if row >= 0]
        for rank, (document, score) in enumerate(collapse_by_dictionary(pairs, depth)):
            rows[query, rank], scores[query, rank] = IDS.index(document), score
    return rows, scores


def test_documents_are_those_of_the_whole_ranking_collapsed(built, monkeypatch):
    index, names, documents, queries = built
    by_document, whole = CollapsedIndex(index, documents, np.arange(DOCUMENTS)), subset.HITS_AT_ONCE
    assert len(by_document) == DOCUMENTS
    for depth, hits_at_once in ((1, 1), (2, whole), (10, whole), (20, 100), (DOCUMENTS - 1, whole), (DOCUMENTS, whole), (300, whole)):
        monkeypatch.setattr(subset, "HITS_AT_ONCE", hits_at_once)
        assert same_bytes(by_document.search(queries, depth), collapse_full_ranking(index, names, queries, depth))


def test_a_pair_scores_as_the_best_passage_of_its_document(built):
    index, _, documents, queries = built
    query, document = np.divmod(np.random.default_rng(2).permutation(QUERIES * DOCUMENTS), DOCUMENTS)
    every = index.score_pairs(queries, np.repeat(np.arange(QUERIES), PASSAGES), np.tile(np.arange(PASSAGES), QUERIES))
    every = every.reshape(QUERIES, PASSAGES)
    expected = [every[q, documents == d].max() for q, d in zip(query.tolist(), document.tolist(), strict=True)]
    found = CollapsedIndex(index, documents, np.arange(DOCUMENTS)).score_pairs(queries, query, document)
    assert found.dtype == np.float32 and found.tolist() == expected


@pytest.mark.parametrize(("tied", "hits", "documents", "depths", "found"), [
    (1, 1000, np.arange(1000) // 10, [49], [0, 1, 2]),  # 3 · 1000 / 100 passages, a tenth more, and 16 more
    (1, 1000, np.maximum(0, np.arange(1000) - 900), [49, 196, 784, 1000], [0, 1, 2]),  # four times as deep each time
    (60, 1000, np.arange(1000) // 10, [49, 196], [5, 4, 3]),  # among the first 49 all are equal: another may be, too
    (1, 20, np.arange(1000) // 10, [49], [0, 1, -1]),  # there is nothing deeper
])  # fmt: skip
def test_a_search_goes_deeper_until_enough_documents_are_above_the_last_passage(tied, hits, documents, depths, found):
    index = FirstRows(hits, tied=tied, exact=True)
    by_document = CollapsedIndex(index, documents, np.arange(documents.max() + 1))
    assert by_document.search(["any"], 3)[0].tolist() == [found]
    assert index.depths == depths
