"""Parts of a collection, even and uneven, searched as one: the bytes of one index."""

import numpy as np
import pytest
import torch

from moeir.retrieval.searcher import ShardedIndex
from tests.indexes.engine_checks import same_bytes
from tests.indexes.test_subset import DOCUMENTS, ENGINES, QUERIES

EDGES = {"two": [0, 150, 300], "one that is large": [0, 280, 283, 290, 300], "many and small": [0, 1, 2, 3, *range(30, 301, 30)]}


@pytest.fixture(scope="module", params=["flat", "inverted", "maxsim", "exact-match"])
def collection(request):
    """An index, its class, queries, and the documents sorted by their rank for the first query, so that the best are in one part."""
    engine, make_texts = ENGINES[request.param]
    documents, queries = make_texts(DOCUMENTS, 1), make_texts(QUERIES, 50)
    index = engine()
    index.add(documents)
    ranked = index.search(queries, DOCUMENTS)[0][0]
    order = np.concatenate([ranked[ranked >= 0], np.setdiff1d(np.arange(DOCUMENTS), ranked)])
    return engine, documents, queries, {"as they are": np.arange(DOCUMENTS), "best first": order}


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("order", ["as they are", "best first"])
def test_parts_have_the_bytes_of_one_index(collection, edges, order):
    engine, documents, queries, orders = collection
    documents = documents.select(torch.from_numpy(orders[order]))
    id_ranks = np.random.default_rng(3).permutation(DOCUMENTS)
    whole = engine(id_ranks)
    whole.add(documents)
    parts = []
    for first, last in zip(EDGES[edges], EDGES[edges][1:], strict=False):
        parts.append(engine(np.argsort(np.argsort(id_ranks[first:last]))))
        parts[-1].add(documents.select(torch.arange(first, last)))
    sharded = ShardedIndex(parts, id_ranks)
    for depth in (1, 20, 300):
        assert same_bytes(sharded.search(queries, depth), whole.search(queries, depth))
