"""Gated mixture of small experts over the pooled vector of a text (SB-MoE)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.dispatch import RouterOutput, check_expert_count, dispatch_to_experts
from moeir.backbones.packed_tokens import PackedTokens
from moeir.kernels.precision import normalize
from moeir.kernels.splitmix import splitmix64
from moeir.parsing import check_choice

GATES = ("learned", "random")
INFERENCES = ("top1", "all")
COMBINES = ("norm_expert", "weighted", "release")
EPSILON = 1e-6
NOISE_SCALE = math.log(2)  # softplus(0): the scale of the noise of a gate that has not learned anything


class BottleneckMlp(nn.Module):
    """Two linear layers, D -> D // 2 -> `output`, with ReLU: used for experts and for the gate."""

    def __init__(self, width: int, output: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width // 2)
        self.down = nn.Linear(width // 2, output)

    def forward(self, vectors: Tensor) -> Tensor:
        outputs: Tensor = self.down(F.relu(self.up(vectors)))
        return outputs


class EmbeddingMixture(nn.Module):
    """y = x + output of the chosen experts for x. Noisy top-1 in training; `top1` or `all` at inference.

    `combine`: `norm_expert` adds w_m · f_m(x) / |f_m(x)|, which is bounded and trains the gate; `weighted` adds Σ w_i f_i(x), as in the
    paper's equations; `release` adds Σ w_i f_i(x) scaled to length 1, as in the published code: with one expert its weight cancels,
    so that the gate gets no gradient. `normalise` scales y to length 1.

    `gate`: `random` takes an expert at random, anew in each training call by torch's generator; at inference by a hash of side and text, so
    that it is repeatable. Its weight w_m is that of a learned gate whose logits are 0: the largest of softmax(noise) in training, 1/n at
    inference. A correction is thus as long as with a learned gate at its start. A single expert has no gate, and weight 1.
    """

    def __init__(
        self,
        width: int,
        *,
        experts: int = 6,
        inference: str = "top1",
        combine: str = "norm_expert",
        gate: str = "learned",
        normalise: bool = False,
    ) -> None:
        super().__init__()
        check_expert_count(experts, 1)
        for name, value, known in (("inference", inference, INFERENCES), ("combine", combine, COMBINES), ("gate", gate, GATES)):
            check_choice(name, value, known)
        has_gate = gate == "learned" and experts > 1
        self.experts = nn.ModuleList(BottleneckMlp(width, width) for _ in range(experts))
        self.gate = BottleneckMlp(width, experts) if has_gate else None
        self.noise = nn.Linear(width, experts) if has_gate else None
        self.inference, self.combine, self.normalise = inference, combine, normalise
        self.is_random = gate == "random"  # an expert is chosen at random, not by the gate
        self.last_routing: RouterOutput | None = None

    def forward(self, vectors: Tensor, tokens: PackedTokens) -> Tensor:
        """vectors [B, D] of the texts in `tokens` -> [B, D] in float32; stores the gate's output in `last_routing`."""
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            weights = self._weights(vectors)  # [B, E]
            if self.inference == "all" and not self.training and self.gate is not None:
                refined = vectors + self._all_experts(vectors, weights)
            else:
                strength, choice = self._choose(weights, tokens)
                refined = vectors + self._top1(vectors, strength[:, None], choice)
            return normalize(refined) if self.normalise else refined

    def _weights(self, vectors: Tensor) -> Tensor:
        """[B, E] softmax over all experts, noisy in training; logits are 0 without a gate."""
        logits = vectors.new_zeros(len(vectors), len(self.experts)) if self.gate is None else self.gate(vectors)
        self.last_routing = None if self.gate is None else RouterOutput.from_text_probabilities(logits.softmax(-1))
        if self.training:
            logits = logits + torch.randn_like(logits) * (NOISE_SCALE if self.noise is None else F.softplus(self.noise(vectors)))
        return logits.softmax(-1)

    def _choose(self, weights: Tensor, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """The weight and the expert of each text; the weight is the largest, not renormalised."""
        strength, choice = weights.max(-1)
        count = weights.shape[1]
        if not self.is_random:
            return strength, choice
        if self.training:
            return strength, torch.randint(count, choice.shape, device=choice.device)
        return strength, hash_to_uniform(tokens, count, 1 + (tokens.side == "document")).argmax(-1)

    def _top1(self, vectors: Tensor, strength: Tensor, choice: Tensor) -> Tensor:
        if vectors.is_cuda:  # running all experts on a few hundred vectors costs less than a synchronisation
            rows = torch.arange(len(choice), device=choice.device)
            outputs = torch.stack([expert(vectors) for expert in self.experts], dim=1)[rows, choice]
        else:
            outputs = dispatch_to_experts(vectors, choice, len(self.experts), lambda expert, own, rows: self.experts[expert](own))
        if self.combine == "release":
            return normalize(strength * outputs, EPSILON)
        return strength * (normalize(outputs, EPSILON) if self.combine == "norm_expert" else outputs)

    def _all_experts(self, vectors: Tensor, weights: Tensor) -> Tensor:
        outputs = torch.stack([expert(vectors) for expert in self.experts], dim=1)  # [B, E, D]
        outputs = normalize(outputs, EPSILON) if self.combine == "norm_expert" else outputs
        combined = (weights[:, :, None] * outputs).sum(1)
        return normalize(combined, EPSILON) if self.combine == "release" else combined


def hash_to_uniform(tokens: PackedTokens, count: int, seed: int) -> Tensor:
    """[B, count] numbers in [0, 1), a function of the seed (below 2**31) and each text's token ids alone."""
    token_hashes = (tokens.ids + 1) * splitmix64(tokens.positions() + 1)
    text_hashes = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.ids.device).index_add(0, tokens.text_indices(), token_hashes)
    steps = torch.arange(1, count + 1, device=text_hashes.device) + (seed << 32)
    bits = (splitmix64(text_hashes[:, None] + splitmix64(steps)) >> 40) & (2**24 - 1)  # drops the sign extension
    return bits.float() / 2**24
