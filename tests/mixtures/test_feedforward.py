"""Routed feed-forward experts: chosen experts, outputs, and gradients of the gate."""

import copy

import pytest
import torch
from torch import nn

from moeir.backbones.config import EncoderConfig, PreNormConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import FeedForward, GatedFeedForward
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.grouped_linear import ExpertGroups
from moeir.mixtures import feedforward
from moeir.mixtures.feedforward import RoutedFeedForward, insert_experts, select_expert_layers
from tests.oracles import routing as oracles

SHAPE = EncoderConfig(
    vocabulary=40,
    hidden=16,
    layers=4,
    heads=2,
    intermediate_size=24,
    positions=32,
    dropout=0.0,
    attention_dropout=0.0,
    initializer_range=0.3,
)
TEXTS = [[1, 7, 9, 2], [1, 8, 2], [1, 3, 4, 5, 6, 2], [1, 11, 2]]


def tokens(side="query"):
    return PackedTokens.from_lists(TEXTS, side)


def mixture(routing, experts=3, seed=0, **options):
    torch.manual_seed(seed)
    experts_layer = RoutedFeedForward(FeedForward(SHAPE), experts=experts, routing=routing, **options)
    for expert in experts_layer.experts:  # makes the copies differ
        for parameter in expert.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return experts_layer


def states(seed=1):
    torch.manual_seed(seed)
    packed = tokens()
    return torch.randn(len(packed.ids), SHAPE.hidden), torch.randn(len(packed.ids), SHAPE.hidden), packed


def test_every_expert_starts_as_the_layer_it_replaces():
    plain = FeedForward(SHAPE)
    x, block, packed = states()
    for routing in feedforward.ROUTINGS:
        experts_layer = RoutedFeedForward(plain, experts=4, routing=routing).eval()
        assert torch.allclose(experts_layer(x, packed, block), plain(x, packed, block), atol=1e-6)
        assert experts_layer.experts[0].up.weight is not experts_layer.experts[1].up.weight


@pytest.mark.parametrize("experts", [2, 3, 5])
def test_a_role_is_a_group_of_experts(experts):
    experts_layer = mixture("role", experts).eval()
    x, block, packed = states()
    half = experts // 2
    for side, expert in (("query", 0), ("document", half)):
        assert torch.equal(experts_layer(x, PackedTokens.from_lists(TEXTS, side), block), experts_layer.experts[expert](x, packed, block))
    experts_layer.train()
    torch.manual_seed(3)
    output = experts_layer(x, PackedTokens.from_lists(TEXTS, "document"), block)
    own = {tuple(row.tolist()) for expert in list(experts_layer.experts)[half:] for row in expert(x, packed, block).round(decimals=4)}
    assert all(tuple(row.tolist()) in own for row in output.round(decimals=4)), "a document's token comes from a document's expert"


@pytest.mark.parametrize("routing", ["sequence", "token"])
@pytest.mark.parametrize("gate_input", feedforward.GATE_INPUTS)
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


@pytest.mark.parametrize("routing", ["sequence", "token"])
def test_only_the_chosen_expert_runs_and_its_gate_learns_as_its_part_of_all(routing):
    """The chosen expert's term of the straight-through sum over all experts: values alike, gradients by hand."""
    chosen, full = mixture(routing), mixture(routing, gradient="full")
    full.load_state_dict(chosen.state_dict())
    x, block, packed = states()
    torch.manual_seed(9)
    one = chosen(x, packed, block)
    torch.manual_seed(9)
    everyone = full(x, packed, block)
    assert torch.allclose(one, everyone, atol=1e-5), "the forward pass of both is the chosen expert's"

    torch.manual_seed(9)
    gate_inputs = x[packed.starts[:-1]] if routing == "sequence" else x
    logits = gate_inputs @ chosen.gate.weight.T + chosen.gate.bias
    sampled = feedforward.gumbel_softmax(logits, 1.0, feedforward.uniform_like(logits))
    sampled = sampled[packed.text_indices()] if routing == "sequence" else sampled
    strength, choice = sampled.max(-1)
    by_hand = oracles.routed_feedforward(chosen.experts, x, choice, 1.0 + strength - strength.detach())
    weights = torch.randn_like(one)
    expected = torch.autograd.grad((by_hand * weights).sum(), [chosen.gate.weight, chosen.experts[1].up.weight])
    actual = torch.autograd.grad((one * weights).sum(), [chosen.gate.weight, chosen.experts[1].up.weight])
    for left, right in zip(expected, actual, strict=True):
        assert torch.allclose(left, right, atol=1e-5) and left.norm() > 1e-3


def test_without_straight_through_the_gate_gets_no_gradient():
    experts_layer = mixture("token", gradient="none")
    x, block, packed = states()
    experts_layer(x, packed, block).square().sum().backward()
    assert experts_layer.gate.weight.grad is None and experts_layer.experts[0].up.weight.grad is not None


def test_straight_through_changes_no_bit_of_what_the_chosen_expert_says():
    torch.manual_seed(2)
    x, packed, outputs = torch.randn(2000, SHAPE.hidden), PackedTokens.from_lists([[1] * 20] * 100, "query"), []
    for gradient in ("chosen", "none"):
        experts_layer = mixture("token", gradient=gradient)
        torch.manual_seed(4)
        outputs.append(experts_layer(x, packed, x))
    assert torch.equal(*outputs)


def test_full_straight_through_reaches_every_expert_and_the_gate():
    experts_layer = mixture("token", gradient="full")
    x, block, packed = states()
    (experts_layer(x, packed, block) * torch.randn_like(x)).sum().backward()
    assert experts_layer.gate.weight.grad.norm() > 1e-3
    assert all(expert.up.weight.grad is not None for expert in experts_layer.experts)


def test_gumbel_noise_draws_experts_as_often_as_their_probabilities_say():
    logits = torch.tensor([0.0, 1.0, -1.0])
    weights = feedforward.gumbel_softmax(logits.expand(40_000, 3), 1.0, feedforward.uniform_like(logits.expand(40_000, 3)))
    counts = torch.bincount(weights.argmax(-1), minlength=3) / 40_000
    assert torch.allclose(counts, logits.softmax(0), atol=0.01) and torch.allclose(weights.sum(-1), torch.ones(40_000), atol=1e-5)


def test_experts_share_a_normalisation_if_they_are_told_to():
    apart, together = mixture("role", 2), RoutedFeedForward(FeedForward(SHAPE), experts=2, routing="role", expert_ln=False)
    count = {layer: sum(parameter.numel() for parameter in layer.parameters()) for layer in (apart, together)}
    assert count[apart] - count[together] == 2 * SHAPE.hidden
    assert together.experts[0].norm is together.experts[1].norm
    copied = copy.deepcopy(together)
    assert copied.experts[0].norm is copied.experts[1].norm and copied.experts[0].norm is not together.experts[0].norm


def test_one_gate_for_all_layers_or_one_for_each():
    for one, names in ((True, []), (False, ["1.feedforward.gate.weight", "3.feedforward.gate.weight"])):
        layers = Encoder(SHAPE).layers
        gate = insert_experts(layers, [1, 3], experts=3, routing="token", one_gate=one)
        assert [name for name in layers.state_dict() if name.endswith("gate.weight")] == names
        assert (gate is not None) == one
        assert (layers[1].feedforward.active_gate is layers[3].feedforward.active_gate) == one


def test_no_gate_no_cost():
    layers: nn.ModuleList = Encoder(SHAPE).layers
    assert insert_experts(layers, [0], experts=2, routing="role", one_gate=True) is None
    assert not [name for name in layers.state_dict() if "gate" in name] and feedforward.find_routers(layers) == {}


def test_the_place_of_experts():
    assert select_expert_layers(12, every=2) == [2, 5, 8, 11], "layers 3, 6, 9 and 12 of BERT: TASER with T = 2"
    assert select_expert_layers(6, every=2) == [2, 5] and select_expert_layers(4, every=0) == [0, 1, 2, 3]
    assert select_expert_layers(12, every=2, layers=("7", "4", "1")) == [0, 3, 6]
    for every, layers in ((12, ()), (-1, ()), (2, ("0",)), (2, ("13",)), (2, ("x",))):
        with pytest.raises(UsageError):
            select_expert_layers(12, every=every, layers=layers)


@pytest.mark.parametrize("wrong", [{"experts": 1}, {"routing": "nobody"}, {"gate_input": "x"}, {"gradient": "x"}, {"temperature": 0.0}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(UsageError):
        insert_experts(Encoder(SHAPE).layers, [0], **({"experts": 2, "routing": "token", "one_gate": True} | wrong))


def test_a_fresh_gate_forgets_what_all_inputs_share():
    torch.manual_seed(0)
    gate = feedforward.make_gate(16, 3)
    common = torch.randn(2, 16) * 50
    before = gate.weight.detach().clone()
    feedforward.project_out_means(gate, common)
    assert float((gate.weight.detach() @ common.T).abs().max()) < 1e-4
    apart = torch.randn(16)
    apart -= common.T @ torch.linalg.lstsq(common.T, apart[:, None]).solution[:, 0]
    assert torch.allclose(gate.weight @ apart, before @ apart, atol=1e-5), "what is not common is read as before"


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
            out = (
                experts_layer._apply_grouped(states, groups, strength) if grouped else experts_layer._apply_choice(states, choice, strength)
            )
        gradients = torch.autograd.grad((out.float() * slopes).sum(), leaves, allow_unused=True)
        results.append([out.detach().float(), *(one.float() for one in gradients if one is not None)])
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 0.03 * other.norm()
