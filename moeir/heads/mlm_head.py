"""Fitted initial weights for MLM heads that a checkpoint lacks.

Ridge regression maps the top states to the centred, normalised embedding of each token's own word. The map becomes the head's
transform, shifted far enough for the activation to be linear; the normalisation after it removes the shift. A head whose transform has
no bias (ModernBERT) cannot be shifted: its activation distorts the fitted map, which costs some of the fit. Scale and bias are set so
that the strongest terms start near `strongest` and all but a few (token, term) pairs start below zero.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.encoder import VocabularyHead

SHIFT = 6.0
MAX_SCALE_TOKENS = 2000


@dataclass(frozen=True)
class FitReport:
    """Quality of a fit: share of tokens whose own word is the strongest term, and share of (token, term) pairs above zero."""

    token_count: int
    top1_share: float
    positive_share: float


@torch.no_grad()
def fit_mlm_head(
    head: VocabularyHead,
    embeddings: Tensor,
    states: Tensor,
    ids: Tensor,
    *,
    ridge: float = 1e-2,
    strongest: float = 2.0,
    positive: float = 2e-4,
) -> FitReport:
    """Set the head's weights from states [n, H] of tokens with ids [n]; embeddings [V, E] is the decoder.

    `positive` is the share of (token, term) pairs left above zero: 2e-4 of 30,522 terms are six per token; at least two per token.
    """
    states, embeddings = states.double(), embeddings.double()
    targets = F.normalize(embeddings - embeddings.mean(0), dim=-1)[ids]
    has_bias, centre_out = head.transform.bias is not None, targets.mean(0)
    centre_in = states.mean(0) if has_bias else torch.zeros_like(states[0])
    inputs, outputs = states - centre_in, targets - centre_out
    gram = inputs.T @ inputs
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weight = torch.linalg.solve(gram, inputs.T @ outputs).T  # [E, H]
    predicted = inputs @ weight.T
    scale = 1.0 / predicted.std()
    head.transform.weight.copy_(weight * scale)
    if has_bias:
        head.transform.bias.copy_((-weight @ centre_in) * scale + SHIFT)
    head.norm.weight.fill_(1.0)
    if head.norm.bias is not None:
        head.norm.bias.zero_()
    head.bias.zero_()
    logits, offset, report = _centre_logits(head, embeddings, states, ids, positive)
    gain = strongest / float(logits.amax(1).median().clamp(min=1e-6))
    head.norm.weight.fill_(gain)
    head.bias.copy_(-gain * offset)
    return report


@torch.no_grad()
def fit_bias(bias: nn.Parameter, head: nn.Module, embeddings: Tensor, states: Tensor, ids: Tensor, *, positive: float = 2e-4) -> FitReport:
    """Set a bias [V] of logits to minus each term's mean logit and one threshold for all terms, so that a share `positive` of the (token,
    term) pairs is above zero; the other weights of `head` stay."""
    _, offset, report = _centre_logits(head, embeddings, states, ids, positive)
    bias.copy_(-offset)
    return report


def _centre_logits(head: nn.Module, embeddings: Tensor, states: Tensor, ids: Tensor, positive: float) -> tuple[Tensor, Tensor, FitReport]:
    """The logits [n, V] of some tokens, less an offset [V], so that a share `positive` of all is above zero; the offset and the report."""
    rows = torch.linspace(0, len(ids) - 1, min(len(ids), MAX_SCALE_TOKENS)).long()
    logits = head(states[rows].float()) @ embeddings.float().T
    means = logits.mean(0)
    logits -= means
    sample = logits.flatten()[:: max(1, logits.numel() // 10_000_000)]
    threshold = float(sample.kthvalue(int((1.0 - max(positive, 2.0 / len(embeddings))) * len(sample))).values)
    logits -= threshold
    top1_share = (logits.argmax(1) == ids[rows]).float().mean()
    return logits, means + threshold, FitReport(len(ids), float(top1_share), float((logits > 0).float().mean()))
