"""Routed feed-forward experts in place of a layer's feed-forward: by role (CoT-MoTE, TASER Det-R), by text or by token (TASER).

At inference only the chosen expert runs. In training learned routers choose by Gumbel-softmax, and the output is the chosen expert's
whatever the option `gradient`, which says how the gate learns from the loss. With e_i the output of expert i, m the chosen one, p the
probabilities and z the Gumbel-softmax sample:

* `full`: y = Σ z_i e_i with the straight-through z (Jang et al. 2017; TASER's paper). Biased where the loss is not linear between experts.
* `pair`: y = e_m + ½ (1 - p_m) (l_j - l_m - stop(l_j - l_m)) (e_j - e_m), with j drawn from the other experts by their probabilities.
  Its mean is the gradient of ReinMax (Liu et al. 2023), exact for a loss that is quadratic between experts; two experts run, however many
  there are.
* `switch`: the update of the chosen expert times 1 + z_m - stop(z_m), as in Switch Transformers (Fedus et al. 2022). It connects the gate
  with the loss at no cost, and is a biased estimator: it pushes the gate even where all experts are equal.
* `none`: no gradient of the loss, as in TASER's published code.

Experts that the weights of an encoder have already are its layers': `backbones.layers.TopKFeedForward`.

For a gate's gradient the outputs of other experts are constants, so that these run forward only.
"""

import copy
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.dispatch import RouterOutput, check_expert_count, dispatch_to_experts
from moeir.backbones.layers import FeedForward, GatedFeedForward, TopKFeedForward, init_weights
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.grouped_linear import ExpertGroups, grouped_linear, supports_grouped_linear
from moeir.parsing import check_choice, is_count

LEARNED_ROUTINGS = ("sequence", "token")
ROUTINGS = ("role", *LEARNED_ROUTINGS)
GATE_INPUTS = ("ffn_input", "block_input")
GRADIENTS = ("full", "pair", "switch", "none")
GATE_STARTS = ("centred", "drawn")


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
        gradient: str = "full",
        gate_start: str = "centred",
        temperature: float = 1.0,
        expert_ln: bool = True,
    ) -> None:
        super().__init__()
        choices = [("routing", routing, ROUTINGS), ("gate_input", gate_input, GATE_INPUTS)]
        for name, value, known in (*choices, ("gradient", gradient, GRADIENTS), ("gate_start", gate_start, GATE_STARTS)):
            check_choice(name, value, known)
        check_expert_count(experts)
        if not temperature > 0:
            raise UsageError(f"temperature={temperature}: expected more than 0")
        self.experts = nn.ModuleList(copy.deepcopy(feedforward) for _ in range(experts))
        if not expert_ln and feedforward.has_norm:
            _share_norm(self.experts)
        self.routing, self.gate_input, self.gradient, self.gate_start = routing, gate_input, gradient, gate_start
        self.temperature, self.expert_ln = temperature, expert_ln
        self.last_routing: RouterOutput | None = None
        if routing in LEARNED_ROUTINGS:
            hidden = feedforward.hidden
            self.gate = make_gate(hidden, experts) if gate is None else None
            self.__dict__["_shared_gate"] = gate  # registered once, by the architecture
            self.register_buffer("gate_offset", torch.zeros(experts))  # this layer's own, also with a gate shared by all layers

    @property
    def active_gate(self) -> nn.Linear:
        """The gate of this layer: its own, or the one shared by several layers."""
        gate: nn.Linear = self.gate if self._shared_gate is None else self._shared_gate
        return gate

    def forward(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Tensor:
        """states [T, H] after attention, block [T, H] before it -> [T, H]; stores the router's output in `last_routing`."""
        if self.routing == "role":
            return self._route_by_side(states, tokens, block)
        logits = self._gate_logits(self.select_gate_input(states, tokens, block))  # [n, I], n = B or T
        probabilities = logits.softmax(-1)
        by_text = self.routing == "sequence"
        self.last_routing = RouterOutput.from_text_probabilities(probabilities) if by_text else RouterOutput(probabilities, tokens.starts)

        def expand(decisions: Tensor) -> Tensor:
            return decisions.index_select(0, tokens.text_indices()) if by_text else decisions

        if not self.training:
            return self._apply_choice(states, expand(probabilities.argmax(-1)))
        weights = gumbel_softmax(logits, self.temperature, uniform_like(logits))
        strength, choice = weights.max(-1)
        if self.gradient == "none":
            return self._apply_choice(states, expand(choice))
        if self.gradient == "switch":
            return self._apply_choice(states, expand(choice), (1.0 + zero_with_gradient(expand(strength)))[:, None])
        others = self._other_experts(logits, weights, choice)
        return self._straight_through(states, expand(choice), [(expand(other), expand(factor)) for other, factor in others])

    def _gate_logits(self, inputs: Tensor) -> Tensor:
        gate = self.active_gate
        with torch.autocast(inputs.device.type, enabled=False):
            return F.linear(inputs.float(), gate.weight.float(), gate.bias.float() + self.gate_offset)

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

    def _other_experts(self, logits: Tensor, weights: Tensor, choice: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Experts [n] that run beside the chosen ones, each with the factor [n] of its difference from them, 0 with a gradient."""
        if self.gradient == "full":
            others = [(choice + shift) % len(self.experts) for shift in range(1, len(self.experts))]
            return [(other, zero_with_gradient(weights.gather(1, other[:, None])[:, 0])) for other in others]
        best = weights.topk(2).indices  # of a Gumbel sample: the second is drawn from the rest by its probabilities
        chosen_logit, other_logit = logits.gather(1, best).unbind(1)
        chosen_probability = logits.detach().softmax(-1).gather(1, choice[:, None])[:, 0]
        return [(best[:, 1], 0.5 * (1.0 - chosen_probability) * zero_with_gradient(other_logit - chosen_logit))]

    def _straight_through(self, states: Tensor, choice: Tensor, others: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The chosen expert's output, whose gradient moves it towards the `others`; a normalisation that all experts share comes after."""
        output = self._apply_choice(states, choice, whole=self.expert_ln)
        for other, factor in others:
            with torch.no_grad():
                difference = self._apply_choice(states, other, whole=self.expert_ln) - output
            output = output + factor[:, None].to(output.dtype) * difference
        if self.expert_ln:
            return output
        normed: Tensor = self.experts[0].add_and_norm(states, output)
        return normed

    def _apply_choice(self, states: Tensor, choice: Tensor, strength: Tensor | None = None, *, whole: bool = True) -> Tensor:
        """Each token through its chosen expert, whose update is multiplied by `strength` [T, 1]; not `whole`: the update alone."""
        first = self.experts[0]
        if first.supports_groups and supports_grouped_linear(states, first.down.in_features):
            return self._apply_grouped(states, ExpertGroups.from_choice(choice, len(self.experts)), strength, whole=whole)

        def apply(expert: int, own: Tensor, rows: Tensor | None) -> Tensor:
            layer = self.experts[expert]
            if whole and strength is None:
                output: Tensor = layer.transform(own)
                return output
            change: Tensor = layer.compute_update(own)
            if strength is not None:
                change = change * (strength if rows is None else strength.index_select(0, rows)).to(change.dtype)
            return layer.add_and_norm(own, change) if whole else change

        return dispatch_to_experts(states, choice, len(self.experts), apply)

    def _apply_grouped(self, states: Tensor, groups: ExpertGroups, strength: Tensor | None, *, whole: bool = True) -> Tensor:
        """Apply the experts by grouped matrix products, which need no host-side count of tokens per expert."""
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
        if not whole:
            return change
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

    @torch.no_grad()
    def centre_gate(self, mean: Tensor) -> None:
        """Give the mean [H] of this layer's gate inputs equal probabilities, by an offset c = -A · mean.

        First tokens of different texts differ little in lower layers: a random gate sends them all to one expert and keeps doing so. The
        offset removes no direction from what the gate reads.
        """
        self.gate_offset.copy_(-(self.active_gate.weight.double() @ mean.double() + self.active_gate.bias.double()))


def zero_with_gradient(values: Tensor) -> Tensor:
    """Zeros that pass their gradient on to `values`."""
    return values - values.detach()


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


def select_expert_layers(depth: int, *, every: int, layers: Sequence[str] = ()) -> list[int]:
    """Layers with experts, numbered from 0: one after every `every` shared ones, or those named in `layers`, numbered from 1.

    >>> select_expert_layers(12, every=2), select_expert_layers(3, every=0), select_expert_layers(12, every=2, layers=("1", "4"))
    ([2, 5, 8, 11], [0, 1, 2], [0, 3])
    """
    if layers:
        if not all(is_count(name) and int(name) <= depth for name in layers):
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

    UsageError for an unknown router, an impossible number of experts, or a layer that was trained with experts.
    """
    check_expert_count(experts)
    numbers, plain = list(layer_numbers), [number for number, layer in enumerate(layers, 1) if not has_learned_router(layer.feedforward)]
    if taken := [number + 1 for number in numbers if number + 1 not in plain]:
        raise UsageError(f"layer {taken[0]}: its weights have experts already; expected layers of {'+'.join(map(str, plain))}")
    for number in numbers:
        layers[number].separate_feedforward()
    hidden = layers[numbers[0]].feedforward.hidden
    gate = make_gate(hidden, experts) if one_gate and routing in LEARNED_ROUTINGS else None
    for number in numbers:
        layer = layers[number]
        layer.feedforward = RoutedFeedForward(layer.feedforward, experts=experts, routing=routing, gate=gate, **options)
    return gate


def has_learned_router(module: nn.Module) -> bool:
    """Whether a module is a feed-forward whose experts a learned router chooses."""
    return isinstance(module, TopKFeedForward) or (isinstance(module, RoutedFeedForward) and module.routing in LEARNED_ROUTINGS)


def find_routers(layers: nn.ModuleList) -> dict[str, RoutedFeedForward | TopKFeedForward]:
    """The learned routers among layers, named `layer1`, `layer2`, … by position."""
    feedforwards = {f"layer{number}": layer.feedforward for number, layer in enumerate(layers, 1)}
    return {name: mixture for name, mixture in feedforwards.items() if has_learned_router(mixture)}


def _share_norm(experts: nn.ModuleList) -> None:
    """All experts share the first one's normalisation, which is registered, saved and counted once."""
    first = experts[0]
    for expert in list(experts)[1:]:
        del expert._modules["norm"]
        expert.__dict__["norm"] = first.norm
