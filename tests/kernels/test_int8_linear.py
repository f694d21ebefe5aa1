"""Linear maps in 8-bit integers against integer arithmetic in numpy, and what they lose."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from moeir.kernels import int8_linear, int8_loops
from moeir.kernels.int8_linear import Int8Linear, Int8Weight, Int8Words, quantize, supports_int8

has_vnni = torch.cpu._is_vnni_supported()
pytestmark = pytest.mark.skipif(not has_vnni and not supports_int8(), reason="this processor has no exact products of 8-bit integers")
DTYPES = [torch.float32, torch.bfloat16]


def integers(rows):
    """Integers of −127 to 127 and scales of each row, in float64: an independent statement of the rule."""
    rows = rows.double().numpy()
    scales = np.abs(rows).max(1, keepdims=True) / 127
    return np.divide(rows, scales, out=np.zeros_like(rows), where=scales > 0), scales


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (5, 33), (7, 384)])
def test_integers_are_the_nearest(dtype, shape):
    rows = torch.randn(*shape, generator=torch.manual_seed(0)).to(dtype)
    quantized, scales = quantize(rows)
    expected, expected_scales = integers(rows) if len(rows) else (np.zeros(shape), np.zeros((0, 1)))
    assert np.abs(quantized.numpy().astype(int) - int8_linear.ZERO - expected).max(initial=0) <= 0.5 + 1e-4
    assert np.allclose(scales, expected_scales[:, 0], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_is_not_finite_becomes_nan_and_zeros_stay_zeros(dtype):
    rows = torch.tensor([[1, float("nan")], [float("inf"), 0], [0, -float("inf")], [0, 0], [-2, 1]]).to(dtype)
    linear = Int8Linear(torch.eye(2), torch.tensor([0.5, 0.25]))
    output = linear(rows).float()
    assert output[:3].isnan().all()
    assert output[3].tolist() == [0.5, 0.25]
    assert torch.allclose(output[4], torch.tensor([-1.5, 1.25]), atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 33])
@pytest.mark.parametrize("gelu", [False, True])
def test_products_are_those_of_the_integers(dtype, rows, gelu):
    torch.manual_seed(1)
    weight, bias, inputs = torch.randn(40, 24), torch.randn(40), torch.randn(rows, 24).to(dtype)
    linear = Int8Linear(weight, bias, gelu=gelu)
    row_integers, row_scales = quantize(inputs)
    weight_integers, weight_scales = (np.asarray(part) for part in integers(weight))
    centred = row_integers.numpy().astype(np.float64) - int8_linear.ZERO
    product = (centred @ weight_integers.round().T) * row_scales.double().numpy()[:, None] * weight_scales.T
    expected = torch.from_numpy(product + bias.numpy())
    expected = F.gelu(expected) if gelu else expected
    tolerance = 2e-4 if linear.dtype == torch.float32 else 0.02
    assert torch.allclose(linear(inputs).double(), expected, rtol=tolerance, atol=tolerance)
    residual = torch.randn(rows, 40).to(dtype)
    assert torch.allclose(linear.add_to_residual(inputs, residual).double(), expected + residual, atol=2e-4)


def test_gelu_is_that_of_torch_to_1e_4():
    inputs = torch.linspace(-12, 12, 4001)[:, None].contiguous()
    output = inputs.clone()
    int8_loops.rescale_products(output.numpy(), np.ones(len(inputs), np.float32), np.zeros(1, np.float32), True)
    assert (output - F.gelu(inputs)).abs().max() < 1e-4


def test_sums_of_extreme_products_are_exact():
    weight = torch.full((3, 256), 127.0)
    weight[1] = -127
    product = Int8Weight(weight).multiply(torch.full((2, 256), 255, dtype=torch.uint8))
    assert product.tolist() == [[256 * 127 * 127, -256 * 127 * 127, 256 * 127 * 127]] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_of_words_come_in_tiles(dtype, monkeypatch):
    monkeypatch.setattr(int8_linear, "TILE", 16)
    torch.manual_seed(3)
    embedding, states = torch.randn(41, 24), torch.randn(6, 24).to(dtype)
    words = Int8Words(embedding)
    parts = list(words.iterate_logits(states))
    assert [(part.start, part.stop) for part, _ in parts] == [(0, 16), (16, 32), (32, 41)] and len(words) == 41
    logits = torch.cat([part.float() for _, part in parts], 1)
    expected = states.float() @ embedding.T
    assert F.cosine_similarity(logits, expected).min() > 0.999


def test_a_processor_with_vnni_multiplies_them():
    assert supports_int8.__wrapped__()


def test_without_the_operation_or_with_cut_off_sums_int8_is_not_supported(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no such operation")

    for multiply in (fail, lambda *arguments: torch.zeros(16, 16)):
        monkeypatch.setattr(Int8Weight, "multiply", multiply)
        assert not supports_int8.__wrapped__()


def test_a_large_channel_of_some_tokens_does_not_spoil_the_others():
    torch.manual_seed(2)
    inputs, weight = torch.randn(64, 384), torch.randn(384, 384)
    inputs[::8, 7] *= 60
    exact = inputs @ weight.T
    linear = Int8Linear(weight, None)
    whole_scale = inputs.abs().max() / 127
    with_one_scale = (inputs / whole_scale).round() * whole_scale @ weight.T
    others = torch.arange(64) % 8 != 0
    own, single = (F.cosine_similarity(part[others], exact[others]).min().item() for part in (linear(inputs).float(), with_one_scale))
    assert own > 0.9995 > 0.99 > single
