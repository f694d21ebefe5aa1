"""Every tensor kernel gives the same values and gradients on the device as on the CPU, in float32 and under autocast.

Dropout masks cannot be compared with the CPU's: the tests check the share of dropped weights, that the others are scaled up, that
gradients match the dropped weights, and that a seed reproduces everything.
"""

from contextlib import nullcontext

import pytest
import torch

from moeir.kernels import exact_match
from moeir.kernels.attention import PackedLayout, attention
from moeir.kernels.fused_cross_entropy import fused_linear_cross_entropy
from moeir.kernels.late_interaction import late_interaction
from moeir.kernels.splade import find_max_positions, selected_logits

LENGTHS, SILENT = (5, 3, 7, 7, 1, 3), (2, 0, 3, 1, 0, 1)
HEADS, RATE = 4, 0.3
PRECISIONS = ("float32", "bfloat16")
MARGINS = {"float32": 1e-4, "bfloat16": 0.04}


def random_tensor(*shape, seed=1, precision="float32"):
    """Random numbers that bfloat16 represents exactly if the products are in bfloat16."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers if precision == "float32" else numbers.bfloat16().float()


def layout(device, lengths=LENGTHS, silent=None):
    mask = None
    if silent is not None:
        mask = torch.cat([torch.arange(length) >= length - count for length, count in zip(lengths, silent, strict=True)]).to(device)
    return PackedLayout(tuple(lengths), torch.tensor([0, *lengths]).cumsum(0).to(device), mask)


def cast(device, precision):
    return torch.autocast("cuda", dtype=torch.bfloat16) if device != "cpu" and precision == "bfloat16" else nullcontext()


def states(parts, device, precision):
    """Leaves in float32, and the same cast as by a layer under autocast."""
    leaves = [part.clone().to(device).requires_grad_() for part in parts]
    return leaves, [leaf.bfloat16() if device != "cpu" and precision == "bfloat16" else leaf for leaf in leaves]


def compare_with_cpu(work, parts, device, precision):
    """Compare the values and gradients of `work(parts, device)` on the CPU in float32 and on the device."""
    results = []
    for where in ("cpu", device):
        leaves, inputs = states(parts, where, precision)
        with cast(where, precision):
            out = work(inputs, where)
        weights = random_tensor(*out.shape, seed=9).to(where)
        (out.float() * weights).sum().backward()
        assert out.device.type == torch.device(where).type
        results.append([out.detach().float().cpu(), *(leaf.grad.float().cpu() for leaf in leaves)])
    for expected, value in zip(*results, strict=True):
        assert value.isfinite().all()
        assert (value - expected).abs().max() <= MARGINS[precision] * max(1.0, float(expected.abs().max()))


FORMS = {
    "attention": lambda inputs, packed, rate: attention(*inputs, packed, dropout=rate),
    "window of 4": lambda inputs, packed, rate: attention(*inputs, packed, (2, 2), rate),
    "all before": lambda inputs, packed, rate: attention(*inputs, packed, (None, 0), rate, keeps_first=True),
    "two before": lambda inputs, packed, rate: attention(*inputs, packed, (1, 0), rate, keeps_first=True),
}
NO_ATTEND = {"silent": SILENT, "all heard": None}
ATTENTIONS = [(form, silent) for form in FORMS for silent in NO_ATTEND if silent != "silent" or "before" not in form]  # not in decoders


@pytest.mark.parametrize("width, precision", [(16, "bfloat16"), (16, "float32"), (12, "bfloat16")])
@pytest.mark.parametrize("form, silent", ATTENTIONS)
def test_attention_is_that_of_the_cpu(form, silent, precision, width, device):
    parts = [random_tensor(sum(LENGTHS), HEADS, width, seed=seed, precision=precision) for seed in range(3)]
    compare_with_cpu(lambda inputs, where: FORMS[form](inputs, layout(where, silent=NO_ATTEND[silent]), 0.0), parts, device, precision)


@pytest.mark.parametrize("silent, precision", [("silent", "float32"), ("all heard", "bfloat16")])
@pytest.mark.parametrize("form", FORMS)
def test_as_many_weights_are_dropped_as_should_be_the_others_grow_and_gradients_are_those_of_them(form, silent, precision, device):
    """Unit vectors as values make the output the attention weights; the reference multiplies them by the mask of kept weights."""
    counts = None if "before" in form else NO_ATTEND[silent]
    lengths, margin = LENGTHS * 60, MARGINS[precision]
    parts = [random_tensor(sum(LENGTHS), HEADS, 16, seed=seed).repeat(60, 1, 1) for seed in range(2)]
    parts.append(torch.cat([torch.eye(length, 16) for length in lengths])[:, None].expand(-1, HEADS, -1).contiguous())
    silent_counts = None if counts is None else counts * 60
    references = [part.clone().requires_grad_() for part in parts]
    weights = FORMS[form](references, layout("cpu", lengths, silent_counts), 0.0)
    leaves, inputs = states(parts, device, precision)
    torch.manual_seed(6)
    with cast(device, precision):
        out = FORMS[form](inputs, layout(device, lengths, silent_counts), RATE)
    output, present = out.detach().float().cpu(), weights > 1e-3
    assert not output[weights == 0].any()
    kept = output[present] != 0
    assert abs(kept.float().mean() - (1 - RATE)) < 5 * (RATE * (1 - RATE) / len(kept)) ** 0.5
    assert torch.allclose(output[present][kept], weights[present][kept] / (1 - RATE), atol=margin, rtol=margin)
    sums = output.sum(-1)  # each 1 where nothing is dropped
    assert abs(sums.mean() - 1) < 5 * sums.std() / len(sums) ** 0.5
    gradient = random_tensor(*out.shape, seed=4, precision=precision)
    out.backward(gradient.to(device=device, dtype=out.dtype))
    (weights * ((output != 0).float() / (1 - RATE))).backward(gradient)
    for leaf, reference in zip(leaves[:2], references[:2], strict=True):
        assert (leaf.grad.cpu() - reference.grad).abs().max() <= margin * max(1.0, float(reference.grad.abs().max()))
    assert leaves[2].grad.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_brings_back_what_was_dropped(form, device):
    parts, results = [random_tensor(sum(LENGTHS), HEADS, 16, seed=seed) for seed in range(3)], []
    for seed in (6, 6, 7):
        leaves, inputs = states(parts, device, "float32")
        torch.manual_seed(seed)
        out = FORMS[form](inputs, layout(device), RATE)
        out.square().sum().backward()
        results.append([out.detach().cpu(), *(leaf.grad.cpu() for leaf in leaves)])
    for first, again, other in zip(*results, strict=True):
        assert torch.allclose(first, again, atol=1e-6) and not torch.allclose(first, other, atol=1e-3)


def test_texts_without_tokens_disturb_nobody(device):
    lengths = (0, 3, 0, 2)
    parts = [random_tensor(5, HEADS, 16, seed=seed) for seed in range(3)]
    compare_with_cpu(lambda inputs, where: attention(*inputs, layout(where, lengths)), parts, device, "float32")


def sparse(texts, terms, weights, count, vocabulary):
    return weights.new_zeros(count, vocabulary).index_put((texts, terms), weights.float())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("silent", NO_ATTEND)
def test_weights_of_terms_are_those_of_the_cpu(silent, precision, device):
    parts = [
        random_tensor(sum(LENGTHS), 16, precision=precision) / 4,
        random_tensor(50, 16, seed=2, precision=precision),
        random_tensor(50, seed=3) / 4,
    ]

    def work(inputs, where):
        packed = layout(where, silent=NO_ATTEND[silent])
        leaves = [part.float() for part in inputs]
        texts, terms, positions = find_max_positions(leaves[0], packed, *leaves[1:])
        weights = torch.log1p(selected_logits(*leaves, terms, positions).relu())
        assert (texts * 50 + terms).diff().min() > 0
        return sparse(texts, terms, weights, len(LENGTHS), 50)

    compare_with_cpu(work, parts, device, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_token_losses_are_those_of_the_cpu(precision, device):
    parts = [random_tensor(9, 16, precision=precision), random_tensor(50, 16, seed=2, precision=precision), random_tensor(50, seed=3)]
    targets, correct = torch.arange(9) * 5, []

    def work(inputs, where):
        loss, right = fused_linear_cross_entropy(*(part.float() for part in inputs), targets.to(where))
        assert loss.dtype == torch.float32
        correct.append(int(right))
        return loss[None]

    compare_with_cpu(work, parts, device, precision)
    assert correct[0] == correct[1]


def test_rows_go_through_the_linear_map_that_each_chose(device):
    experts = pytest.importorskip("moeir.kernels.grouped_linear")
    choice = torch.tensor([1, 0, 1, 1, 3, 0, 1, 3, 3])  # nobody chose the third
    parts = [
        random_tensor(9, 16, precision="bfloat16"),
        random_tensor(4, 8, 16, seed=2, precision="bfloat16"),
        random_tensor(4, 8, seed=3, precision="bfloat16"),
    ]

    def work(inputs, where):
        if where != "cpu":
            return experts.grouped_linear(*inputs, experts.ExpertGroups.from_choice(choice.to(where), 4))
        rows, weights, biases = inputs
        return torch.stack([row @ weights[expert].T + biases[expert] for row, expert in zip(rows, choice.tolist(), strict=True)])

    compare_with_cpu(work, parts, device, "bfloat16")


def starts(lengths, device):
    return torch.tensor([0, *lengths]).cumsum(0).to(device)


@pytest.mark.parametrize("lengths", [(4, 1, 6, 2), (3, 0, 5), (2,)], ids=str)
def test_late_interaction_is_that_of_the_cpu(lengths, device):
    parts = [random_tensor(8, 12), random_tensor(sum(lengths), 12, seed=2)]

    def work(inputs, where):
        scores = late_interaction(inputs[0], starts((3, 5), where), inputs[1], starts(lengths, where))
        return scores.masked_fill(scores.isinf(), -9.0)

    compare_with_cpu(work, parts, device, "float32")


def test_matches_of_equal_terms_are_those_of_the_cpu(device):
    generator = torch.Generator().manual_seed(3)
    query_terms, document_terms = torch.randint(0, 5, (7,), generator=generator), torch.randint(0, 5, (20,), generator=generator)
    inputs = (random_tensor(7, 8), query_terms, random_tensor(20, 8, seed=2), document_terms, torch.arange(20) // 4)
    ours, theirs = ([part.cpu() for part in exact_match.find_best_matches(*(part.to(on) for part in inputs))] for on in (device, "cpu"))
    assert len(theirs[0]) > 5 and len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))
