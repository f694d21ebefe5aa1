"""The compiled loops over float16 bits give the numbers and sums of the torch forms."""

import numpy as np
import pytest
import torch

from moeir.indexes import simd_loops
from moeir.indexes.residual_codec import score_codes
from moeir.indexes.token_store import to_lane_layout
from moeir.indexes.two_step import exact_dot, pairwise_sum
from moeir.indexes.vector_store import as_uint16

ALL_FLOAT16 = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
FINITE = ALL_FLOAT16[torch.isfinite(ALL_FLOAT16)].contiguous()


def test_every_float16_is_the_same_float32():
    float32_bits = np.empty(len(FINITE), np.uint32)
    simd_loops.to_float32(as_uint16(FINITE), float32_bits, float32_bits.view(np.float32))
    assert float32_bits.view(np.float32).tobytes() == FINITE.float().numpy().tobytes()


def test_every_normal_float16_becomes_the_bfloat16_torch_gives_and_smaller_ones_zero():
    rounded = torch.empty(1, len(FINITE), dtype=torch.bfloat16)
    simd_loops.to_bfloat16(as_uint16(FINITE[None]), as_uint16(rounded))
    normal = FINITE.abs() >= 2.0**-14
    assert torch.equal(rounded[0][normal], FINITE.bfloat16()[normal])
    assert (rounded[0][~normal] == 0).all()


@pytest.mark.parametrize("scan", [simd_loops.scan_by_bits, simd_loops.scan_by_conversion, simd_loops.scan_few_queries])
@pytest.mark.parametrize("width", [1, 15, 64, 67, 384])
def test_a_scan_for_few_queries_has_the_products(scan, width):
    if scan is simd_loops.scan_by_conversion and not simd_loops.converts_float16():
        pytest.skip("this processor does not convert float16")
    generator = torch.Generator().manual_seed(width)
    documents, queries = torch.randn(300, width, generator=generator).half(), torch.randn(3, width, generator=generator)
    documents[7] = 2.0**-20  # a subnormal number
    scores = np.empty((3, 300), np.float32)
    scan(as_uint16(documents), queries.numpy(), scores)
    exact = queries.double() @ documents.double().T
    bound = (width + 8) * 2.0**-24 * queries.double().norm(dim=1)[:, None] * documents.double().norm(dim=1)
    assert ((torch.from_numpy(scores).double() - exact).abs() <= bound + 1e-12).all()


def test_a_processor_set_by_hand_is_not_asked_for_conversions(monkeypatch):
    monkeypatch.setitem(vars(simd_loops.numba.config), "CPU_NAME", "generic")
    assert not simd_loops.converts_float16()


def test_exact_products_are_those_of_the_plain_form_bit_for_bit():
    for width in (1, 5, 48, 128):
        queries, documents = torch.randn(6, width), torch.randn(50, width).half()
        query, rows = torch.arange(6).repeat_interleave(20), torch.randint(50, (120,))
        products = np.empty(120)
        simd_loops.exact_pair_dots(as_uint16(documents), queries.numpy(), query.numpy(), rows.numpy(), products)
        assert products.tobytes() == exact_dot(queries[query], documents[rows]).numpy().tobytes()


def test_late_products_are_the_halved_sum_of_the_largest_dots():
    queries, documents = torch.randn(2, 5, 16), torch.randn(30, 16).half()
    starts, scores = np.array([0, 4, 4, 17, 30]), np.empty(6)
    bounds = np.full((2, 5), 1e-3)
    bounds[1, 3:] = -1.0
    query, rows = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 3, 0, 2, 3])
    simd_loops.exact_maxsim_pairs(as_uint16(documents), starts, to_lane_layout(queries), bounds, query, rows, scores)
    for pair, (query_row, row) in enumerate(zip(query, rows, strict=True)):
        tokens, text = queries[query_row, : 3 if query_row else 5], documents[starts[row] : starts[row + 1]]
        if not len(text):
            assert scores[pair] == -np.inf
            continue
        best = torch.stack([torch.stack([exact_dot(token[None], other[None])[0] for other in text]).max() for token in tokens])
        assert scores[pair] == pairwise_sum(best).item()


def test_a_bound_of_zero_keeps_products_that_float32_has_exactly():
    queries, documents = torch.tensor([[[1.0, 2.0], [-3.0, 1.0]]]), torch.tensor([[1.0, 0.0], [0.0, 2.0], [-2.0, 0.0]]).half()
    scores = np.empty(2)
    arguments = to_lane_layout(queries), np.zeros((1, 2)), np.array([0, 0]), np.array([0, 1]), scores
    simd_loops.exact_maxsim_pairs(as_uint16(documents), np.array([0, 2, 3]), *arguments)
    assert scores.tolist() == [4 + 2, -2 + 6]


def test_a_scan_of_bfloat16_products_sums_the_largest_of_each_token_also_where_all_are_negative():
    queries, tokens, starts = 3, 2, np.array([0, 2, 2, 5, 9])
    products = torch.randn(9, queries * tokens, generator=torch.Generator().manual_seed(2)).bfloat16()
    products[:5] = -products[:5].abs()
    scores = np.empty((queries, 3), np.float32)
    simd_loops.maxsim_scan(products[2:].view(torch.int16).numpy(), starts, 1, 3, tokens, scores)
    assert (scores[:, 0] == -np.inf).all() and (scores[:, 1] < 0).all()
    for text, (begin, end) in enumerate([(2, 5), (5, 9)], start=1):
        expected = products[begin:end].float().amax(0).view(queries, tokens).sum(1)
        assert np.array_equal(scores[:, text], expected.numpy())


def test_a_sum_of_table_entries_may_be_the_lowest_int16():
    centroids, words = np.full((1, 1, simd_loops.LANES), -0x8000, np.int16), np.zeros((1, 1, 256, simd_loops.LANES), np.int8)
    codes, leading, others = np.zeros(1, np.int32), np.zeros((1, 1), np.uint8), np.zeros((0, 0), np.uint8)
    assert score_codes(centroids, words, codes, leading, others) == -0x8000 * simd_loops.LANES
