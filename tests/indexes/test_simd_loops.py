"""The compiled loops over float16 bits give the numbers and sums of the torch forms."""

import numpy as np
import pytest
import torch

from moeir.indexes import simd_loops
from moeir.indexes.vector_store import as_uint16, exact_dot

ALL_FLOAT16 = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
FINITE = ALL_FLOAT16[torch.isfinite(ALL_FLOAT16)].contiguous()


def test_every_finite_float16_becomes_the_bfloat16_that_torch_gives():
    rounded = torch.empty(1, len(FINITE), dtype=torch.bfloat16)
    simd_loops.to_bfloat16(as_uint16(FINITE[None]), as_uint16(rounded))
    assert torch.equal(rounded[0].view(torch.int16), FINITE.float().bfloat16().view(torch.int16))


@pytest.mark.parametrize("width", [1, 15, 64, 67, 384])
def test_a_scan_for_few_queries_has_the_products(width):
    generator = torch.Generator().manual_seed(width)
    documents, queries = torch.randn(300, width, generator=generator).half(), torch.randn(3, width, generator=generator)
    documents[7] = 2.0**-20  # a subnormal number
    scores = np.empty((3, 300), np.float32)
    simd_loops.scan_few_queries(as_uint16(documents), queries.numpy(), scores)
    exact = queries.double() @ documents.double().T
    bound = (width + 8) * 2.0**-24 * queries.double().norm(dim=1)[:, None] * documents.double().norm(dim=1)
    assert ((torch.from_numpy(scores).double() - exact).abs() <= bound + 1e-12).all()


@pytest.mark.parametrize("width", [1, 2, 5, 48, 128])
def test_exact_products_are_those_of_the_plain_form_bit_for_bit(width):
    queries, documents = torch.randn(6, width), torch.randn(50, width).half()
    queries[0], documents[0] = 0.0, -0.0  # a product of zero has no sign
    query, rows = torch.arange(6).repeat_interleave(20), torch.cat([torch.zeros(1, dtype=torch.int64), torch.randint(50, (119,))])
    products = np.empty(120)
    simd_loops.exact_pair_dots(as_uint16(documents), queries.numpy(), query.numpy(), rows.numpy(), products)
    assert products.tobytes() == exact_dot(queries[query], documents[rows]).numpy().tobytes() and not np.signbit(products[0])


def test_a_scan_of_bfloat16_products_sums_the_largest_of_each_token_also_where_all_are_negative():
    queries, tokens, starts = 3, 2, np.array([0, 2, 2, 5, 9])
    products = torch.randn(9, queries * tokens, generator=torch.Generator().manual_seed(2)).bfloat16()
    products[:5] = -products[:5].abs()
    scores = np.full((queries, 5), 7.0, np.float32)
    simd_loops.maxsim_scan(products[2:].view(torch.int16).numpy(), starts, 1, 4, tokens, scores, 1)
    assert (scores[:, 1] == -np.inf).all() and (scores[:, 2] < 0).all() and (scores[:, [0, 4]] == 7).all()
    for column, (begin, end) in enumerate([(2, 5), (5, 9)], start=2):
        expected = products[begin:end].float().amax(0).view(queries, tokens).sum(1)
        assert np.array_equal(scores[:, column], expected.numpy())
