"""The compiled loops over float16 bits give the numbers and sums of the torch forms."""

import numpy as np
import torch

from moeir.indexes import halves
from moeir.indexes.candidates import dots, halved
from moeir.indexes.ragged import turned
from moeir.indexes.storage import bits

every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
finite = every[torch.isfinite(every)].contiguous()


def test_every_float16_is_the_same_float32():
    float32_bits = np.empty(len(finite), np.uint32)
    halves.to_single(bits(finite), float32_bits, float32_bits.view(np.float32))
    assert float32_bits.view(np.float32).tobytes() == finite.float().numpy().tobytes()


def test_every_normal_float16_becomes_the_bfloat16_torch_gives_and_smaller_ones_zero():
    rounded = torch.empty(1, len(finite), dtype=torch.bfloat16)
    halves.to_bfloat16(bits(finite[None]), bits(rounded))
    normal = finite.abs() >= 2.0**-14
    assert torch.equal(rounded[0][normal], finite.bfloat16()[normal])
    assert (rounded[0][~normal] == 0).all()


def test_norms_and_what_bfloat16_loses_are_measured():
    vectors = torch.cat([torch.randn(40, 7), torch.zeros(1, 7), torch.full((1, 7), 1e-6)]).half()
    norms, lost = np.empty(42), np.empty(42)
    halves.measure(bits(vectors), norms, lost)
    rounded = vectors.bfloat16().double()
    rounded[vectors.abs() < 2.0**-14] = 0.0
    assert np.allclose(norms, vectors.double().norm(dim=1), rtol=1e-14)
    assert np.allclose(lost, (vectors.double() - rounded).norm(dim=1), rtol=1e-14)
    vectors[3, 2], vectors[5, 0] = float("inf"), float("nan")
    halves.measure(bits(vectors), norms, lost)
    assert np.flatnonzero(np.isnan(norms)).tolist() == [3, 5]


def test_exact_products_are_those_of_the_plain_form_bit_for_bit():
    for width in (1, 5, 48, 128):
        queries, documents = torch.randn(6, width), torch.randn(50, width).half()
        query, rows = torch.arange(6).repeat_interleave(20), torch.randint(50, (120,))
        products = np.empty(120)
        halves.pair_products(bits(documents), queries.numpy(), query.numpy(), rows.numpy(), products)
        assert products.tobytes() == dots(queries[query], documents[rows]).numpy().tobytes()


def test_late_products_are_the_halved_sum_of_the_largest_dots():
    queries, documents = torch.randn(2, 5, 16), torch.randn(30, 16).half()
    starts, scores = np.array([0, 4, 4, 17, 30]), np.empty(6)
    bounds = np.full((2, 5), 1e-3)
    bounds[1, 3:] = -1.0
    query, rows = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 3, 0, 2, 3])
    halves.late_products(bits(documents), starts, turned(queries), bounds, query, rows, scores)
    for pair, (query_row, row) in enumerate(zip(query, rows, strict=True)):
        tokens, text = queries[query_row, : 3 if query_row else 5], documents[starts[row] : starts[row + 1]]
        if not len(text):
            assert scores[pair] == -np.inf
            continue
        best = torch.stack([torch.stack([dots(token[None], other[None])[0] for other in text]).max() for token in tokens])
        assert scores[pair] == halved(best).item()
