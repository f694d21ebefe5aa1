"""Cross-entropy against the tied embeddings, part by part: values and gradients of the plain form."""

import pytest
import torch
import torch.nn.functional as F

from moeir.kernels import fused_cross_entropy as kernel
from moeir.kernels.fused_cross_entropy import fused_linear_cross_entropy, reduce_logits

V, E, ROWS = 50, 12, 23
SIZES = [(1, 1), (7 * V * 4, 3 * V * 4), (7 * V * 4, 1 << 20), (1 << 27, 5 * V * 4), (1 << 27, 1 << 20)]


def inputs(seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(*shape, generator=generator).requires_grad_() for shape in ((rows, E), (V, E), (V,))]
    return parts, torch.randint(V, (rows,), generator=generator)


def plain(states, embedding, bias, targets):
    logits = states @ embedding.T + bias
    return F.cross_entropy(logits, targets), (logits.argmax(1) == targets).sum()


def outcome(form, *reduction, seed=0):
    """The loss of a form, the number of correct predictions, and the gradients of three times the loss."""
    tensors, targets = inputs(seed)
    loss, correct = form(*tensors, targets, *reduction)
    (3.0 * loss).backward()
    return [loss.detach(), correct, *(part.grad for part in tensors)]


@pytest.mark.parametrize(("at_once", "in_cache"), SIZES)
def test_values_and_gradients_are_those_of_the_plain_form(monkeypatch, at_once, in_cache):
    monkeypatch.setattr(kernel, "BYTES_AT_ONCE", at_once)
    monkeypatch.setattr(kernel, "BYTES_IN_CACHE", in_cache)
    for expected, value in zip(outcome(plain), outcome(fused_linear_cross_entropy), strict=True):
        assert (value - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def test_compiled_reductions_are_those_of_the_plain_form(monkeypatch):
    """Tests the traced graph, over chunks of two sizes; the kernels compiled for CUDA are compared on a real device."""
    monkeypatch.setattr(kernel, "BYTES_AT_ONCE", 7 * V * 4)
    monkeypatch.setattr(kernel, "BYTES_IN_CACHE", 4 * V * 4)
    compiled = torch.compile(reduce_logits, dynamic=True, fullgraph=True, backend="aot_eager")
    results = (outcome(fused_linear_cross_entropy, reduce, seed=6) for reduce in (reduce_logits, compiled))
    for expected, value in zip(*results, strict=True):
        assert torch.allclose(value, expected, rtol=1e-6, atol=1e-7)


def test_a_worked_example():
    """Two words of logits 0 and ln 3: three quarters and one quarter."""
    embedding, bias = torch.tensor([[0.0], [1.0]]), torch.zeros(2)
    states = torch.tensor([[3.0], [3.0]]).log()
    loss, correct = fused_linear_cross_entropy(states, embedding, bias, torch.tensor([1, 0]))
    assert float(loss) == pytest.approx(-(torch.tensor(0.75).log() + torch.tensor(0.25).log()) / 2)
    assert int(correct) == 1


def test_nothing_to_predict_costs_nothing_and_moves_nothing():
    tensors, targets = inputs(rows=0)
    loss, correct = fused_linear_cross_entropy(*tensors, targets)
    loss.backward()
    assert float(loss.detach()) == 0 and int(correct) == 0 and float(tensors[1].grad.abs().sum()) == 0


def test_one_gradient_may_be_all_that_is_wanted():
    (states, embedding, bias), targets = inputs(3)
    loss, _ = fused_linear_cross_entropy(states, embedding.detach(), bias.detach(), targets)
    loss.backward()
    reference = inputs(3)[0]
    plain(*reference, targets)[0].backward()
    assert torch.allclose(states.grad, reference[0].grad, atol=1e-6) and embedding.grad is None


def test_half_precision_is_for_products_only():
    tensors, targets = inputs(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = fused_linear_cross_entropy(*tensors, targets)
    loss.backward()
    whole = inputs(4)[0]
    full, _ = fused_linear_cross_entropy(*whole, targets)
    full.backward()
    half, one = loss.item(), full.item()
    assert loss.dtype == torch.float32 and half == pytest.approx(one, rel=2e-2) and half != one
    for left, right in zip(tensors, whole, strict=True):
        assert left.grad.dtype == torch.float32 and (left.grad - right.grad).norm() <= 0.03 * right.grad.norm()


def test_no_more_logits_than_a_part_are_kept(monkeypatch):
    monkeypatch.setattr(kernel, "BYTES_AT_ONCE", 2 * V * 4)
    saved_sizes = []
    tensors, targets = inputs(5, rows=200)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved_sizes.append(tensor.numel()) or tensor, lambda tensor: tensor):
        fused_linear_cross_entropy(*tensors, targets)
    assert max(saved_sizes) <= max(200 * E, V * E) < 200 * V
    with torch.no_grad():
        assert fused_linear_cross_entropy(*tensors, targets)[0].requires_grad is False
