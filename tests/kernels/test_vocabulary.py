"""The maximum over positions without [T, V]: values and gradients of the plain form."""

import pytest
import torch

from moeir.kernels import vocabulary
from moeir.kernels.attention import Layout
from tests.oracles import representations as oracles

LENGTHS = (3, 3, 5, 1, 4, 4)
V, H = 40, 8


def inputs(seed=0):
    made = torch.Generator().manual_seed(seed)
    shapes = ((sum(LENGTHS), H), (V, H), (V,))
    return [torch.randn(*shape, generator=made).requires_grad_() for shape in shapes]


def layout(silent=None):
    return Layout(LENGTHS, torch.tensor([0, *LENGTHS]).cumsum(0), silent)


def plain(states, embedding, bias, silent=None):
    """log(1 + relu(max over positions)) from all logits [T, V] -> [B, V]."""
    logits = states @ embedding.T + bias
    logits = logits if silent is None else logits.masked_fill(silent[:, None], float("-inf"))
    return torch.stack([torch.log1p(torch.relu(part.amax(0))) for part in logits.split(LENGTHS)])


def fast(states, embedding, bias, silent=None):
    texts, terms, positions = vocabulary.winners(states, layout(silent), embedding, bias)
    weights = torch.log1p(torch.relu(vocabulary.activations(states, embedding, bias, terms, positions)))
    return torch.zeros(len(LENGTHS), V).index_put((texts, terms), weights)


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("tokens_at_once", [1, 7, 10_000])
def test_values_and_gradients_are_those_of_the_plain_form(monkeypatch, silent, tokens_at_once):
    monkeypatch.setattr(vocabulary, "TOKENS_AT_ONCE", tokens_at_once)
    monkeypatch.setattr(vocabulary, "PAIRS_AT_ONCE", tokens_at_once)
    quiet = torch.cat([torch.arange(length) == length - 1 for length in LENGTHS]) & (torch.arange(sum(LENGTHS)) != 11) if silent else None
    weigh = torch.randn(len(LENGTHS), V, generator=torch.Generator().manual_seed(5))
    found = []
    for form in (plain, fast):
        given = inputs()
        made = form(*given, quiet)
        (made * weigh).sum().backward()
        found.append([made.detach(), *(part.grad for part in given)])
    for expected, value in zip(*found, strict=True):
        assert (value - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_values_are_those_of_a_loop():
    states, embedding, bias = (part.detach() for part in inputs(1))
    logits = (states @ embedding.T + bias).split(LENGTHS)
    for row, part in zip(fast(states, embedding, bias), logits, strict=True):
        expected = oracles.lexical(part.tolist())
        assert {term: pytest.approx(row[term].item(), abs=1e-5) for term in row.nonzero()[:, 0].tolist()} == expected


def test_pairs_come_ordered_by_text_then_term():
    states, embedding, bias = (part.detach() for part in inputs(2))
    texts, terms, _ = vocabulary.winners(states, layout(), embedding, bias)
    keys = (texts * V + terms).tolist()
    assert keys == sorted(set(keys))


def test_a_batch_without_any_positive_term_has_no_pairs():
    states, embedding, _ = (part.detach() for part in inputs(3))
    for part in vocabulary.winners(states, layout(), embedding, torch.full((V,), -1000.0)):
        assert len(part) == 0
