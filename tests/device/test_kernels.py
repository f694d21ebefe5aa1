"""Every kernel that works on tensors: on the device what it is on the CPU, values and gradients, in float32 and under autocast.

Random weights cannot be compared with the CPU's: of dropout it is checked that it drops as many as it should, that what is left is the
plain attention made larger, that gradients are those of what was dropped, and that a seed brings everything back.
"""

from contextlib import nullcontext

import pytest
import torch

from moeir.kernels import exact_match, pairs
from moeir.kernels.attention import Layout, attention, first_attention
from moeir.kernels.late_interaction import late_interaction
from moeir.kernels.saturated import saturated_sums
from moeir.kernels.selective import causal, selective
from moeir.kernels.token_loss import token_loss
from moeir.kernels.vocabulary import activations, winners

LENGTHS, SILENT = (5, 3, 7, 7, 1, 3), (2, 0, 3, 1, 0, 1)
HEADS, RATE = 4, 0.3
PRECISIONS = ("float32", "bfloat16")
MARGINS = {"float32": 1e-4, "bfloat16": 0.04}


def drawn(*shape, seed=1, precision="float32"):
    """Numbers that are the same in both formats where the products are bfloat16."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers if precision == "float32" else numbers.bfloat16().float()


def layout(device, lengths=LENGTHS, silent=None):
    quiet = None
    if silent is not None:
        quiet = torch.cat([torch.arange(length) >= length - count for length, count in zip(lengths, silent, strict=True)]).to(device)
    return Layout(tuple(lengths), torch.tensor([0, *lengths]).cumsum(0).to(device), quiet)


def cast(device, precision):
    return torch.autocast("cuda", dtype=torch.bfloat16) if device != "cpu" and precision == "bfloat16" else nullcontext()


def states(parts, device, precision):
    """Leaves in float32, and what a layer under autocast would make of them."""
    leaves = [part.clone().to(device).requires_grad_() for part in parts]
    return leaves, [leaf.bfloat16() if device != "cpu" and precision == "bfloat16" else leaf for leaf in leaves]


def compared(work, parts, device, precision):
    """`work(parts, device)` on the CPU in float32, and on the device: its values, and the gradients of its parts."""
    found = []
    for place in ("cpu", device):
        leaves, given = states(parts, place, precision)
        with cast(place, precision):
            out = work(given, place)
        weights = drawn(*out.shape, seed=9).to(place)
        (out.float() * weights).sum().backward()
        assert out.device.type == torch.device(place).type
        found.append([out.detach().float().cpu(), *(leaf.grad.float().cpu() for leaf in leaves)])
    for expected, value in zip(*found, strict=True):
        assert value.isfinite().all()
        assert (value - expected).abs().max() <= MARGINS[precision] * max(1.0, float(expected.abs().max()))


FORMS = {
    "attention": lambda given, place, rate: attention(*given, place, None, rate),
    "window of 4": lambda given, place, rate: attention(*given, place, 4, rate),
    "first tokens": lambda given, place, rate: first_attention(given[0].index_select(0, place.starts[:-1]), *given[1:], place, rate),
    "all before": lambda given, place, rate: selective(*given, place, causal(-1), rate),
    "two before": lambda given, place, rate: selective(*given, place, causal(2), rate),
}
HEARD = {"silent": SILENT, "all heard": None}


@pytest.mark.parametrize("width", [16, 12], ids=["width 16", "width 12"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("silent", HEARD)
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_that_of_the_cpu(form, silent, precision, width, device):
    if form in ("all before", "two before") and silent == "silent":
        pytest.skip("decoders have no silent tokens")
    parts = [drawn(sum(LENGTHS), HEADS, width, seed=seed, precision=precision) for seed in range(3)]
    compared(lambda given, place: FORMS[form](given, layout(place, silent=HEARD[silent]), 0.0), parts, device, precision)


def plain(form, silent, width):
    """The attention weights of each text and head, from values that are the unit vectors of positions: [T, heads, width]."""
    lengths = LENGTHS * 60
    query, key = (drawn(sum(LENGTHS), HEADS, width, seed=seed).repeat(60, 1, 1) for seed in range(2))
    unit = torch.cat([torch.eye(length, width) for length in lengths])[:, None].expand(-1, HEADS, -1).contiguous()
    place = layout("cpu", lengths, None if silent is None else silent * 60)
    return (query, key, unit), lengths, FORMS[form]((query, key, unit), place, 0.0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("silent", HEARD)
@pytest.mark.parametrize("form", FORMS)
def test_as_many_weights_are_dropped_as_should_be_and_the_others_grow(form, silent, precision, device):
    parts, lengths, weights = plain(form, None if "before" in form else HEARD[silent], 16)
    place = layout(device, lengths, None if HEARD[silent] is None or "before" in form else SILENT * 60)
    _, given = states(parts, device, precision)
    torch.manual_seed(6)
    with cast(device, precision):
        found = FORMS[form](given, place, RATE).detach().float().cpu()
    seen = weights > 1e-3
    assert not found[weights == 0].any()
    kept = found[seen] != 0
    assert abs(kept.float().mean() - (1 - RATE)) < 5 * (RATE * (1 - RATE) / len(kept)) ** 0.5
    assert torch.allclose(found[seen][kept], weights[seen][kept] / (1 - RATE), atol=MARGINS[precision], rtol=MARGINS[precision])
    sums = found.sum(-1)  # each 1 where nothing is dropped
    assert abs(sums.mean() - 1) < 5 * sums.std() / len(sums) ** 0.5


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("silent", HEARD)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_what_was_dropped(form, silent, precision, device):
    """With unit vectors as values the weights that are left can be read off; the rest is the plain formula with those taken out."""
    parts, lengths, weights = plain(form, None if "before" in form else HEARD[silent], 16)
    quiet = None if HEARD[silent] is None or "before" in form else SILENT * 60
    leaves, given = states(parts, device, precision)
    torch.manual_seed(6)
    with cast(device, precision):
        out = FORMS[form](given, layout(device, lengths, quiet), RATE)
    gradient = drawn(*out.shape, seed=4, precision=precision)
    out.backward(gradient.to(device=device, dtype=out.dtype))
    kept = (out.detach().cpu() != 0).float() / (1 - RATE)
    query, key, unit = (part.clone().requires_grad_() for part in parts)
    expected = FORMS[form]((query, key, unit), layout("cpu", lengths, quiet), 0.0) * kept  # with unit values: the weights themselves
    expected.backward(gradient)
    for leaf, reference in ((leaves[0], query), (leaves[1], key)):
        assert (leaf.grad.cpu() - reference.grad).abs().max() <= MARGINS[precision] * max(1.0, float(reference.grad.abs().max()))
    rows = (weights > 1e-3).float()
    assert rows.any() and leaves[2].grad.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_brings_back_what_was_dropped(form, device):
    parts, found = [drawn(sum(LENGTHS), HEADS, 16, seed=seed) for seed in range(3)], []
    for seed in (6, 6, 7):
        leaves, given = states(parts, device, "float32")
        torch.manual_seed(seed)
        out = FORMS[form](given, layout(device), RATE)
        out.square().sum().backward()
        found.append([out.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    for first, again, other in zip(*found, strict=True):
        assert torch.allclose(first, again, atol=1e-6) and not torch.allclose(first, other, atol=1e-3)


def test_texts_without_tokens_disturb_nobody(device):
    lengths = (0, 3, 0, 2)
    parts = [drawn(5, HEADS, 16, seed=seed) for seed in range(3)]
    compared(lambda given, place: attention(*given, layout(place, lengths)), parts, device, "float32")


# ---------------------------------------------------------------- the vocabulary
def sparse(texts, terms, weights, count, vocabulary):
    return weights.new_zeros(count, vocabulary).index_put((texts, terms), weights.float())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("silent", HEARD)
@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_weights_of_terms_are_those_of_the_cpu(pooling, silent, precision, device):
    parts = [drawn(sum(LENGTHS), 16, precision=precision) / 4, drawn(50, 16, seed=2, precision=precision), drawn(50, seed=3) / 4]

    def work(given, place):
        known = layout(place, silent=HEARD[silent])
        leaves = [part.float() for part in given]
        if pooling == "sum":
            texts, terms, weights = saturated_sums(leaves[0], known, *leaves[1:])
            assert weights.dtype == torch.float32
        else:
            texts, terms, positions = winners(leaves[0], known, *leaves[1:])
            weights = torch.log1p(activations(*leaves, terms, positions).relu())
        assert (texts * 50 + terms).diff().min() > 0
        return sparse(texts, terms, weights, len(LENGTHS), 50)

    compared(work, parts, device, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_token_losses_are_those_of_the_cpu(precision, device):
    parts = [drawn(9, 16, precision=precision), drawn(50, 16, seed=2, precision=precision), drawn(50, seed=3)]
    targets, correct = torch.arange(9) * 5, []

    def work(given, place):
        loss, right = token_loss(*(part.float() for part in given), targets.to(place))
        assert loss.dtype == torch.float32
        correct.append(int(right))
        return loss[None]

    compared(work, parts, device, precision)
    assert correct[0] == correct[1]


# ---------------------------------------------------------------- tokens against tokens
def starts(lengths, device):
    return torch.tensor([0, *lengths]).cumsum(0).to(device)


@pytest.mark.parametrize("lengths", [(4, 1, 6, 2), (3, 0, 5), (2,)], ids=str)
def test_late_interaction_is_that_of_the_cpu(lengths, device):
    parts = [drawn(8, 12), drawn(sum(lengths), 12, seed=2)]

    def work(given, place):
        scores = late_interaction(given[0], starts((3, 5), place), given[1], starts(lengths, place))
        return scores.masked_fill(scores.isinf(), -9.0)

    compared(work, parts, device, "float32")


def test_products_and_bags_are_those_of_the_cpu(device):
    left, right = torch.tensor([0, 3, 3, 5]), torch.tensor([1, 1, 0, 2])
    parts = [drawn(6, 12), drawn(4, 12, seed=2)]
    compared(lambda given, place: pairs.products(*given, left.to(place), right.to(place)), parts, device, "float32")
    weights, owners = drawn(4, seed=3), torch.tensor([2, 0, 2, 1])
    found = [pairs.bags(parts[0].to(place), left.to(place), weights.to(place), owners.to(place), 4).cpu() for place in ("cpu", device)]
    assert torch.allclose(*found, atol=1e-5) and not found[1][3].any()


def test_matches_of_equal_terms_are_those_of_the_cpu(device):
    chosen = torch.Generator().manual_seed(3)
    asked, there = torch.randint(0, 5, (7,), generator=chosen), torch.randint(0, 5, (20,), generator=chosen)
    owners, queries, documents = torch.arange(20) // 4, drawn(7, 8), drawn(20, 8, seed=2)
    found = []
    for place in ("cpu", device):
        given = [part.to(place) for part in (queries, asked, documents, there, owners)]
        found.append([part.cpu() for part in exact_match.best_matches(*given)])
    assert len(found[0][0]) > 5
    for expected, value in zip(*found, strict=True):
        assert value.equal(expected)
