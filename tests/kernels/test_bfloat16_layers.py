"""The loops of a training step in bfloat16 on a CPU against float32 formulas, with the dropped elements computed by numpy."""

from dataclasses import replace

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from moeir.architectures.checkpoint import open_checkpoint
from moeir.backbones.device import autocast
from moeir.backbones.layers import Attention, FeedForward, Layer
from moeir.kernels import bfloat16_layers, bfloat16_loops
from moeir.kernels.attention import PackedLayout, attention

SEEDS = np.array([123456789, 987654321], np.uint32)
LENGTHS = (1, 3, 15, 16, 17, 40, 40)
HEADS, WIDTH = 4, 16


def hash_indices(count, seeds):
    """lowbias32 with a seed before each round, by numpy."""
    bits = np.arange(count, dtype=np.uint32) ^ seeds[0]
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
    bits ^= seeds[1]
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))


def kept_factors(shape, rate, seeds=SEEDS):
    """What each element is multiplied with."""
    kept = torch.from_numpy(hash_indices(int(np.prod(shape)), seeds) >= round(rate * 2**32))
    return kept.view(shape).float() / (1 - rate)


@pytest.fixture(params=[0.0, 0.25], ids=["all kept", "a quarter dropped"])
def rate(request, monkeypatch):
    """The rate of a dropout with known seeds."""
    choose = bfloat16_layers._choose
    monkeypatch.setattr(bfloat16_layers, "_choose", lambda one: (SEEDS, *choose(one)[1:]))
    return request.param


def draw(*shape, scale=1.0):
    """Numbers that bfloat16 holds exactly."""
    return (torch.randn(*shape) * scale).bfloat16()


def both_ways(function, reference, *inputs):
    """Output and gradients of the inputs, of a function in bfloat16 and of its formula in float32, for the same drawn gradient."""
    found = []
    for compute, dtype in ((function, torch.bfloat16), (reference, torch.float32)):
        leaves = [part.detach().to(dtype).requires_grad_() for part in inputs]
        output = compute(*leaves)
        torch.manual_seed(2)
        output.backward(draw(*output.shape).to(output.dtype))
        found.append([output.detach().float(), *(leaf.grad.float() for leaf in leaves)])
    return found


def assert_close(found, expected, tolerance):
    """Equal within a share of the largest number."""
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= tolerance * other.abs().max()


def test_dropout_drops_the_share_that_was_asked_for_and_scales_the_rest(rate):
    values = draw(1000, 300)
    (found, gradient), (expected, expected_gradient) = both_ways(
        lambda part: bfloat16_layers.drop(part, rate), lambda part: part * kept_factors(part.shape, rate), values
    )
    assert_close([found, gradient], [expected, expected_gradient], 0.005)
    assert (found == 0).float().mean() == pytest.approx(rate, abs=0.002)


def test_seeds_differ_from_call_to_call_and_follow_torchs_generator():
    ones = torch.ones(2, 5000, dtype=torch.bfloat16)
    torch.manual_seed(7)
    first, second = bfloat16_layers.drop(ones, 0.5), bfloat16_layers.drop(ones, 0.5)
    torch.manual_seed(7)
    assert torch.equal(bfloat16_layers.drop(ones, 0.5), first)
    for one, other in ((first, second), (first[0], first[1])):
        assert ((one > 0) == (other > 0)).float().mean() == pytest.approx(0.5, abs=0.03)


def test_everything_can_be_dropped():
    values = draw(10, 20).requires_grad_()
    out = bfloat16_layers.drop(values, 1.0)
    out.sum().backward()
    assert not out.any() and not values.grad.any()


def test_residual_and_normalisation_equal_the_formula(rate):
    norm = torch.nn.LayerNorm(96, eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    update, residual = draw(203, 96), draw(203, 96, scale=3)

    found, expected = both_ways(
        lambda update, residual: bfloat16_layers.add_norm(update, residual, norm, rate),
        lambda update, residual: norm(residual + update * kept_factors(update.shape, rate)),
        update,
        residual,
    )
    assert_close(found, expected, 0.012)


def test_gradients_of_a_normalisations_weights_equal_the_formula(rate):
    norms = [torch.nn.LayerNorm(64) for _ in range(2)]
    for norm in norms:
        torch.manual_seed(3)
        torch.nn.init.normal_(norm.weight)
    update, residual, gradient = draw(333, 64), draw(333, 64), draw(333, 64)
    bfloat16_layers.add_norm(update, residual, norms[0], rate).backward(gradient)
    norms[1](residual.float() + update.float() * kept_factors(update.shape, rate)).backward(gradient.float())
    assert_close([norms[0].weight.grad, norms[0].bias.grad], [norms[1].weight.grad, norms[1].bias.grad], 0.01)


def test_gelu_equals_the_formula():
    values = torch.cat([draw(5000, scale=2), torch.tensor([0.0, -0.0, 1e-30, 30.0, -30.0, 300.0, -300.0]).bfloat16()])
    found, expected = both_ways(bfloat16_layers.gelu, F.gelu, values)
    assert (found[0] - expected[0]).abs().max() <= 2**-8 * expected[0].abs().max()
    small = values.abs() < 8
    assert (found[0] - expected[0])[small].abs().max() < 0.02 and (found[1] - expected[1]).abs().max() < 0.02


def attend(joint, rate=0.0, factors=None):
    """The formula of attention, in float32, of each text by itself; `factors` [texts, heads, L, L] multiply the weights."""
    outputs = []
    for number, text in enumerate(joint.split(LENGTHS)):
        query, key, value = (part.transpose(0, 1) for part in text.unflatten(-1, (3, HEADS, WIDTH)).unbind(1))
        weights = (query @ key.transpose(1, 2) / WIDTH**0.5).softmax(-1)
        weights = weights if factors is None else weights * factors[number]
        outputs.append((weights @ value).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def layout():
    """Texts of LENGTHS tokens."""
    return PackedLayout(LENGTHS, torch.tensor([0, *np.cumsum(LENGTHS)]))


def test_attention_equals_the_formula(rate):
    groups = layout().padded_groups(bfloat16_layers.LENGTH_MULTIPLE)
    assert [(starts.tolist(), lengths.tolist(), longest) for starts, lengths, longest in groups] == [
        ([0, 1, 4, 19], [1, 3, 15, 16], 16),
        ([35], [17], 32),
        ([52, 92], [40, 40], 48),
    ]
    factors = []
    for _, lengths, longest in groups:
        of_group = kept_factors((len(lengths), HEADS, longest, longest), rate)
        factors += [one[:, :length, :length] for one, length in zip(of_group, lengths, strict=True)]
    found, expected = both_ways(
        lambda joint: bfloat16_layers.joint_attention(joint, layout(), HEADS, rate),
        lambda joint: attend(joint, factors=factors),
        draw(sum(LENGTHS), 3 * HEADS * WIDTH),
    )
    assert_close(found, expected, 0.02)


def test_attention_equals_torchs_without_dropout():
    joint = draw(sum(LENGTHS), 3 * HEADS * WIDTH)
    heads = joint.float().unflatten(-1, (3, HEADS, WIDTH)).unbind(1)
    assert_close([bfloat16_layers.joint_attention(joint, layout(), HEADS, 0.0)], [attention(*heads, layout()).flatten(-2)], 0.01)


def test_groups_of_long_texts_are_cut_so_that_their_scores_fit_the_cache():
    lengths = (256, 250, 256, 600, 601)
    groups = PackedLayout(lengths, torch.tensor([0, *np.cumsum(lengths)])).padded_groups(16)
    assert [(starts.tolist(), lengths.tolist(), longest) for starts, lengths, longest in groups] == [
        ([0, 256], [256, 250], 256),
        ([506], [256], 256),
        ([762], [600], 608),
        ([1362], [601], 608),
    ]


def test_groups_have_powers_of_two_of_texts_so_that_few_products_are_compiled():
    lengths = (*[32] * 23, *[100] * 7)
    groups = PackedLayout(lengths, torch.tensor([0, *np.cumsum(lengths)])).padded_groups(16)
    assert [len(starts) for starts, _, _ in groups] == [16, 4, 2, 1, 4, 2, 1]
    assert np.concatenate([starts for starts, _, _ in groups]).tolist() == [0, *np.cumsum(lengths)[:-1]]


@pytest.mark.parametrize("width", [16, 48, 7])
def test_both_forms_of_powers_equal_numpys(width, monkeypatch):
    scores = draw(width) * 20
    scores[1] = -torch.inf
    expected = np.exp2((scores.float() * 0.5 - 3).numpy())
    for by_processor in {False, bfloat16_loops.BY_PROCESSOR}:
        monkeypatch.setattr(bfloat16_loops, "BY_PROCESSOR", by_processor)
        power_row = numba.njit(fastmath=bfloat16_loops.ALGEBRA)(bfloat16_loops._power_row.py_func)  # reads the flag when it is compiled
        row = scores.clone()
        total = power_row(bfloat16_layers.as_bits(row), np.float32(0.5), np.float32(-3))
        np.testing.assert_allclose(row.float().numpy(), expected, rtol=2**-8, atol=1e-30)
        np.testing.assert_allclose(total, expected.sum(), rtol=2e-3)


@pytest.mark.parametrize("lengths", [LENGTHS, (64, 64), (5, 64, 64, 128), (256, 250, 256)])
def test_attention_for_inference_equals_the_formula(lengths):
    texts = PackedLayout(lengths, torch.tensor([0, *np.cumsum(lengths)]))
    joint = draw(sum(lengths), 3 * HEADS * WIDTH)
    heads = joint.float().unflatten(-1, (3, HEADS, WIDTH)).unbind(1)
    found = bfloat16_layers.inference_attention(joint, texts, HEADS)
    assert_close([found], [attention(*heads, texts).flatten(-2)], 0.01)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16 units: nothing is packed")
def test_attention_for_inference_is_used_in_the_packed_form_of_long_enough_texts(came_checkpoint, monkeypatch):
    names = used(monkeypatch)
    checkpoint = open_checkpoint(came_checkpoint)
    checkpoint.pack_for_inference(torch.bfloat16)
    for words, expected in ((3, set()), (30, {"inference_attention"})):
        with autocast(torch.bfloat16, "cpu"):
            checkpoint.architecture(checkpoint.tokenize(["alpha " * words], "document"))
        assert set(names) == expected


def test_large_scores_do_not_overflow_and_nan_stays_in_its_text():
    joint = draw(sum(LENGTHS), 3 * HEADS * WIDTH, scale=60)
    assert bfloat16_layers.joint_attention(joint, layout(), HEADS, 0.0).isfinite().all()
    assert bfloat16_layers.inference_attention(joint, layout(), HEADS).isfinite().all()
    joint[25, 3] = float("nan")  # a query of the text of 16 tokens
    for mixed in (
        bfloat16_layers.joint_attention(joint, layout(), HEADS, 0.1),
        bfloat16_layers.inference_attention(joint, layout(), HEADS),
    ):
        nan = mixed.isnan().any(1)
        assert nan[25] and not nan[:19].any() and not nan[35:].any()


def test_numbers_do_not_depend_on_the_number_of_threads():
    joint, update = draw(sum(LENGTHS), 3 * HEADS * WIDTH), draw(sum(LENGTHS), 64)
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            norm, leaf = torch.nn.LayerNorm(64), joint.clone().requires_grad_()
            torch.manual_seed(1)
            mixed = bfloat16_layers.joint_attention(leaf, layout(), HEADS, 0.1)
            out = bfloat16_layers.gelu(bfloat16_layers.drop(bfloat16_layers.add_norm(update, mixed, norm, 0.1), 0.1))
            out.backward(update)
            results.append([out, leaf.grad, norm.weight.grad, norm.bias.grad])
        finally:
            torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def used(monkeypatch):
    """The names of the fused functions that are called from now on."""
    names = []
    for name in ("add_norm", "gelu", "joint_attention", "inference_attention", "drop"):
        function = getattr(bfloat16_layers, name)
        monkeypatch.setattr(bfloat16_layers, name, lambda *given, _function=function, _name=name: names.append(_name) or _function(*given))
    return names


def encode(checkpoint, dtype=torch.bfloat16):
    """The vectors of three texts, with seeded dropout."""
    torch.manual_seed(5)
    with autocast(dtype, "cpu"):
        output = checkpoint.architecture(checkpoint.tokenize(["alpha", "alpha beta gamma", "gamma beta " * 9], "document").sort_by_length())
    return output["global"].vectors


@pytest.fixture
def trained_model(came_checkpoint):
    """A checkpoint in training, with dropout everywhere."""
    checkpoint = open_checkpoint(came_checkpoint)
    checkpoint.architecture.train()
    for module in checkpoint.architecture.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2
        if isinstance(module, Attention):
            module.attention_dropout = 0.2
    return checkpoint


def test_only_a_training_in_bfloat16_uses_the_loops(trained_model, monkeypatch):
    names = used(monkeypatch)
    encode(trained_model)
    assert set(names) == {"add_norm", "gelu", "joint_attention", "drop"}
    names.clear()
    encode(trained_model, torch.float32)
    trained_model.architecture.eval()
    encode(trained_model)
    assert not names


def test_without_a_graph_a_training_pass_has_the_same_numbers(trained_model):
    with torch.no_grad():  # as gradient caching encodes first
        first = encode(trained_model)
    assert torch.equal(first, encode(trained_model))


def test_recomputed_layers_have_the_same_gradients(trained_model):
    gradients = []
    for checkpointing in (False, True):
        trained_model.architecture.zero_grad()
        for module in trained_model.architecture.modules():
            if isinstance(module, Layer):
                module.gradient_checkpointing = checkpointing
        vectors = encode(trained_model).float()
        (vectors @ vectors.T).logsumexp(1).sum().backward()
        gradients.append([part.grad for part in trained_model.architecture.parameters() if part.grad is not None])
    assert all(map(torch.equal, *gradients))


def test_a_trained_pass_equals_that_of_float32_without_dropout(trained_model, monkeypatch):
    for module in trained_model.architecture.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, Attention):
            module.attention_dropout = 0.0
    names = used(monkeypatch)
    gradients = {}
    for dtype in (torch.bfloat16, torch.float32):
        trained_model.architecture.zero_grad()
        vectors = encode(trained_model, dtype).float()
        (vectors @ vectors.T).logsumexp(1).sum().backward()
        gradients[dtype] = torch.cat([part.grad.flatten() for part in trained_model.architecture.parameters() if part.grad is not None])
    assert "joint_attention" in names
    assert torch.cosine_similarity(gradients[torch.bfloat16], gradients[torch.float32], dim=0) > 0.995


def test_queries_with_tokens_that_are_not_attended_to_use_torchs_attention(trained_model, monkeypatch):
    names = used(monkeypatch)
    layer = next(module for module in trained_model.architecture.modules() if isinstance(module, Attention))
    hidden = layer.query.in_features
    masked = replace(layout(), no_attend_mask=torch.arange(sum(LENGTHS)) == 60)
    with autocast(torch.bfloat16, "cpu"):
        layer(torch.randn(sum(LENGTHS), hidden), masked)
    assert names == ["add_norm"]


@pytest.mark.parametrize(("rate", "longest", "expected"), [(0.0, 256, True), (0.0, 257, False), (0.1, 257, True)])
def test_attention_to_long_texts_without_dropout_is_torchs(rate, longest, expected):
    texts, joint = PackedLayout((3, longest), torch.tensor([0, 3, 3 + longest])), draw(3 + longest, 24)
    assert bfloat16_layers.supports_joint_attention(joint, texts, 8, rate) == expected
    assert not bfloat16_layers.supports_joint_attention(joint, texts, 6, rate)
    assert not bfloat16_layers.supports_joint_attention(joint.float(), texts, 8, rate)


def test_feed_forwards_of_other_activations_use_torchs(monkeypatch):
    names = used(monkeypatch)
    config = type("Config", (), {"hidden": 16, "intermediate_size": 32, "epsilon": 1e-6, "dropout": 0.1, "activation": "relu"})
    layer = FeedForward(config).train()
    with autocast(torch.bfloat16, "cpu"):
        layer.transform(torch.randn(5, 16))
    assert names == ["add_norm"]


def test_the_hash_is_that_of_numpy():
    ones, kept = np.full(1000, 0x3F80, np.uint16), np.empty(1000, np.uint16)
    bfloat16_loops.drop_elements(0, 1000, ones, SEEDS, np.uint32(2**31), np.float32(2), kept)
    assert ((kept > 0) == (hash_indices(1000, SEEDS) >= 2**31)).all()
