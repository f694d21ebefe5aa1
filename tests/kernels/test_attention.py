"""Packed attention: every form gives what a loop over single texts gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.kernels.attention import Layout, _masked, attention
from tests.oracles import representations as oracles


def parts(lengths, heads=2, width=4, seed=0):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(lengths), heads, width, generator=made) for _ in range(3)]


def layout(lengths, silent=None):
    starts = torch.tensor([0, *lengths]).cumsum(0)
    quiet = None if silent is None else torch.cat([torch.arange(n) >= n - count for n, count in zip(lengths, silent, strict=True)])
    return Layout(tuple(lengths), starts, quiet)


def by_loop(query, key, value, place):
    rows = []
    for first, last in zip(place.starts[:-1].tolist(), place.starts[1:].tolist(), strict=True):
        seen = [True] * (last - first) if place.silent is None else (~place.silent[first:last]).tolist()
        text = [
            torch.tensor(oracles.attention(*(part[first:last, head].tolist() for part in (query, key, value)), seen))
            for head in range(query.shape[1])
        ]
        rows.append(torch.stack(text, dim=1))
    return torch.cat(rows)


def test_groups_are_runs_of_one_length():
    assert layout([3, 3, 2, 3]).groups() == [(0, 2, 3), (6, 1, 2), (8, 1, 3)]
    assert layout([]).groups() == []


@pytest.mark.parametrize(
    "most, expected", [(6, [(0, 2, 3), (6, 1, 3)]), (5, [(0, 1, 3), (3, 1, 3), (6, 1, 3)]), (1, [(0, 1, 3), (3, 1, 3), (6, 1, 3)])]
)
def test_groups_stay_below_a_number_of_tokens_or_hold_one_text(most, expected):
    assert layout([3, 3, 3]).groups(most) == expected


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), seed=st.integers(0, 9), data=st.data())
def test_grouped_and_masked_attention_equal_a_loop_over_texts(lengths, seed, data):
    silent = data.draw(st.none() | st.tuples(*(st.integers(0, length - 1) for length in lengths)))
    place, tensors = layout(lengths, silent), parts(lengths, seed=seed)
    expected = by_loop(*tensors, place)
    assert torch.allclose(attention(*tensors, place), expected, atol=1e-5)
    assert torch.allclose(_masked(*tensors, place, 0.0), expected, atol=1e-5)


def test_grouped_and_masked_attention_have_the_same_gradients():
    lengths, found = [2, 5, 5, 1], []
    place = layout(lengths, (0, 2, 0, 0))
    for form in (attention, lambda *given: _masked(*given, 0.0)):
        tensors = [part.requires_grad_() for part in parts(lengths)]
        form(*tensors, place).square().sum().backward()
        found.append([part.grad for part in tensors])
    for grouped, masked in zip(*found, strict=True):
        assert torch.allclose(grouped, masked, atol=1e-5)
    silent = place.silent
    assert found[0][1][silent].abs().max() == 0 and found[0][2][silent].abs().max() == 0  # nobody looks at silent keys and values
    assert found[0][0][silent].abs().max() > 0  # but they look
