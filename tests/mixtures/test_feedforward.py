"""Routed feed-forward experts: chosen experts, outputs, and gradients of the gate."""

import pytest
import torch
import torch.nn.functional as F

from moeir.backbones.config import EncoderConfig, PreNormConfig
from moeir.backbones.layers import FeedForward, GatedFeedForward
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.grouped_linear import ExpertGroups
from moeir.mixtures import router
from moeir.mixtures.feedforward import RoutedFeedForward, select_expert_layers
from tests.oracles import routing as oracles

SHAPE = EncoderConfig(40, 16, 4, 2, 24, positions=32, dropout=0.0, attention_dropout=0.0, initializer_range=0.3)
TEXTS = [[1, 7, 9, 2], [1, 8, 2], [1, 3, 4, 5, 6, 2], [1, 11, 2]]


def mixture(routing, experts=3, seed=0, **options):
    torch.manual_seed(seed)
    experts_layer = RoutedFeedForward(FeedForward(SHAPE), experts=experts, routing=routing, **options)
    for expert in experts_layer.experts:  # makes the copies differ
        for parameter in expert.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return experts_layer


def states(seed=1):
    torch.manual_seed(seed)
    packed = PackedTokens.from_lists(TEXTS, "query")
    return torch.randn(len(packed.ids), SHAPE.hidden), torch.randn(len(packed.ids), SHAPE.hidden), packed


@pytest.mark.parametrize("experts", [2, 3, 5])
def test_a_role_is_a_group_of_experts(experts):
    experts_layer = mixture("role", experts).eval()
    x, block, packed = states()
    half = experts // 2
    for side, expert in (("query", 0), ("document", half)):
        assert torch.equal(experts_layer(x, PackedTokens.from_lists(TEXTS, side), block), experts_layer.experts[expert](x, packed, block))
    experts_layer.train()
    torch.manual_seed(3)
    for side, group in (("query", list(experts_layer.experts)[:half]), ("document", list(experts_layer.experts)[half:])):
        output = experts_layer(x, PackedTokens.from_lists(TEXTS, side), block)
        own = {tuple(row.tolist()) for expert in group for row in expert(x, packed, block).round(decimals=4)}
        assert all(tuple(row.tolist()) in own for row in output.round(decimals=4)), "a text's token comes from an expert of its side"


@pytest.mark.parametrize("routing", ["sequence", "token"])
@pytest.mark.parametrize("gate_input", router.GATE_INPUTS)
def test_in_use_the_most_probable_expert_runs(routing, gate_input):
    experts_layer = mixture(routing, gate_input=gate_input).eval()
    x, block, packed = states()
    gate_inputs = x if gate_input == "ffn_input" else block
    gate_inputs = gate_inputs[packed.starts[:-1]] if routing == "sequence" else gate_inputs
    probabilities = (gate_inputs @ experts_layer.gate.weight.T + experts_layer.gate.bias).softmax(-1)
    choice = probabilities.argmax(-1)
    choice = choice[packed.text_indices()] if routing == "sequence" else choice
    assert len(set(choice.tolist())) > 1, "the example is no example if one expert takes all"
    assert torch.allclose(experts_layer(x, packed, block), oracles.routed_feedforward(experts_layer.experts, x, choice), atol=1e-6)
    assert torch.allclose(experts_layer.last_routing.probabilities, probabilities, atol=1e-6)
    assert experts_layer.last_routing.starts.tolist() == ([0, 1, 2, 3, 4] if routing == "sequence" else packed.starts.tolist())


def sampled_weights(experts_layer, x, packed, seed=9):
    """The Gumbel-softmax sample of each token that a forward pass with this seed takes."""
    torch.manual_seed(seed)
    gate_inputs = x[packed.starts[:-1]] if experts_layer.routing == "sequence" else x
    logits = gate_inputs @ experts_layer.gate.weight.T + experts_layer.gate.bias
    sampled = router.gumbel_softmax(logits, experts_layer.temperature, router.uniform_like(logits))
    rows = packed.text_indices() if experts_layer.routing == "sequence" else slice(None)
    return logits[rows], sampled[rows]


def forward(experts_layer, x, packed, block, seed=9):
    torch.manual_seed(seed)
    return experts_layer(x, packed, block)


@pytest.mark.parametrize("routing", ["sequence", "token"])
@pytest.mark.parametrize("gradient", ["switch", "full", "pair"])
def test_outputs_and_gradients_are_those_of_the_formula(routing, gradient):
    """`switch`: the term of the chosen expert. `full` (TASER, appendix A): y = Σ z_i · expert_i(h); an expert ends with its own
    normalisation. `pair`: ½ (1 - p_m) (l_j - l_m) times the difference of the two outputs, j the second best of
    the Gumbel sample; the output is m's."""
    layer = mixture(routing, gradient=gradient, temperature=0.7)
    x, block, packed = states()
    x.requires_grad_()
    output = forward(layer, x, packed, block)
    logits, weights = sampled_weights(layer, x, packed)
    if gradient == "full":
        by_hand = oracles.straight_through(layer.experts, x, weights)
    elif gradient == "switch":
        strength, choice = weights.max(-1)
        by_hand = oracles.routed_feedforward(layer.experts, x, choice, 1.0 + strength - strength.detach())
    else:
        chosen, other = weights.topk(2).indices.T
        one, two = (oracles.routed_feedforward(layer.experts, x, choice) for choice in (chosen, other))
        rows = torch.arange(len(x))
        difference = logits[rows, other] - logits[rows, chosen]
        factor = 0.5 * (1 - logits.softmax(-1)[rows, chosen].detach()) * (difference - difference.detach())
        by_hand = one + factor[:, None] * (two - one).detach()
    assert torch.allclose(output, by_hand, atol=1e-5)
    torch.manual_seed(4)
    slopes, leaves = torch.randn_like(output), [x, *layer.gate.parameters(), *layer.experts.parameters()]
    expected, actual = (torch.autograd.grad((one * slopes).sum(), leaves, allow_unused=True) for one in (by_hand, output))
    assert expected[1].norm() > 1e-3
    for left, right in zip(expected, actual, strict=True):
        if left is None or right is None:
            assert left is right
        else:
            assert torch.allclose(left, right, atol=1e-4)
            assert not left.any() or F.cosine_similarity(left.flatten(), right.flatten(), dim=0) > 0.99999


def test_the_gate_of_equal_experts_is_pushed_by_switch_alone():
    """The expected loss does not depend on the gate then: its gradient is 0."""
    norms = {}
    for gradient in ("full", "pair", "switch"):
        torch.manual_seed(0)
        experts_layer = RoutedFeedForward(FeedForward(SHAPE), experts=3, routing="token", gradient=gradient)
        x, block, packed = states()
        (forward(experts_layer, x, packed, block) * torch.randn_like(x)).sum().backward()
        norms[gradient] = float(experts_layer.gate.weight.grad.norm())
    assert norms["full"] < 1e-5 and norms["pair"] < 1e-5 and norms["switch"] > 0.1, norms


def test_straight_through_changes_no_bit_of_what_the_chosen_expert_says():
    torch.manual_seed(2)
    x, packed, outputs = torch.randn(2000, SHAPE.hidden), PackedTokens.from_lists([[1] * 20] * 100, "query"), []
    for gradient in router.GRADIENTS:
        experts_layer = mixture("token", gradient=gradient)
        torch.manual_seed(4)
        outputs.append(experts_layer(x, packed, x))
    assert all(torch.equal(outputs[0], output) for output in outputs[1:])


def test_at_inference_only_the_chosen_expert_runs():
    experts_layer = mixture("token", experts=4).eval()
    x, block, packed = states()
    tokens_seen = []
    for expert in experts_layer.experts:
        expert.up.register_forward_hook(lambda module, inputs, output: tokens_seen.append(len(output)))
    experts_layer(x, packed, block)
    assert sum(tokens_seen) == len(x)


def test_gumbel_noise_draws_experts_as_often_as_their_probabilities_say():
    logits = torch.tensor([0.0, 1.0, -1.0])
    weights = router.gumbel_softmax(logits.expand(40_000, 3), 1.0, router.uniform_like(logits.expand(40_000, 3)))
    counts = torch.bincount(weights.argmax(-1), minlength=3) / 40_000
    assert torch.allclose(counts, logits.softmax(0), atol=0.01) and torch.allclose(weights.sum(-1), torch.ones(40_000), atol=1e-5)


def test_the_place_of_experts():
    assert select_expert_layers(12, every=2) == [2, 5, 8, 11], "layers 3, 6, 9 and 12 of BERT: TASER with T = 2"
    assert select_expert_layers(12, every=2, layers=("7", "4", "1")) == [0, 3, 6]
    for every, layers in ((12, ()), (-1, ()), (2, ("0",)), (2, ("13",)), (2, ("x",)), (2, ("1", "13"))):
        with pytest.raises(UsageError):
            select_expert_layers(12, every=every, layers=layers)


@pytest.mark.parametrize("shared", [True, False])
def test_a_centred_gate_is_even_at_the_mean_of_its_layer_and_reads_differences_from_it_as_before(shared):
    torch.manual_seed(1)
    gate = router.make_gate(16, 2)
    layers = [RoutedFeedForward(FeedForward(SHAPE), experts=2, routing="token", gate=gate if shared else None) for _ in range(2)]
    for layer in layers:
        mean, weight = 30 * torch.randn(16), layer.active_gate.weight.detach().clone()
        inputs = mean + torch.randn(400, 16)
        before = layer._gate_logits(inputs)
        names = list(layer.state_dict())
        layer.centre_gate(mean)
        assert layer._gate_logits(mean[None]).abs().max() < 1e-4, "neither expert is preferred"
        shift = layer._gate_logits(inputs) - before
        assert (shift - shift[0]).abs().max() < 1e-4 and shift.abs().max() > 0.1
        assert torch.equal(layer.active_gate.weight, weight) and list(layer.state_dict()) == names
    assert not torch.allclose(layers[0].gate_offset, layers[1].gate_offset), "each layer has a centre of its own"


def test_half_precision_routes_in_float32():
    experts_layer = mixture("token").eval()
    x, block, packed = states()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        experts_layer(x, packed, block)
    assert experts_layer.last_routing.probabilities.dtype == torch.float32


@pytest.mark.skipif(torch.__version__ < "2.10", reason="torch has grouped products from 2.10 on")
@pytest.mark.parametrize("prenorm", [False, True])
@pytest.mark.parametrize("learned", [True, False])
def test_grouped_products_say_what_expert_by_expert_says(prenorm, learned):
    """The CUDA path under bfloat16 autocast, on a CPU: the same expert for each token, values and gradients within bfloat16."""
    torch.manual_seed(3)
    plain = GatedFeedForward(SHAPE, PreNormConfig(windows=(None,) * 4, thetas=(10.0,) * 4)) if prenorm else FeedForward(SHAPE)
    experts_layer = RoutedFeedForward(plain, experts=3, routing="token").train()
    for expert in experts_layer.experts:
        for parameter in expert.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    states = torch.randn(40, SHAPE.hidden, requires_grad=True)
    choice, slopes = torch.randint(3, (40,)), torch.randn(40, SHAPE.hidden)
    strength = torch.ones(40, 1, requires_grad=True) if learned else None
    leaves = [states, *experts_layer.experts.parameters(), *([strength] if learned else [])]
    results = []
    for grouped in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            groups = ExpertGroups.from_choice(choice, 3)
            apply, by = (experts_layer._apply_grouped, groups) if grouped else (experts_layer._apply_choice, choice)
            out = apply(states, by, strength)
        gradients = torch.autograd.grad((out.float() * slopes).sum(), leaves, allow_unused=True)
        results.append([out.detach().float(), *(one.float() for one in gradients if one is not None)])
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 0.03 * other.norm()
