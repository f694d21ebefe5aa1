"""The pools of the best scan scores."""

import numpy as np
import pytest
import torch

from moeir.indexes import vector_store
from moeir.indexes.two_step import TopKPool, select_best
from moeir.indexes.vector_store import VectorStore


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 40, 300])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_pool_keeps_the_best_of_all_that_is_pushed_to_it_or_its_parts(kind, size, parts):
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(5, 200, generator=generator).to(kind)
    scores[1, :150] = -torch.inf
    scores[2] = 0.5
    scores[3] = -scores[3].abs()
    scores[4] = scores[4].abs()
    pools = [TopKPool(5, size, torch.device("cpu")) for _ in range(parts)]
    for number, first in enumerate(range(0, 200, 32)):
        rows = torch.arange(first, min(first + 32, 200))
        wider = torch.full((5, 40), 9.0, dtype=kind)  # columns beyond the rows are ignored
        wider[:, : len(rows)] = scores[:, rows]
        pools[number % parts].push(wider, rows)
    for pool in pools[1:]:
        pools[0].merge(pool)
    for depth in (1, min(5, size)):
        keep, certain = pools[0].candidates(depth, torch.full((5,), 0.25, dtype=torch.float64))
        for line, own in enumerate(scores.float()):
            near = own[(own >= own.sort(descending=True).values[depth - 1] - 0.25) & (own > -torch.inf)]
            rows = pools[0].rows[line][keep[line]]
            assert torch.equal(own[rows], pools[0].scores[line][keep[line]]) and len(rows.unique()) == len(rows)
            assert len(rows) == min(len(near), size) and certain[line] == (len(near) < size or size >= 200)


def test_a_pool_is_certain_only_if_nobody_outside_is_within_the_margin():
    pool = TopKPool(1, 2, torch.device("cpu"))
    pool.push(torch.tensor([[1.0, 3.0, 2.0, -np.inf]]), torch.arange(4))
    assert pool.candidates(1, torch.tensor([0.5], dtype=torch.float64))[1].tolist() == [True]
    assert pool.candidates(1, torch.tensor([1.0], dtype=torch.float64))[1].tolist() == [False]


@pytest.mark.parametrize(("workspace", "least"), [(2**32, 159), (20, 100)])
def test_vectors_fit_beside_the_workspace_of_a_search_or_in_half_of_little_memory(workspace, least, monkeypatch):
    monkeypatch.setattr(vector_store, "SEARCH_WORKSPACE", workspace)
    vectors = VectorStore(np.zeros((10, 4), np.float16), torch.device("cpu"), 1.0)  # 80 bytes
    assert vectors.fits(least) and not vectors.fits(least - 1)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("columns", "count"), [(64 * 40, 16), (64 * 6, 3), (64 * 40 + 1, 16), (64, 64), (0, 0)])
def test_the_best_scores_in_two_stages_are_those_of_one(kind, columns, count):
    generator = torch.Generator().manual_seed(columns)
    scores = torch.randn(5, columns, generator=generator).to(kind)
    scores[1] = -torch.inf
    scores[2] = 0.5
    scores[3, : columns // 2] = scores[3, columns - columns // 2 :]
    best, positions = select_best(scores, count)
    assert best.dtype == torch.float32 and torch.equal(best, scores.gather(1, positions).float())
    assert torch.equal(best.sort(dim=1).values, scores.float().sort(dim=1).values[:, columns - count :])
    assert all(len(row.unique()) == count for row in positions)
