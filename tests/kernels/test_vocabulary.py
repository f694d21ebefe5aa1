"""The maximum and the saturated sum over positions without [T, V]: values and gradients of the plain form."""

from functools import partial

import pytest
import torch

from moeir.kernels import pairs, vocabulary
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


def plain(states, embedding, bias, silent=None, pooling="max"):
    """log(1 + relu(logit)), the largest or the sum over positions, from all logits [T, V] -> [B, V]."""
    logits = states @ embedding.T + bias
    logits = logits if silent is None else logits.masked_fill(silent[:, None], float("-inf"))
    parts = torch.log1p(torch.relu(logits)).split(LENGTHS)
    return torch.stack([part.amax(0) if pooling == "max" else part.sum(0) for part in parts])


def fast(states, embedding, bias, silent=None):
    texts, terms, positions = vocabulary.winners(states, layout(silent), embedding, bias)
    weights = torch.log1p(torch.relu(vocabulary.activations(states, embedding, bias, terms, positions)))
    return torch.zeros(len(LENGTHS), V).index_put((texts, terms), weights)


def summed(states, embedding, bias, silent=None):
    texts, terms, weights = vocabulary.saturated_sums(states, layout(silent), embedding, bias)
    return torch.zeros(len(LENGTHS), V).index_put((texts, terms), weights)


@pytest.mark.parametrize("pooling, form", [("max", fast), ("sum", summed)])
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("tokens_at_once", [1, 7, 10_000])
@pytest.mark.parametrize("many", [0.0, 2.0])
def test_values_and_gradients_are_those_of_the_plain_form(monkeypatch, silent, tokens_at_once, pooling, form, many):
    monkeypatch.setattr(vocabulary, "TOKENS_AT_ONCE", tokens_at_once)
    monkeypatch.setattr(vocabulary, "MANY", many)
    monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", tokens_at_once)
    quiet = torch.cat([torch.arange(length) == length - 1 for length in LENGTHS]) & (torch.arange(sum(LENGTHS)) != 11) if silent else None
    weigh = torch.randn(len(LENGTHS), V, generator=torch.Generator().manual_seed(5))
    found = []
    for each in (partial(plain, pooling=pooling), form):
        given = inputs()
        made = each(*given, quiet)
        (made * weigh).sum().backward()
        found.append([made.detach(), *(part.grad for part in given)])
    for expected, value in zip(*found, strict=True):
        assert (value - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_values_are_those_of_a_loop():
    states, embedding, bias = (part.detach() for part in inputs(1))
    logits = (states @ embedding.T + bias).split(LENGTHS)
    for form, oracle in ((fast, oracles.lexical), (summed, oracles.summed_lexical)):
        for row, part in zip(form(states, embedding, bias), logits, strict=True):
            expected = oracle(part.tolist())
            assert {term: pytest.approx(row[term].item(), abs=1e-5) for term in row.nonzero()[:, 0].tolist()} == expected


def test_pairs_come_ordered_by_text_then_term():
    states, embedding, bias = (part.detach() for part in inputs(2))
    for texts, terms, _ in (form(states, layout(), embedding, bias) for form in (vocabulary.winners, vocabulary.saturated_sums)):
        keys = (texts * V + terms).tolist()
        assert keys == sorted(set(keys))


def test_a_batch_without_any_positive_term_has_no_pairs():
    states, embedding, _ = (part.detach() for part in inputs(3))
    for form in (vocabulary.winners, vocabulary.saturated_sums):
        assert [len(part) for part in form(states, layout(), embedding, torch.full((V,), -1000.0))] == [0, 0, 0]


def test_the_sum_is_computed_in_full_precision_under_autocast():
    given = inputs(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = summed(*given)
    inside.sum().backward()
    assert torch.equal(inside, summed(*inputs(4))) and bool(given[0].grad.isfinite().all())


def test_the_sum_keeps_nothing_of_the_size_of_all_logits():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor):
        vocabulary.saturated_sums(*inputs()[:1], layout(), *inputs()[1:])
    assert max(kept) < sum(LENGTHS) * V
