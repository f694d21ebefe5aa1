"""Routers of experts: which expert processes a text or a token, by its role or by a learned gate (TASER, Cheng et al. 2023).

At inference a learned gate takes the most probable expert, of equals the first. In training it chooses by Gumbel-softmax, and the option
`gradient` says how it learns from the loss. With e_i the output of expert i, m the chosen one, p the probabilities and z the Gumbel-softmax
sample, y is always e_m, with the gradient of:

* `full`: y = Σ z_i e_i with the straight-through z (Jang et al. 2017; TASER's paper). Biased where the loss is not linear between experts.
* `pair`: y = e_m + ½ (1 - p_m) (l_j - l_m - stop(l_j - l_m)) (e_j - e_m), with j drawn from the other experts by their probabilities.
  Its mean is the gradient of ReinMax (Liu et al. 2023), exact for a loss that is quadratic between experts; two experts run, however many
  there are.
* `switch`: the update of the chosen expert times 1 + z_m - stop(z_m), as in Switch Transformers (Fedus et al. 2022). It connects the gate
  with the loss at no cost, and is a biased estimator: it pushes the gate even where all experts are equal.
* `none`: no gradient of the loss, as in TASER's published code.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.dispatch import RouterOutput, check_expert_count
from moeir.backbones.layers import init_weights
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.parsing import check_choice

LEARNED_ROUTINGS = ("sequence", "token")
ROUTINGS = ("role", *LEARNED_ROUTINGS)
GATE_INPUTS = ("ffn_input", "block_input")
GRADIENTS = ("full", "pair", "switch", "none")
GATE_STARTS = ("centred", "drawn")


@dataclass(frozen=True)
class Decision:
    """The expert of each token, `choice` [T], and how its gate learns: the `strength` [T] of the chosen update, 1 with a gradient, or the
    `others`, experts [T] with the factor [T] of their difference from the chosen one, 0 with a gradient."""

    choice: Tensor
    strength: Tensor | None = None
    others: Sequence[tuple[Tensor, Tensor]] = ()


class ExpertRouter(nn.Module):
    """Chooses among `expert_count` experts for each text or token.

    `role`: the first half of the experts processes queries, the rest documents (with several per side: random in training, the first of
    the side at inference). `sequence`: one choice per text, from its first token. `token`: one choice per token. A learned router makes a
    gate, unless it gets one that layers share.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        *,
        routing: str,
        gate: nn.Linear | None = None,
        gate_input: str = "ffn_input",
        gradient: str = "full",
        gate_start: str = "centred",
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        choices = [("routing", routing, ROUTINGS), ("gate_input", gate_input, GATE_INPUTS)]
        for name, value, known in (*choices, ("gradient", gradient, GRADIENTS), ("gate_start", gate_start, GATE_STARTS)):
            check_choice(name, value, known)
        check_expert_count(experts)
        if not temperature > 0:
            raise UsageError(f"temperature={temperature}: expected more than 0")
        self.expert_count, self.routing, self.gate_input = experts, routing, gate_input
        self.gradient, self.gate_start, self.temperature = gradient, gate_start, temperature
        self.last_routing: RouterOutput | None = None
        if routing in LEARNED_ROUTINGS:
            self.gate = make_gate(hidden, experts) if gate is None else None
            self.__dict__["_shared_gate"] = gate  # registered once, by the architecture
            self.register_buffer("gate_offset", torch.zeros(experts))  # this layer's own, also with a gate shared by all layers

    @property
    def active_gate(self) -> nn.Linear:
        """The gate of this layer: its own, or the one shared by several layers."""
        gate: nn.Linear = self.gate if self._shared_gate is None else self._shared_gate
        return gate

    def decide(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Decision | int:
        """The expert of each token, or that of all; a learned router stores its output in `last_routing`.

        states [T, H] are the feed-forward's input, block [T, H] that of its layer.
        """
        if self.routing == "role":
            return self._decide_by_side(tokens)
        logits = self._gate_logits(self.select_gate_input(states, tokens, block))  # [n, E], n = B or T
        probabilities = logits.softmax(-1)
        by_text = self.routing == "sequence"
        self.last_routing = RouterOutput.from_text_probabilities(probabilities) if by_text else RouterOutput(probabilities, tokens.starts)

        def expand(decisions: Tensor) -> Tensor:
            return decisions.index_select(0, tokens.text_indices()) if by_text else decisions

        if not self.training:
            return Decision(expand(probabilities.argmax(-1)))
        weights = gumbel_softmax(logits, self.temperature, uniform_like(logits))
        strength, choice = weights.max(-1)
        if self.gradient == "none":
            return Decision(expand(choice))
        if self.gradient == "switch":
            return Decision(expand(choice), 1.0 + zero_with_gradient(expand(strength)))
        others = self._other_experts(logits, weights, choice)
        return Decision(expand(choice), None, [(expand(other), expand(factor)) for other, factor in others])

    def _gate_logits(self, inputs: Tensor) -> Tensor:
        gate = self.active_gate
        with torch.autocast(inputs.device.type, enabled=False):
            return F.linear(inputs.float(), gate.weight.float(), gate.bias.float() + self.gate_offset)

    def select_gate_input(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> Tensor:
        """[B or T, H] input of the gate, one row per decision."""
        inputs = states if self.gate_input == "ffn_input" else block
        return inputs.index_select(0, tokens.starts[:-1]) if self.routing == "sequence" else inputs

    def first_of_side(self, side: str) -> int:
        """The first expert of a role."""
        return 0 if side == "query" else self.expert_count // 2

    def _decide_by_side(self, tokens: PackedTokens) -> Decision | int:
        first, half = self.first_of_side(tokens.side), self.expert_count // 2
        count = half if tokens.side == "query" else self.expert_count - half
        if count == 1 or not self.training:
            return first
        choice = first + torch.randint(count, (len(tokens),), device=tokens.ids.device)
        return Decision(choice.index_select(0, tokens.text_indices()))

    def _other_experts(self, logits: Tensor, weights: Tensor, choice: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Experts [n] that run beside the chosen ones, each with the factor [n] of its difference from them, 0 with a gradient."""
        if self.gradient == "full":
            others = [(choice + shift) % self.expert_count for shift in range(1, self.expert_count)]
            return [(other, zero_with_gradient(weights.gather(1, other[:, None])[:, 0])) for other in others]
        best = weights.topk(2).indices  # of a Gumbel sample: the second is drawn from the rest by its probabilities
        chosen_logit, other_logit = logits.gather(1, best).unbind(1)
        chosen_probability = logits.detach().softmax(-1).gather(1, choice[:, None])[:, 0]
        return [(best[:, 1], 0.5 * (1.0 - chosen_probability) * zero_with_gradient(other_logit - chosen_logit))]

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
    """A sample near one-hot, softmax((logits + Gumbel noise) / temperature): [n, E] -> [n, E]. Jang et al. 2017.

    `uniform` [n, E] in (0, 1) is the source of the noise.
    """
    return ((logits - (-uniform.log()).log()) / temperature).softmax(-1)


def make_gate(hidden: int, experts: int) -> nn.Linear:
    """logits = A u + c, A from N(0, 0.02), c zero (TASER, appendix A)."""
    gate = nn.Linear(hidden, experts)
    init_weights(gate, 0.02)
    return gate
