"""The maximum over positions without [T, V]: values and gradients of the plain form in little memory."""

import pytest
import torch

from moeir.kernels import gathered_products, splade
from moeir.kernels.attention import PackedLayout
from tests.kernels.peak_memory import peak_bytes

LENGTHS = (3, 3, 5, 1, 4, 4)
V, H = 40, 8
SIZES = [(1, 1, 1), (7, 7 * 12 * 4, 5 * H * 4), (10_000, 1 << 20, 1 << 20)]
WAYS = ("_packed_block", "_padded_block")  # a processor's blocks, CUDA's


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((sum(LENGTHS), H), (V, H), (V,))
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def tied(seed=0):
    """Tokens that stand twice in a text, and words that are the same word: every maximum is had more than once."""
    states, embedding, bias = (part.detach() for part in inputs(seed))
    doubled = torch.cat([part[torch.arange(len(part)) // 2] for part in states.split(LENGTHS)])
    return [doubled.requires_grad_(), embedding[torch.arange(V) // 2].requires_grad_(), bias[torch.arange(V) // 2].requires_grad_()]


def layout(silent=None, lengths=LENGTHS):
    return PackedLayout(lengths, torch.tensor([0, *lengths]).cumsum(0), silent)


def plain(states, embedding, bias, silent=None, lengths=LENGTHS):
    """log(1 + relu(logit)), the largest (of equals the first), from all logits [T, V] -> [B, V]."""
    logits = torch.nn.functional.linear(states, embedding) + bias
    logits = logits if silent is None else logits.masked_fill(silent[:, None], float("-inf"))
    parts = torch.log1p(torch.relu(logits)).split(lengths)
    return torch.stack([part.max(0).values for part in parts])


def fast(states, embedding, bias, silent=None, lengths=LENGTHS):
    texts, terms, positions = splade.find_max_positions(states, layout(silent, lengths), embedding, bias)
    weights = torch.log1p(torch.relu(splade.selected_logits(states, embedding, bias, terms, positions)))
    return torch.zeros(len(lengths), len(embedding)).index_put((texts, terms), weights)


def outcome(form, tensors, silent=None):
    weights = form(*tensors, silent)
    (weights * torch.randn(weights.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
    return [weights.detach(), *(part.grad for part in tensors)]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients_are_those_of_the_plain_form(monkeypatch, silent, sizes, way):
    for table, size in zip((splade.TOKENS_AT_ONCE, splade.BYTES_AT_ONCE, gathered_products.BYTES_AT_ONCE), sizes, strict=True):
        monkeypatch.setitem(table, "cpu", size)
    monkeypatch.setattr(splade, "_packed_block", getattr(splade, way))
    mask = torch.cat([torch.arange(length) == length - 1 for length in LENGTHS]) & (torch.arange(sum(LENGTHS)) != 11) if silent else None
    results, expected_results = outcome(fast, tied(), mask), outcome(plain, tied(), mask)
    for value, expected in zip(results, expected_results, strict=True):
        assert (value - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_pairs_come_ordered_by_text_then_term(monkeypatch):
    monkeypatch.setitem(splade.BYTES_AT_ONCE, "cpu", 1000)
    states, embedding, bias = (part.detach() for part in inputs(2))
    texts, terms, _ = splade.find_max_positions(states, layout(), embedding, bias)
    keys = (texts * V + terms).tolist()
    assert keys == sorted(set(keys)) and len(keys) > V


def test_a_batch_without_any_positive_term_has_no_pairs():
    states, embedding, _ = inputs(3)
    bias = torch.full((V,), -1000.0)
    assert [len(part) for part in splade.find_max_positions(states, layout(), embedding, bias)] == [0, 0, 0]
    fast(states, embedding, bias).sum().backward()
    assert float(states.grad.abs().sum()) == 0


def test_half_precision_costs_no_more_than_in_the_plain_form():
    """Only factors of products are in half precision: outputs and gradients are float32, as close to full precision as the plain form."""
    whole, errors = outcome(plain, inputs(4)), {}
    for name, form in (("ours", fast), ("plain", plain)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results = outcome(form, inputs(4))
        errors[name] = [float((one.float() - other).norm() / other.norm()) for one, other in zip(results, whole, strict=True)]
        assert name == "plain" or {part.dtype for part in results} == {torch.float32}
    assert all(0 < ours <= 1.1 * theirs for ours, theirs in zip(errors["ours"], errors["plain"], strict=True)), errors


@pytest.mark.parametrize("share, dtype", [("few", torch.float32), ("many", torch.bfloat16)])
def test_memory_is_an_eighth_of_the_plain_form(dtype, share):
    """64 documents of at most 128 tokens and 8 queries, forward and backward, without inputs, outputs and gradients."""
    terms, width = 4000, 16
    generator = torch.Generator().manual_seed(7)
    sides = [torch.randint(low, high, (count,), generator=generator).tolist() for count, low, high in ((8, 8, 33), (64, 50, 129))]

    def used(forms):
        parts = [(torch.randn(sum(side), width).requires_grad_(), form, side) for side, form in zip(sides, forms, strict=True)]
        embedding, bias = torch.randn(terms, width).requires_grad_(), torch.full((terms,), -14.0 if share == "few" else -2.0)
        own = 2 * embedding.nbytes + sum(part.nbytes for part, _, _ in parts) + 72 * terms * 4

        def step():
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                weights = [form(part, embedding, bias, lengths=side) for part, form, side in parts]
            sum(each.sum() for each in weights).backward()

        return peak_bytes(step) - own

    assert used([fast] * 2) <= used([plain] * 2) / 8


@pytest.mark.parametrize("part", [0, 1, 2])  # states, word embeddings, bias
@pytest.mark.parametrize("way", WAYS)
def test_a_logit_that_is_nan_is_a_weight_that_is_nan(monkeypatch, way, part):
    monkeypatch.setattr(splade, "_packed_block", getattr(splade, way))
    tensors = [tensor.detach() for tensor in inputs()]
    tensors[part][1] = float("nan")
    expected = plain(*tensors).isnan()
    assert expected.any() and torch.equal(fast(*tensors).isnan(), expected)
