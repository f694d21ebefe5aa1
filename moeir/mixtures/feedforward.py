"""Routed feed-forward experts in place of a layer's feed-forward: by role (CoT-MoTE, TASER Det-R), by text or by token (TASER).

At inference only the chosen expert runs. In training the output is the chosen expert's whatever the router's `gradient`; for a gate's
gradient the outputs of other experts are constants, so that these run forward only. Experts that the weights of an encoder have already are
its layers': `backbones.layers.TopKFeedForward`.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.dispatch import dispatch_to_experts
from moeir.backbones.layers import FeedForward, GatedFeedForward, TopKFeedForward
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.grouped_linear import ExpertGroups, grouped_linear, supports_grouped_linear
from moeir.mixtures.router import LEARNED_ROUTINGS, ExpertRouter
from moeir.parsing import is_count


class RoutedFeedForward(ExpertRouter):
    """E copies of a feed-forward and a router that sends each token to one of them; `routing` are the options of `ExpertRouter`."""

    def __init__(self, feedforward: FeedForward, *, experts: int, **routing: Any) -> None:
        super().__init__(experts, feedforward.hidden, **routing)
        self.experts = nn.ModuleList(copy.deepcopy(feedforward) for _ in range(experts))

    def forward(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Tensor:
        """states [T, H] after attention, block [T, H] before it -> [T, H]."""
        decision = self.decide(states, tokens, block)
        if isinstance(decision, int):
            output: Tensor = self.experts[decision](states, tokens, block)
            return output
        output = self._apply_choice(states, decision.choice, None if decision.strength is None else decision.strength[:, None])
        for other, factor in decision.others:  # towards which the gradient moves the output
            with torch.no_grad():
                difference = self._apply_choice(states, other) - output
            output = output + factor[:, None].to(output.dtype) * difference
        return output

    def _apply_choice(self, states: Tensor, choice: Tensor, strength: Tensor | None = None) -> Tensor:
        """Each token through its chosen expert, whose update is multiplied by `strength` [T, 1]."""
        first = self.experts[0]
        if first.supports_groups and supports_grouped_linear(states, first.down.in_features):
            return self._apply_grouped(states, ExpertGroups.from_choice(choice, len(self.experts)), strength)

        def apply(expert: int, own: Tensor, rows: Tensor | None) -> Tensor:
            layer = self.experts[expert]
            if strength is None:
                output: Tensor = layer.transform(own)
                return output
            change: Tensor = layer.compute_update(own)
            change = change * (strength if rows is None else strength.index_select(0, rows)).to(change.dtype)
            normed: Tensor = layer.add_and_norm(own, change)
            return normed

        return dispatch_to_experts(states, choice, len(self.experts), apply)

    def _apply_grouped(self, states: Tensor, groups: ExpertGroups, strength: Tensor | None) -> Tensor:
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


def check_has_no_experts(layers: nn.ModuleList, numbers: Sequence[int]) -> None:
    """UsageError for a layer that was trained with experts."""
    plain = [number for number, layer in enumerate(layers, 1) if not has_learned_router(layer.feedforward)]
    if taken := [number + 1 for number in numbers if number + 1 not in plain]:
        raise UsageError(f"layer {taken[0]}: its weights have experts already; expected layers of {'+'.join(map(str, plain))}")


def has_learned_router(module: nn.Module | None) -> bool:
    """Whether a module is, or has, a learned router of a layer's experts."""
    return isinstance(module, TopKFeedForward) or (isinstance(module, ExpertRouter) and module.routing in LEARNED_ROUTINGS)


def find_routers(layers: nn.ModuleList) -> dict[str, ExpertRouter | TopKFeedForward]:
    """The learned routers among layers, of feed-forwards or of adapters, named `layer1`, `layer2`, … by position."""
    modules = [(f"layer{number}", module) for number, layer in enumerate(layers, 1) for module in (layer.feedforward, layer.router)]
    return {name: module for name, module in modules if has_learned_router(module)}
