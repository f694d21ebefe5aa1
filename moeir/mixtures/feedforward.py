"""Routed feed-forward experts in place of a layer's feed-forward: by role (CoT-MoTE, TASER Det-R), by text or by token (TASER).

Only the chosen expert runs. Learned routers choose by Gumbel-softmax; the chosen expert's output is multiplied by 1 + (p - stop(p)),
which is 1 and passes the gradient of the ranking loss to the gate.
"""

import copy
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.layers import FeedForward, GatedFeedForward, init_weights
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.grouped_linear import ExpertGroups, grouped_linear, supports_grouped_linear
from moeir.mixtures.dispatch import RouterOutput, check_expert_count, dispatch_to_experts

LEARNED_ROUTINGS = ("sequence", "token")
ROUTINGS = ("role", *LEARNED_ROUTINGS)
GATE_INPUTS = ("ffn_input", "block_input")
GRADIENTS = ("chosen", "full", "none")


class RoutedFeedForward(nn.Module):
    """I copies of a feed-forward and a router that sends each token to one of them.

    `role`: the first half of the experts processes queries, the rest documents (with several per side: random in training, the first of
    the side at inference). `sequence`: one choice per text, from its first token. `token`: one choice per token.
    Inference takes the most probable expert; of equals the first.
    """

    def __init__(
        self,
        feedforward: FeedForward,
        *,
        experts: int,
        routing: str,
        gate: nn.Linear | None = None,
        gate_input: str = "ffn_input",
        gradient: str = "chosen",
        temperature: float = 1.0,
        expert_ln: bool = True,
    ) -> None:
        super().__init__()
        choices = (("routing", routing, ROUTINGS), ("gate_input", gate_input, GATE_INPUTS), ("gradient", gradient, GRADIENTS))
        for name, value, known in choices:
            if value not in known:
                raise UsageError(f"{name}={value}: expected one of {', '.join(known)}")
        check_expert_count(experts)
        if not temperature > 0:
            raise UsageError(f"temperature={temperature}: expected more than 0")
        self.experts = nn.ModuleList(copy.deepcopy(feedforward) for _ in range(experts))
        if not expert_ln:
            _share_norm(self.experts)
        self.routing, self.gate_input, self.gradient, self.temperature = routing, gate_input, gradient, temperature
        self.last_routing: RouterOutput | None = None
        if routing in LEARNED_ROUTINGS:
            hidden = feedforward.down.out_features
            self.gate = make_gate(hidden, experts) if gate is None else None
            self.__dict__["_shared_gate"] = gate  # registered once, by the architecture

    @property
    def active_gate(self) -> nn.Linear:
        """The gate of this layer: its own, or the one shared by several layers."""
        gate: nn.Linear = self.gate if self._shared_gate is None else self._shared_gate
        return gate

    def forward(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Tensor:
        """states [T, H] after attention, block [T, H] before it -> [T, H]; stores the router's output in `last_routing`."""
        if self.routing == "role":
            return self._route_by_side(states, tokens, block)
        gate_input = self.select_gate_input(states, tokens, block)
        with torch.autocast(gate_input.device.type, enabled=False):
            logits = F.linear(gate_input.float(), self.active_gate.weight.float(), self.active_gate.bias.float())  # [B or T, I]
        probabilities = logits.softmax(-1)
        self.last_routing = (
            RouterOutput.from_text_probabilities(probabilities)
            if self.routing == "sequence"
            else RouterOutput(probabilities, tokens.starts)
        )
        weights = gumbel_softmax(logits, self.temperature, uniform_like(logits)) if self.training else probabilities
        if self.routing == "sequence":
            weights = weights.index_select(0, tokens.text_indices())  # [T, I]
        return self._all_experts(states, weights) if self.gradient == "full" else self._top1(states, weights)

    def select_gate_input(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Tensor:
        """[B or T, H] input of the gate, one row per decision."""
        inputs = states if self.gate_input == "ffn_input" else block
        return inputs.index_select(0, tokens.starts[:-1]) if self.routing == "sequence" else inputs

    def _route_by_side(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Tensor:
        half = len(self.experts) // 2
        first, count = (0, half) if tokens.side == "query" else (half, len(self.experts) - half)
        if count == 1 or not self.training:
            output: Tensor = self.experts[first](states, tokens, block)
            return output
        choice = first + torch.randint(count, (len(tokens),), device=states.device)
        return self._apply_choice(states, choice.index_select(0, tokens.text_indices()))

    def _top1(self, states: Tensor, weights: Tensor) -> Tensor:
        """Only the chosen expert of each token runs (top-1, as in TASER's Switch layers)."""
        strength, choice = weights.max(-1)
        if not self.training or self.gradient == "none":
            return self._apply_choice(states, choice)
        return self._apply_choice(states, choice, (1.0 + (strength - strength.detach()))[:, None])  # exactly 1

    def _apply_choice(self, states: Tensor, choice: Tensor, strength: Tensor | None = None) -> Tensor:
        """Each token through its chosen expert, whose output is multiplied by `strength` [T, 1]."""
        first = self.experts[0]
        if supports_grouped_linear(states, first.down.in_features):
            return self._apply_grouped(states, ExpertGroups.from_choice(choice, len(self.experts)), strength)

        def apply(expert: int, own: Tensor, rows: Tensor | None) -> Tensor:
            layer = self.experts[expert]
            change: Tensor = layer.compute_update(own)
            if strength is not None:
                change = change * (strength if rows is None else strength.index_select(0, rows)).to(change.dtype)
            output: Tensor = layer.add_and_norm(own, change)
            return output

        return dispatch_to_experts(states, choice, len(self.experts), apply)

    def _apply_grouped(self, states: Tensor, groups: ExpertGroups, strength: Tensor | None) -> Tensor:
        """The same with grouped matrix products, which need no host-side count of tokens per expert."""
        first, gated = self.experts[0], isinstance(self.experts[0], GatedFeedForward)
        inner = self._grouped_linear("up", self._grouped_norm(states, groups.choice) if gated else states, groups)
        if gated:
            value, gate = inner.chunk(2, dim=-1)
            inner = first.dropout(first.activation(value) * gate)
        else:
            inner = first.activation(inner)
        change = self._grouped_linear("down", inner, groups)
        if strength is not None:
            change = change * strength.to(change.dtype)
        return states + change if gated else self._grouped_norm(states + first.dropout(change), groups.choice)

    def _grouped_linear(self, name: str, rows: Tensor, groups: ExpertGroups) -> Tensor:
        """The linear map `name` of each token's expert."""
        maps = [getattr(expert, name) for expert in self.experts]
        biases = None if maps[0].bias is None else torch.stack([part.bias for part in maps])
        return grouped_linear(rows, torch.stack([part.weight for part in maps]), biases, groups)

    def _grouped_norm(self, states: Tensor, choice: Tensor) -> Tensor:
        """The normalisation of each token's expert, in float32."""
        norms = [expert.norm for expert in self.experts]
        with torch.autocast(states.device.type, enabled=False):
            normed = F.layer_norm(states.float(), norms[0].normalized_shape, eps=norms[0].eps)
            normed = normed * F.embedding(choice, torch.stack([norm.weight for norm in norms]))
            return normed if norms[0].bias is None else normed + F.embedding(choice, torch.stack([norm.bias for norm in norms]))

    def _all_experts(self, states: Tensor, weights: Tensor) -> Tensor:
        """All experts on all tokens with a straight-through gradient over all: I times the cost; the reference for `_top1`."""
        hard = F.one_hot(weights.argmax(-1), len(self.experts))
        straight_through = hard + (weights - weights.detach())
        changes = torch.stack([expert.compute_update(states) for expert in self.experts], dim=1)  # [T, I, H]
        change = (straight_through[:, :, None].to(changes.dtype) * changes).sum(1)
        norms = torch.stack([expert.add_and_norm(states, change) for expert in self.experts], dim=1)
        return (hard[:, :, None].to(norms.dtype) * norms).sum(1)


def uniform_like(logits: Tensor) -> Tensor:
    """Uniform float32 numbers from the open interval (0, 1) by torch's generator, in the shape of `logits`."""
    return torch.rand_like(logits, dtype=torch.float32).clamp_(torch.finfo(torch.float32).tiny, 1 - torch.finfo(torch.float32).eps / 2)


def gumbel_softmax(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """A sample near one-hot, softmax((logits + Gumbel noise) / temperature): [n, I] -> [n, I]. Jang et al. 2017.

    `uniform` [n, I] in (0, 1) is the source of the noise.
    """
    return ((logits - (-uniform.log()).log()) / temperature).softmax(-1)


def make_gate(hidden: int, experts: int) -> nn.Linear:
    """logits = A u + c, A from N(0, 0.02), c zero (TASER, appendix A)."""
    gate = nn.Linear(hidden, experts)
    init_weights(gate, 0.02)
    return gate


@torch.no_grad()
def project_out_means(gate: nn.Linear, means: Tensor) -> None:
    """Make a new gate blind to the mean inputs of its layers: A ← A (1 - P), where P projects on the means [n, H].

    First tokens of different texts differ little in lower layers: a random gate sends them all to one expert and keeps doing so.
    """
    basis = torch.linalg.qr(means.double().T).Q  # [H, n]
    weight = gate.weight.double()
    gate.weight.copy_(weight - (weight @ basis) @ basis.T)


def select_expert_layers(depth: int, *, every: int, layers: Sequence[str] = ()) -> list[int]:
    """Layers with experts, numbered from 0: one after every `every` shared ones, or those named in `layers`, numbered from 1.

    >>> select_expert_layers(12, every=2), select_expert_layers(3, every=0), select_expert_layers(12, every=2, layers=("1", "4"))
    ([2, 5, 8, 11], [0, 1, 2], [0, 3])
    """
    if layers:
        if not all(name.isdecimal() and 1 <= int(name) <= depth for name in layers):
            raise UsageError(f"layers={'+'.join(layers)}: expected numbers of layers, 1 to {depth}, as in layers=3+6")
        return sorted({int(name) - 1 for name in layers})
    numbers = list(range(every, depth, every + 1)) if every >= 0 else []
    if not numbers:
        raise UsageError(f"every={every}: no layer of {depth} would have experts; expected 0 (all) to {depth - 1}")
    return numbers


def insert_experts(
    layers: nn.ModuleList, layer_numbers: Iterable[int], *, experts: int, routing: str, one_gate: bool, **options: object
) -> nn.Linear | None:
    """Replace the feed-forward of the given layers by experts, copies of it; returns the shared gate, if there is one.

    UsageError for an unknown router or an impossible number of experts.
    """
    check_expert_count(experts)
    numbers = list(layer_numbers)
    hidden = layers[numbers[0]].feedforward.down.out_features
    gate = make_gate(hidden, experts) if one_gate and routing in LEARNED_ROUTINGS else None
    for number in numbers:
        layer = layers[number]
        layer.feedforward = RoutedFeedForward(layer.feedforward, experts=experts, routing=routing, gate=gate, **options)
    return gate


def find_routers(layers: nn.ModuleList) -> dict[str, RoutedFeedForward]:
    """The learned routers among layers, named `layer1`, `layer2`, … by position."""
    feedforwards = {f"layer{number}": layer.feedforward for number, layer in enumerate(layers, 1)}
    return {
        name: mixture
        for name, mixture in feedforwards.items()
        if isinstance(mixture, RoutedFeedForward) and mixture.routing in LEARNED_ROUTINGS
    }


def _share_norm(experts: nn.ModuleList) -> None:
    """All experts share the first one's normalisation, which is registered, saved and counted once."""
    first = experts[0]
    for expert in list(experts)[1:]:
        del expert._modules["norm"]
        expert.__dict__["norm"] = first.norm
