"""Parts of a collection, even and uneven, searched as one: the bytes of one index."""

import numpy as np
import pytest
import torch

from moeir.retrieval.searcher import ShardedIndex
from tests.indexes.engine_checks import build_index, same_bytes
from tests.indexes.test_subset import ENGINES, QUERIES, ROWS

EDGES = {"two": [0, 150, 300], "one that is large": [0, 280, 283, 290, 300], "many and small": [0, 1, 2, 3, *range(30, 301, 30)]}


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("engine", ["flat", "inverted", "maxsim", "exact-match"])
def test_parts_have_the_bytes_of_one_index_also_if_the_best_are_in_one_part(engine, edges):
    make_texts = ENGINES[engine][1]
    documents, queries = make_texts(ROWS, 1), make_texts(QUERIES, 50)
    ranked = build_index(engine, documents).search(queries, ROWS)[0][0]
    best_first = np.concatenate([ranked[ranked >= 0], np.setdiff1d(np.arange(ROWS), ranked)])
    id_ranks = np.random.default_rng(3).permutation(ROWS)
    for order in (torch.arange(ROWS), torch.from_numpy(best_first)):
        whole, parts = build_index(engine, documents.select(order), id_ranks=id_ranks), []
        for first, last in zip(EDGES[edges], EDGES[edges][1:], strict=False):
            ranks = np.argsort(np.argsort(id_ranks[first:last]))
            parts.append(build_index(engine, documents.select(order[first:last]), id_ranks=ranks))
        for depth in (1, 20, 300):
            assert same_bytes(ShardedIndex(parts, id_ranks).search(queries, depth), whole.search(queries, depth))
