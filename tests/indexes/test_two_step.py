"""The pools of the best scan scores."""

import numpy as np
import pytest
import torch

from moeir.indexes import simd_loops, two_step, vector_store
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


@pytest.mark.parametrize("size", [1, 20, 70])
def test_pools_of_parts_of_the_documents_become_the_pool_of_all(size):
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(4, 300, generator=generator).bfloat16().float()
    scores[1] = scores[1].abs().round()  # hundreds of equal scores
    scores[2, 70:] = -torch.inf
    whole, main = CpuTopKPool(4, size), CpuTopKPool(4, size)
    pools = [main, main.share(), main.share()]
    whole.push(scores, torch.arange(300))
    for first in range(0, 300, 50):
        pools[first // 50 % 3].push(scores[:, first : first + 50].contiguous(), torch.arange(first, first + 50))
    for half in (slice(0, 2), slice(2, 4)):
        main.select(half).merge([other.select(half) for other in pools[1:]])
    main.pushed_count = 300
    for pool in (whole, main):
        pool.candidates(1, torch.zeros(4, dtype=torch.float64))
    assert torch.equal(main.scores.sort(dim=1).values, whole.scores.sort(dim=1).values)
    for query, (own, rows) in enumerate(zip(main.scores, main.rows, strict=True)):
        assert torch.equal(scores[query, rows[own > -torch.inf]], own[own > -torch.inf])
        assert len(rows[own > -torch.inf].unique()) == (own > -torch.inf).sum()


def test_a_pool_skips_what_another_of_its_queries_has_cut_off():
    main = CpuTopKPool(1, 2)
    other = main.share()
    main.push(torch.tensor([[5.0, 6.0, 7.0, 8.0, 9.0]]), torch.arange(5))
    other.push(torch.tensor([[4.0, 7.0, 10.0]]), torch.arange(5, 8))
    assert other._rows[0, : other._counts[0]].tolist() == [7]


@pytest.mark.parametrize("number", [1, 2, 100, 299, 300])
@pytest.mark.parametrize("largest", [1, 40, 2**20, 2**31 - 1])
def test_the_nth_best_key_is_that_of_a_full_sort(number, largest):
    keys = np.random.default_rng(largest).integers(-largest, largest, 300, dtype=np.int32, endpoint=True)
    assert two_step._nth_best(number, keys) == np.sort(keys)[-number]


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
