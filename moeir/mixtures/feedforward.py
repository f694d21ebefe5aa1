"""Routed feed-forward experts in place of a layer's feed-forward: by role (CoT-MoTE, TASER Det-R), by text or by token (TASER).

Only the expert that was chosen runs. Learned routers choose by Gumbel-softmax; the chosen expert's output is multiplied by
1 + (p - stop(p)), which is 1 and hands the ranking loss on to the gate.
"""

import copy
from collections.abc import Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.encoder import FeedForward
from moeir.backbones.tokens import Tokens
from moeir.errors import UsageError
from moeir.kernels.noise import Noisy
from moeir.mixtures.routing import Routing, by_expert, check_experts

LEARNED = ("sequence", "token")
ROUTINGS = ("role", *LEARNED)
GATE_INPUTS = ("ffn_input", "block_input")
GRADIENTS = ("chosen", "full", "none")


class RoutedFeedForward(nn.Module):
    """I copies of a feed-forward, and what sends each token to one of them.

    `role`: the first half of the experts reads queries, the rest documents (with more than one a side: at random while training, the
    first of the side in use). `sequence`: one choice a text, from its first token. `token`: one choice a token.
    In use the most probable expert is taken; of equals the first.
    """

    def __init__(
        self,
        plain: FeedForward,
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
        self.experts = nn.ModuleList(copy.deepcopy(plain) for _ in range(experts))
        if not expert_ln:
            _share_norm(self.experts)
        self.routing, self.gate_input, self.gradient, self.temperature = routing, gate_input, gradient, temperature
        self.routed: Routing | None = None
        self.chance = Noisy()
        if routing in LEARNED:
            hidden = plain.down.out_features
            self.gate = started_gate(hidden, experts) if gate is None else None
            self.__dict__["_shared_gate"] = gate  # registered once, by the architecture

    @property
    def chooser(self) -> nn.Linear:
        """The gate that chooses here: its own, or one of several layers."""
        gate: nn.Linear = self.gate if self._shared_gate is None else self._shared_gate
        return gate

    def forward(self, states: Tensor, tokens: Tokens, block: Tensor) -> Tensor:
        """states [T, H] after attention, block [T, H] before it -> [T, H]; leaves what the router said in `routed`."""
        if self.routing == "role":
            return self._by_role(states, tokens, block)
        seen = self.seen(states, tokens, block)
        with torch.autocast(seen.device.type, enabled=False):
            logits = F.linear(seen.float(), self.chooser.weight.float(), self.chooser.bias.float())  # [B or T, I]
        said = logits.softmax(-1)
        self.routed = Routing.of_texts(said) if self.routing == "sequence" else Routing(said, tokens.starts)
        noise = tokens.layout.noise() if self.training else None
        drawn = said
        if noise is not None:
            keys = noise.index_select(0, tokens.starts[:-1]) if self.routing == "sequence" else noise
            drawn = gumbel_softmax(logits, self.temperature, self.chance.uniform(keys, logits.shape[-1]))
        if self.routing == "sequence":
            drawn = drawn.index_select(0, tokens.owners())  # [T, I]
        return self._everyone(states, drawn, noise) if self.gradient == "full" else self._chosen(states, drawn, noise)

    def seen(self, states: Tensor, tokens: Tokens, block: Tensor) -> Tensor:
        """What the gate reads, a row for each decision: [B or T, H]."""
        read = states if self.gate_input == "ffn_input" else block
        return read.index_select(0, tokens.starts[:-1]) if self.routing == "sequence" else read

    def _by_role(self, states: Tensor, tokens: Tokens, block: Tensor) -> Tensor:
        half = len(self.experts) // 2
        first, count = (0, half) if tokens.side == "query" else (half, len(self.experts) - half)
        if count == 1 or not self.training:
            done: Tensor = self.experts[first](states, tokens, block)
            return done
        noise = tokens.layout.noise()
        choice = first + (self.chance.uniform(noise.index_select(0, tokens.starts[:-1]), 1)[:, 0] * count).long()
        return by_expert(states, choice[tokens.owners()], len(self.experts), partial(self._applied, noise))

    def _chosen(self, states: Tensor, drawn: Tensor, noise: Tensor | None) -> Tensor:
        """Only the chosen expert of each token: specs/decisions 12."""
        strength, choice = drawn.max(-1)
        if not self.training or self.gradient == "none":
            return by_expert(states, choice, len(self.experts), partial(self._applied, noise))
        unit = (1.0 + (strength - strength.detach()))[:, None]  # 1 to the last bit

        def weighted(expert: int, own: Tensor, rows: Tensor | None) -> Tensor:
            layer, chance = self.experts[expert], _of_rows(noise, rows)
            change: Tensor = layer.change(own, chance)
            strengths = unit if rows is None else unit.index_select(0, rows)
            joined: Tensor = layer.joined(own, change * strengths.to(change.dtype), chance)
            return joined

        return by_expert(states, choice, len(self.experts), weighted)

    def _applied(self, noise: Tensor | None, expert: int, own: Tensor, rows: Tensor | None) -> Tensor:
        layer, chance = self.experts[expert], _of_rows(noise, rows)
        joined: Tensor = layer.joined(own, layer.change(own, chance), chance)
        return joined

    def _everyone(self, states: Tensor, drawn: Tensor, noise: Tensor | None) -> Tensor:
        """All experts on all tokens, straight-through over all of them: I times the cost, and the measure of `_chosen`."""
        hard = F.one_hot(drawn.argmax(-1), len(self.experts))
        through = hard + (drawn - drawn.detach())
        changes = torch.stack([expert.change(states, noise) for expert in self.experts], dim=1)  # [T, I, H]
        change = (through[:, :, None].to(changes.dtype) * changes).sum(1)
        norms = torch.stack([expert.joined(states, change, noise) for expert in self.experts], dim=1)
        return (hard[:, :, None].to(norms.dtype) * norms).sum(1)


def _of_rows(noise: Tensor | None, rows: Tensor | None) -> Tensor | None:
    """The numbers of the rows that an expert was given."""
    return noise if noise is None or rows is None else noise.index_select(0, rows)


def gumbel_softmax(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """A sample near one-hot, softmax((logits + Gumbel noise) / temperature): [n, I] -> [n, I]. Jang et al. 2017.

    `uniform` [n, I] in (0, 1) is what the noise is made of.
    """
    return ((logits - (-uniform.log()).log()) / temperature).softmax(-1)


def started_gate(hidden: int, experts: int) -> nn.Linear:
    """logits = A u + c, A from N(0, 0.02), c zero (TASER, appendix A)."""
    gate = nn.Linear(hidden, experts)
    nn.init.normal_(gate.weight, std=0.02)
    nn.init.zeros_(gate.bias)
    return gate


@torch.no_grad()
def blind(gate: nn.Linear, means: Tensor) -> None:
    """Take out of a fresh gate what all inputs of its layers have in common: A ← A (1 - projection on the means [n, H]).

    First tokens of different texts differ little in lower layers: a gate as drawn sends them all to one expert, and stays there.
    """
    basis = torch.linalg.qr(means.double().T).Q  # [H, n]
    weight = gate.weight.double()
    gate.weight.copy_(weight - (weight @ basis) @ basis.T)


def specialised(depth: int, *, every: int, layers: Sequence[str] = ()) -> list[int]:
    """Which layers, from 0, have experts: one after every `every` shared ones, or those named, from 1.

    >>> specialised(12, every=2), specialised(3, every=0), specialised(12, every=2, layers=("1", "4"))
    ([2, 5, 8, 11], [0, 1, 2], [0, 3])
    """
    if layers:
        if not all(name.isdecimal() and 1 <= int(name) <= depth for name in layers):
            raise UsageError(f"layers={'+'.join(layers)}: expected numbers of layers, 1 to {depth}, as in layers=3+6")
        return sorted({int(name) - 1 for name in layers})
    found = list(range(every, depth, every + 1)) if every >= 0 else []
    if not found:
        raise UsageError(f"every={every}: no layer of {depth} would have experts; expected 0 (all) to {depth - 1}")
    return found


def specialise(
    layers: nn.ModuleList, chosen: Iterable[int], *, experts: int, routing: str, one_gate: bool, **options: object
) -> nn.Linear | None:
    """Put copies of their own feed-forward as experts into the chosen layers; the gate they share, if they share one.

    UsageError for a router or a number of experts that cannot be.
    """
    allowed = {"routing": (routing, ROUTINGS), "gate_input": (options.get("gate_input", GATE_INPUTS[0]), GATE_INPUTS)}
    allowed["gradient"] = (options.get("gradient", GRADIENTS[0]), GRADIENTS)
    for name, (value, known) in allowed.items():
        if value not in known:
            raise UsageError(f"{name}={value}: expected one of {', '.join(known)}")
    check_experts(experts)
    if not float(str(options.get("temperature", 1.0))) > 0:
        raise UsageError(f"temperature={options['temperature']}: expected more than 0")
    places = list(chosen)
    hidden = layers[places[0]].feedforward.down.out_features
    gate = started_gate(hidden, experts) if one_gate and routing in LEARNED else None
    for place in places:
        layer = layers[place]
        layer.feedforward = RoutedFeedForward(layer.feedforward, experts=experts, routing=routing, gate=gate, **options)
    return gate


def routers(layers: nn.ModuleList) -> dict[str, RoutedFeedForward]:
    """The learned routers among layers, by `layer` and their number from 1."""
    found = {f"layer{number}": layer.feedforward for number, layer in enumerate(layers, 1)}
    return {name: mixture for name, mixture in found.items() if isinstance(mixture, RoutedFeedForward) and mixture.routing in LEARNED}


def _share_norm(experts: nn.ModuleList) -> None:
    """Every expert uses the first one's normalisation, which is registered, saved and counted once."""
    first = experts[0]
    for expert in list(experts)[1:]:
        del expert._modules["norm"]
        expert.__dict__["norm"] = first.norm
