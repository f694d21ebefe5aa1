"""The pools of the best scan scores."""

import numpy as np
import pytest
import torch

from moeir.indexes import simd_loops, vector_store
from moeir.indexes.two_step import CpuTopKPool, TopKPool, exact_dot
from moeir.indexes.vector_store import VectorStore, as_uint16


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 40, 300])
def test_both_pools_keep_the_same_scores(kind, size):
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(5, 200, generator=generator).to(kind)
    scores[1, :150] = -torch.inf
    scores[2] = 0.5
    scores[3] = -scores[3].abs()
    plain, quick = TopKPool(5, size, torch.device("cpu")), CpuTopKPool(5, size)
    for first in range(0, 200, 32):
        rows = torch.arange(first, min(first + 32, 200))
        wider = torch.full((5, 40), 9.0, dtype=kind)  # columns beyond the rows are ignored
        wider[:, : len(rows)] = scores[:, rows]
        plain.push(wider, rows)
        quick.push(wider, rows)
    margins = torch.full((5,), 0.25, dtype=torch.float64)
    for depth in (1, min(5, size)):
        (keep, certain), (quick_keep, quick_certain) = (pool.candidates(depth, margins) for pool in (plain, quick))
        assert certain.tolist() == quick_certain.tolist()
        for line in range(5):
            own_scores = sorted(quick.scores[line][quick_keep[line]].tolist())
            assert own_scores == sorted(plain.scores[line][keep[line]].tolist())
            rows_of_line = quick.rows[line][quick_keep[line]]
            assert len(rows_of_line.unique()) == len(rows_of_line)
            assert torch.equal(scores[line, rows_of_line].float(), quick.scores[line][quick_keep[line]])


def test_a_pool_is_certain_only_if_nobody_outside_is_within_the_margin():
    pool = CpuTopKPool(1, 2)
    pool.push(torch.tensor([[1.0, 3.0, 2.0, -np.inf]]), torch.arange(4))
    assert pool.candidates(1, torch.tensor([0.5], dtype=torch.float64))[1].tolist() == [True]
    assert pool.candidates(1, torch.tensor([1.0], dtype=torch.float64))[1].tolist() == [False]


@pytest.mark.parametrize(("extra_bytes", "workspace", "least"), [(0, 2**32, 159), (4, 2**32, 239), (0, 20, 100), (4, 20, 140)])
def test_vectors_fit_beside_the_workspace_of_a_search_or_in_half_of_little_memory(extra_bytes, workspace, least, monkeypatch):
    monkeypatch.setattr(vector_store, "SEARCH_WORKSPACE", workspace)
    vectors = VectorStore(np.zeros((10, 4), np.float16), torch.device("cpu"), 1.0, extra_bytes_per_row=extra_bytes)  # 80 bytes
    assert vectors.fits(least) and not vectors.fits(least - 1)


def test_a_product_of_zero_has_no_sign():
    left, right, scores = torch.tensor([[-1.0, 0.0]]), torch.tensor([[0.0, -1.0]]), np.empty(1)
    simd_loops.exact_pair_dots(as_uint16(right.half()), left.numpy(), np.zeros(1, int), np.zeros(1, int), scores)
    assert not torch.signbit(exact_dot(left, right)).any() and not np.signbit(scores).any()
