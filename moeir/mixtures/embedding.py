"""Gated mixture of small experts over the pooled vector of a text (SB-MoE)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.splitmix import splitmix64
from moeir.mixtures.dispatch import RouterOutput, check_expert_count, dispatch_to_experts

GATES = ("learned", "random")
INFERENCES = ("top1", "all", "random")
COMBINES = ("norm_expert", "weighted", "release")
EPSILON = 1e-6


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
    """y = x + output of the chosen experts for x. Noisy top-1 in training; `top1`, `all` or `random` at inference.

    `combine`: `norm_expert` adds w_m · f_m(x) / |f_m(x)|, which is bounded and trains the gate; `weighted` adds Σ w_i f_i(x), as in the
    paper's equations; `release` adds Σ w_i f_i(x) scaled to length 1, as in the published code: with one expert its weight cancels,
    so that the gate gets no gradient. `gate=random` routes each text by a hash of its tokens, in training and at inference, regardless of
    `inference`; w_m is then the largest of n hashed numbers, uniform on [0, 1), as in the published code.
    """

    def __init__(
        self,
        width: int,
        *,
        experts: int = 6,
        inference: str = "top1",
        combine: str = "norm_expert",
        gate: str = "learned",
        noise: bool = True,
    ) -> None:
        super().__init__()
        check_expert_count(experts)
        for name, value, known in (("inference", inference, INFERENCES), ("combine", combine, COMBINES), ("gate", gate, GATES)):
            if value not in known:
                raise UsageError(f"{name}={value}: expected one of {', '.join(known)}")
        self.experts = nn.ModuleList(BottleneckMlp(width, width) for _ in range(experts))
        self.gate = BottleneckMlp(width, experts) if gate == "learned" else None
        self.noise = nn.Linear(width, experts) if gate == "learned" and noise else None
        self.inference, self.combine = inference, combine
        self.last_routing: RouterOutput | None = None

    def forward(self, vectors: Tensor, tokens: PackedTokens) -> Tensor:
        """vectors [B, D] of the texts in `tokens` -> [B, D] in float32; stores the gate's output in `last_routing`."""
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            weights = self._weights(vectors, tokens)  # [B, n]
            if self.inference == "all" and not self.training and self.gate is not None:
                return vectors + self._all_experts(vectors, weights)
            strength, choice = weights.max(-1)
            return vectors + self._top1(vectors, strength[:, None], choice)

    def _weights(self, vectors: Tensor, tokens: PackedTokens) -> Tensor:
        """[B, n] softmax over all experts; top-1 uses the largest, not renormalised."""
        if self.gate is None or (self.inference == "random" and not self.training):
            self.last_routing = None
            return hash_uniform(tokens, len(self.experts))
        logits: Tensor = self.gate(vectors)
        self.last_routing = RouterOutput.from_text_probabilities(logits.softmax(-1))
        if self.training and self.noise is not None:
            logits = logits + torch.randn_like(logits) * F.softplus(self.noise(vectors))
        return logits.softmax(-1)

    def _top1(self, vectors: Tensor, strength: Tensor, choice: Tensor) -> Tensor:
        if vectors.is_cuda:  # running all experts on a few hundred vectors costs less than a synchronisation
            rows = torch.arange(len(choice), device=choice.device)
            outputs = torch.stack([expert(vectors) for expert in self.experts], dim=1)[rows, choice]
        else:
            outputs = dispatch_to_experts(vectors, choice, len(self.experts), lambda expert, own, rows: self.experts[expert](own))
        if self.combine == "release":
            return F.normalize(strength * outputs, dim=-1, eps=EPSILON)
        return strength * (F.normalize(outputs, dim=-1, eps=EPSILON) if self.combine == "norm_expert" else outputs)

    def _all_experts(self, vectors: Tensor, weights: Tensor) -> Tensor:
        outputs = torch.stack([expert(vectors) for expert in self.experts], dim=1)  # [B, n, D]
        outputs = F.normalize(outputs, dim=-1, eps=EPSILON) if self.combine == "norm_expert" else outputs
        combined = (weights[:, :, None] * outputs).sum(1)
        return F.normalize(combined, dim=-1, eps=EPSILON) if self.combine == "release" else combined


def hash_uniform(tokens: PackedTokens, count: int) -> Tensor:
    """[B, count] numbers in [0, 1), a function of each text's token ids alone."""
    token_hashes = (tokens.ids + 1) * splitmix64(tokens.positions() + 1)
    text_hashes = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.ids.device).index_add(0, tokens.text_indices(), token_hashes)
    steps = torch.arange(1, count + 1, device=text_hashes.device)
    bits = (splitmix64(text_hashes[:, None] + splitmix64(steps)) >> 40) & (2**24 - 1)  # drops the sign extension
    return bits.float() / 2**24
