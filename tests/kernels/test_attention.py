"""Packed attention: every form equals a loop over single texts, with and without a window; rotary positions."""

import math
import sys
import types
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.kernels import attention as kernel
from moeir.kernels.attention import PackedLayout, apply_rotary, attention, padded_sdpa
from tests.oracles import attention as windows
from tests.oracles import representations as oracles


def parts(lengths, heads=2, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(lengths), heads, width, generator=generator) for _ in range(3)]


def layout(lengths, silent=None):
    starts = torch.tensor([0, *lengths]).cumsum(0)
    mask = None if silent is None else torch.cat([torch.arange(n) >= n - count for n, count in zip(lengths, silent, strict=True)])
    return PackedLayout(tuple(lengths), starts, mask)


def padded(query, key, value, batch, reach=None):
    """The form that CUDA takes with dropout or a mask, on a CPU."""
    return padded_sdpa(query, key, value, batch, batch.padded_mask(None if reach is None else (reach, reach), query.dtype))


def by_loop(query, key, value, batch, reach=None):
    rows = []
    for first, last in zip(batch.starts[:-1].tolist(), batch.starts[1:].tolist(), strict=True):
        visible = [True] * (last - first) if batch.no_attend_mask is None else (~batch.no_attend_mask[first:last]).tolist()
        heads = [[part[first:last, head].tolist() for part in (query, key, value)] for head in range(query.shape[1])]
        function = oracles.attention if reach is None else lambda *arguments: windows.windowed_attention(*arguments, reach)
        text = [torch.tensor(function(*head, visible)) for head in heads]
        rows.append(torch.stack(text, dim=1))
    return torch.cat(rows)


def test_groups_are_runs_of_one_length():
    assert layout([3, 3, 2, 3]).equal_length_groups == [(2, 3), (1, 2), (1, 3)]
    assert layout([]).equal_length_groups == []


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), seed=st.integers(0, 9), data=st.data())
def test_grouped_and_masked_attention_equal_a_loop_over_texts(lengths, seed, data):
    silent = data.draw(st.none() | st.tuples(*(st.integers(0, length - 1) for length in lengths)))
    batch, tensors = layout(lengths, silent), parts(lengths, seed=seed)
    expected = by_loop(*tensors, batch)
    assert torch.allclose(attention(*tensors, batch), expected, atol=1e-5)
    assert torch.allclose(padded(*tensors, batch), expected, atol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_grouped_and_masked_attention_have_the_same_gradients(window):
    """With a window, the last tokens of one text see no key: they may not put NaN into the others."""
    lengths, results = [2, 7, 7, 1], []
    batch = layout(lengths, (0, 5, 0, 0))
    for form in (partial(attention, window=window), partial(padded, reach=window and window // 2)):
        tensors = [part.requires_grad_() for part in parts(lengths)]
        form(*tensors, batch).square().sum().backward()
        results.append([part.grad for part in tensors])
    for grouped, masked in zip(*results, strict=True):
        assert bool(grouped.isfinite().all()) and torch.allclose(grouped, masked, atol=1e-5)
    silent = batch.no_attend_mask
    if window is None:  # silent keys and values are not attended to
        assert results[0][1][silent].abs().max() == 0 and results[0][2][silent].abs().max() == 0
    assert results[0][0][silent].abs().max() > 0  # but silent queries attend


@pytest.mark.parametrize("form", ["groups", "padded"])
def test_dropped_weights_are_as_many_as_asked_for_and_the_others_make_up_for_them(form):
    """Of values that are all 1 each token's result is its kept weights, times 1 / (1 - rate): their mean stays 1."""
    lengths, rate = [40] * 30, 0.25
    batch, (query, key, value) = layout(lengths), parts(lengths)
    query, value = query.requires_grad_(), torch.ones_like(value)
    torch.manual_seed(3)
    if form == "groups":
        mixed = attention(query, key, value, batch, dropout=rate)
    else:
        mixed = padded_sdpa(query, key, value, batch, batch.padded_mask(None, query.dtype), rate)
    sums = mixed.detach()[..., 0]
    assert float(sums.mean()) == pytest.approx(1.0, abs=0.02) and float(sums.std()) > 0.05
    mixed.sum().backward()
    assert bool(query.grad.isfinite().all()) and float(query.grad.abs().max()) > 0


def test_dropout_follows_torch_generator():
    batch, tensors = layout([5, 5, 3]), parts([5, 5, 3])
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(attention(*tensors, batch, dropout=0.5))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    assert torch.equal(attention(*tensors, batch, dropout=0.0), attention(*tensors, batch))


@settings(deadline=None, max_examples=40)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), window=st.integers(1, 12), seed=st.integers(0, 9), data=st.data())
def test_a_window_hides_what_lies_further_away_than_its_half(lengths, window, seed, data):
    silent = data.draw(st.none() | st.tuples(*(st.integers(0, length - 1) for length in lengths)))
    batch, tensors = layout(lengths, silent), parts(lengths, seed=seed)
    expected = by_loop(*tensors, batch, reach=window // 2)
    assert torch.allclose(attention(*tensors, batch, window), expected, atol=1e-5)
    assert torch.allclose(padded(*tensors, batch, window // 2), expected, atol=1e-5)


def test_a_window_wider_than_every_text_is_none():
    batch, tensors = layout([5, 3]), parts([5, 3])
    assert torch.equal(attention(*tensors, batch, 8), attention(*tensors, batch))
    assert not torch.allclose(attention(*tensors, batch, 6), attention(*tensors, batch), atol=1e-3)


@pytest.mark.parametrize("band, expected", [(None, (-1, -1)), ((2, 2), (2, 2)), ((7, 0), (7, 0))])
def test_the_kernel_for_variable_lengths_is_told_the_window(band, expected, monkeypatch):
    """Replaces CUDA's kernel, whose window is the number of tokens to the left and to the right."""
    arguments = {}

    def varlen_attn(query, key, value, starts, key_starts, longest, longest_key, *, window_size):
        arguments.update(window=window_size, starts=starts.tolist(), longest=(longest, longest_key))
        return query

    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", types.SimpleNamespace(varlen_attn=varlen_attn))
    batch = layout([3, 5])
    kernel._varlen_attention(*parts([3, 5]), batch, band)
    assert arguments == {"window": expected, "starts": [0, 3, 8], "longest": (5, 5)}


def test_the_kernel_for_variable_lengths_gets_the_keys_that_are_looked_at(monkeypatch):
    shapes = []

    def varlen_attn(query, key, value, starts, key_starts, *limits, window_size):
        shapes.append((len(query), key.tolist() == keys.tolist(), value.tolist() == values.tolist(), key_starts.tolist()))
        return query

    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", types.SimpleNamespace(varlen_attn=varlen_attn))
    query, key, value = parts([3, 5])
    batch = layout([3, 5], silent=(1, 2))
    seen = [0, 1, 3, 4, 5]
    keys, values = key[seen], value[seen]
    kernel._varlen_attention(query, key, value, batch, None)
    assert shapes == [(8, True, True, [0, 2, 5])]


def test_positions_turn_pairs_of_numbers():
    """A quarter turn at position 1 where the angle is a right one: (1, 0) becomes (0, 1)."""
    right = (torch.tensor(math.cos(math.pi / 2)), torch.tensor(math.sin(math.pi / 2)))
    assert torch.allclose(apply_rotary(torch.tensor([[[1.0, 0.0]]]), *right), torch.tensor([[[0.0, 1.0]]]), atol=1e-6)
    lengths, theta, width = [3, 1, 5], 100.0, 6
    batch, states = layout(lengths), parts(lengths, width=width)[0]
    results = apply_rotary(states, *batch.rotary_angles(theta, width))
    for token, position in enumerate(position for length in lengths for position in range(length)):
        for head in range(states.shape[1]):
            assert results[token, head].tolist() == pytest.approx(
                windows.apply_rotary(states[token, head].tolist(), position, theta), abs=1e-5
            )


def test_rotation_keeps_lengths_and_makes_products_depend_on_distance_alone():
    batch = layout([9])
    query, key = (part[:1].expand(9, -1, -1) for part in parts([9], width=8)[:2])
    rotated_query, rotated_key = (apply_rotary(part, *batch.rotary_angles(10.0, 8)) for part in (query, key))
    assert torch.allclose(rotated_query.norm(dim=-1), query.norm(dim=-1), atol=1e-5)
    products = torch.einsum("ihd,jhd->hij", rotated_query, rotated_key)
    assert torch.allclose(products[:, 2, 5], products[:, 4, 7], atol=1e-5) and not torch.allclose(products[:, 2, 5], products[:, 2, 6])
    assert apply_rotary(query.bfloat16(), *batch.rotary_angles(10.0, 8)).dtype is torch.bfloat16


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
def test_the_variable_length_kernel_is_for_half_precision_and_widths_that_it_has(capability, dtype, width, supported, monkeypatch):
    monkeypatch.setattr(kernel, "compute_capability", lambda device: capability)
    heads = torch.zeros(1, 1, width, dtype=dtype)
    assert kernel.supports_varlen(heads, heads) == supported
