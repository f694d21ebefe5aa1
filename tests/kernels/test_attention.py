"""Packed attention: every form equals a loop over single texts, with and without a window; rotary positions."""

import math
import types
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.kernels import attention as kernel
from moeir.kernels.attention import PackedLayout, apply_rotary, attention, padded_sdpa
from tests.oracles import attention as windows
from tests.oracles import pretraining
from tests.oracles import representations as oracles


def parts(lengths, heads=2, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(lengths), heads, width, generator=generator) for _ in range(3)]


def layout(lengths, silent=None):
    starts = torch.tensor([0, *lengths]).cumsum(0)
    mask = None if silent is None else torch.cat([torch.arange(n) >= n - count for n, count in zip(lengths, silent, strict=True)])
    return PackedLayout(tuple(lengths), starts, mask)


def padded(query, key, value, batch, reach=None, dropout=0.0):
    """The form that CUDA takes with a mask, on a CPU."""
    band = None if reach is None else (*reach, False)
    return padded_sdpa(query, key, value, batch, batch.padded_mask(band, query.dtype), dropout)


def by_loop(query, key, value, batch, reach=None):
    rows = []
    for first, last in zip(batch.starts[:-1].tolist(), batch.starts[1:].tolist(), strict=True):
        visible = [True] * (last - first) if batch.no_attend_mask is None else (~batch.no_attend_mask[first:last]).tolist()
        heads = [[part[first:last, head].tolist() for part in (query, key, value)] for head in range(query.shape[1])]
        function = oracles.attention if reach is None else lambda *arguments: windows.windowed_attention(*arguments, reach[0])
        text = [torch.tensor(function(*head, visible)) for head in heads]
        rows.append(torch.stack(text, dim=1))
    return torch.cat(rows)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    reach=st.none() | st.integers(0, 10),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_grouped_and_masked_attention_equal_a_loop_over_texts(lengths, reach, seed, data):
    silent = data.draw(st.none() | st.tuples(*(st.integers(0, length - 1) for length in lengths)))
    batch, tensors, reach = layout(lengths, silent), parts(lengths, seed=seed), reach if reach is None else (reach, reach)
    expected = by_loop(*tensors, batch, reach)
    assert torch.allclose(attention(*tensors, batch, reach or (None, None)), expected, atol=1e-5)
    assert torch.allclose(padded(*tensors, batch, reach), expected, atol=1e-5)


@pytest.mark.parametrize("window", [-1, 1, 3])
@pytest.mark.parametrize("form", ["groups", "padded"])
def test_a_decoder_attends_to_the_first_token_and_the_last_few(form, window):
    """Oracle: text by text, with an additive mask."""
    lengths = (3, 3, 5, 1, 4, 4, 7)
    batch, inputs, results = layout(lengths), parts(lengths), []
    for plain in (True, False):
        leaves = [part.clone().requires_grad_() for part in inputs]
        if plain:
            masks = [pretraining.window_mask(length, window) for length in lengths]
            texts = zip(*(part.flatten(1)[None].split(lengths, 1) for part in leaves), masks, strict=True)  # [1, L, H] each
            output = torch.cat([pretraining.masked_attention(*text, 2)[0] for text in texts]).unflatten(-1, (2, 4))
        elif form == "groups":
            output = attention(*leaves, batch, (None if window < 0 else window - 1, 0), keeps_first=True)
        else:
            mask = batch.padded_mask((99 if window < 0 else window - 1, 0, True), torch.float32)
            output = padded_sdpa(*leaves, batch, mask)
        output.square().sum().backward()
        results.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for expected, value in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("reach", [None, (2, 2)])
def test_grouped_and_masked_attention_have_the_same_gradients(reach):
    """Within a reach, the last tokens of one text see no key: they may not put NaN into the others."""
    lengths, results = [2, 7, 7, 1], []
    batch = layout(lengths, (0, 5, 0, 0))
    for form in (partial(attention, reach=reach or (None, None)), partial(padded, reach=reach)):
        tensors = [part.requires_grad_() for part in parts(lengths)]
        form(*tensors, batch).square().sum().backward()
        results.append([part.grad for part in tensors])
    for grouped, masked in zip(*results, strict=True):
        assert bool(grouped.isfinite().all()) and torch.allclose(grouped, masked, atol=1e-5)
    silent = batch.no_attend_mask
    if reach is None:  # silent keys and values are not attended to
        assert results[0][1][silent].abs().max() == 0 and results[0][2][silent].abs().max() == 0
    assert results[0][0][silent].abs().max() > 0  # but silent queries attend


@pytest.mark.parametrize("form", ["groups", "padded"])
def test_dropped_weights_are_as_many_as_asked_for_and_the_others_make_up_for_them(form):
    """Of values that are all 1 each token's result is its kept weights, times 1 / (1 - rate): their mean stays 1."""
    lengths, rate = [40] * 30, 0.25
    batch, (query, key, value) = layout(lengths), parts(lengths)
    query, value = query.requires_grad_(), torch.ones_like(value)
    torch.manual_seed(3)
    mixed = (attention if form == "groups" else padded)(query, key, value, batch, dropout=rate)
    sums = mixed.detach()[..., 0]
    assert float(sums.mean()) == pytest.approx(1.0, abs=0.02) and float(sums.std()) > 0.05
    mixed.sum().backward()
    assert bool(query.grad.isfinite().all()) and float(query.grad.abs().max()) > 0


def test_positions_turn_pairs_of_numbers():
    """A quarter turn at position 1 where the angle is a right one: (1, 0) becomes (0, 1)."""
    right = (torch.tensor(math.cos(math.pi / 2)), torch.tensor(math.sin(math.pi / 2)))
    assert torch.allclose(apply_rotary(torch.tensor([[[1.0, 0.0]]]), *right), torch.tensor([[[0.0, 1.0]]]), atol=1e-6)
    lengths, theta, width = [3, 1, 5], 100.0, 6
    batch, states = layout(lengths), parts(lengths, width=width)[0]
    results = apply_rotary(states, *batch.rotary_angles(theta, width))
    assert apply_rotary(states.bfloat16(), *batch.rotary_angles(theta, width)).dtype is torch.bfloat16
    for token, position in enumerate(position for length in lengths for position in range(length)):
        for head in range(states.shape[1]):
            assert results[token, head].tolist() == pytest.approx(
                windows.apply_rotary(states[token, head].tolist(), position, theta), abs=1e-5
            )


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "supported"),
    [
        ((8, 0), torch.bfloat16, 64, True),
        ((8, 0), torch.float16, 256, True),
        ((7, 5), torch.float16, 64, False),
        ((8, 0), torch.float32, 64, False),
        ((8, 0), torch.bfloat16, 264, False),
        ((8, 0), torch.bfloat16, 60, False),
    ],
)
def test_flash_attention_is_for_half_precision_and_widths_that_it_has(capability, dtype, width, supported, monkeypatch, has_flash):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    heads = torch.zeros(1, 1, width, dtype=dtype)
    assert kernel.supports_flash(heads, heads) == supported


@pytest.fixture
def has_flash(monkeypatch):
    """As if this torch were built with FlashAttention."""
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    kernel.has_flash_operator.cache_clear()
    yield
    kernel.has_flash_operator.cache_clear()


FLASH_SCHEMA = (  # of torch 2.9 to 2.12
    "aten::flash(Tensor query, Tensor key, Tensor value, Tensor? cum_seq_q, Tensor? cum_seq_k, SymInt max_q, SymInt max_k, "
    "float dropout_p, bool is_causal, bool return_debug_mask, *, float? scale=None, SymInt? window_size_left=None, "
    "SymInt? window_size_right=None, Tensor? seqused_k=None, Tensor? alibi_slopes=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@pytest.mark.parametrize(
    ("part", "other", "known"),
    [
        ("", "", True),
        ("alibi_slopes=None", "alibi_slopes=None, Tensor? block_table=None, int? num_splits=None", True),  # of torch 2.13
        ("float dropout_p, ", "", False),
        ("bool return_debug_mask", "bool return_debug_mask, int more", False),
        ("max_q, SymInt max_k", "max_k, SymInt max_q", False),
        ("SymInt? window_size_left=None, ", "", False),
    ],
)
def test_a_private_operator_with_other_arguments_is_not_called(part, other, known, monkeypatch, has_flash):
    schema = torch._C.parse_schema(FLASH_SCHEMA.replace(part, other))
    operator = types.SimpleNamespace(default=types.SimpleNamespace(_schema=schema))
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", operator)
    assert kernel.has_flash_operator() is known


def test_the_operator_of_this_torch_is_known_and_has_a_gradient(has_flash):
    """On the device `meta`, which computes shapes alone."""
    assert kernel.has_flash_operator()
    states = torch.empty(8, 2, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    batch = PackedLayout((3, 5), torch.empty(3, dtype=torch.int64, device="meta"))
    kernel._flash_attention(states, states, states, batch, (2, 2, False), 0.1, None).sum().backward()
    assert states.grad.shape == states.shape


def test_a_torch_without_the_operator_or_without_its_kernel_has_the_plain_form(monkeypatch, has_flash):
    monkeypatch.setattr(torch.ops, "aten", types.SimpleNamespace())
    assert not kernel.has_flash_operator()
    monkeypatch.undo()
    kernel.has_flash_operator.cache_clear()
    assert kernel.has_flash_operator() is torch.backends.cuda.is_flash_attention_available()


def test_cudnn_is_as_it_was_after_attention_without_it():
    for allowed in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(allowed)
        with pytest.raises(RuntimeError), kernel._without_cudnn():
            assert not torch.backends.cuda.cudnn_sdp_enabled()
            raise RuntimeError
        assert torch.backends.cuda.cudnn_sdp_enabled() == allowed
    torch.backends.cuda.enable_cudnn_sdp(True)
