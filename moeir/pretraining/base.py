"""Base class of pre-training objectives (masked texts in, loss and metrics out) and the parts they share."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.analysis.training_monitor import BOTTLENECK_GAIN
from moeir.architectures.base import Architecture, StepMetrics
from moeir.backbones.encoder import Encoder, VocabularyHead, run_layers
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import UsageError
from moeir.heads.pooling import PoolingHead
from moeir.kernels.fused_cross_entropy import fused_linear_cross_entropy, reduce_logits
from moeir.mixtures.adapters import TowerRouter
from moeir.pretraining.batches import MaskedTexts, PretrainingBatch

SCALES, MAX_SCALE_TOKENS = [2 ** (-step / 2) for step in range(21)], 512  # factors to choose from, and masked tokens to choose on
MAX_EXCESS = 0.02  # nats above ln V that are taken for it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenLoss:
    """Mean loss of `count` predictions, with gradient, and the number of correct ones.

    Each process has its own predictions, unless the loss is already that of the whole batch (`is_global`). `gain` says what
    a decoder owes to its vectors: its loss with those of other texts minus this loss, without gradient.
    """

    value: Tensor
    correct: Tensor
    count: int
    is_global: bool = False
    gain: Tensor | None = None


@dataclass(frozen=True)
class EncodedTexts:
    """B encoded texts, sorted by length; the rows `original_order` [B] restore the order of the input.

    `states` [T, H] are the last layer's, `middle_states` [T, H] the input of the upper half of the layers; `pooled_vectors` [B, H] has one
    vector per text, in the order of `texts`.
    """

    texts: MaskedTexts
    original_order: Tensor
    encoder: Encoder
    states: Tensor
    middle_states: Tensor
    pooled_vectors: Tensor

    @property
    def vectors(self) -> Tensor:
        """[B, H] in the order of the input."""
        return self.pooled_vectors.index_select(0, self.original_order)


class Pretraining(nn.Module, ABC):
    """An objective without labels over an architecture's encoders, with a decoder that is discarded afterwards.

    `context` is the second text each anchor needs: `none`, another `span` of its document, or a `query`. Tokens are masked for the encoder
    at `encoder_rate` and, if there is a `decoder_rate`, masked again at that rate. Decoder parameters are initialised from torch's
    generator: seed it before. The objective holds the architecture, so its parameters are all trainable parameters. `mlm_weight` is that of
    the encoder's own masked-language-model losses; with 0 they are not computed.
    """

    context: ClassVar[str] = "none"
    process_group: ProcessGroup = SINGLE_PROCESS  # the processes that share each batch
    measures_bottleneck = False  # whether decoders also run with shuffled vectors

    def __init__(self, architecture: Architecture, *, rate: float, decoder_rate: float | None = None, mlm_weight: float = 1.0) -> None:
        super().__init__()
        check_minimum("mlm_weight", mlm_weight, 0)
        for name, value in (("rate", rate), ("decoder_rate", decoder_rate)):
            if value is not None and not 0 < value < 1:
                raise UsageError(f"{name}={value}: expected more than 0 and less than 1, the share of masked tokens")
        self.architecture = architecture
        self.encoder_rate, self.decoder_rate = rate, decoder_rate
        self.weights = {"mlm": mlm_weight}
        for encoder in (architecture.encoder_for(side) for side in ("query", "document")):
            _check_encoder(encoder, type(architecture).__name__.lower())

    @abstractmethod
    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """The loss of a batch and its metrics: `loss`, and for each part its loss and accuracy."""

    def encode(self, texts: MaskedTexts) -> EncodedTexts:
        """Encode texts with the encoder of their side.

        A text's vector is that of the architecture's global expert before normalisation: the first token unless it pools the mean.
        """
        encoder = self.architecture.encoder_for(texts.tokens.side)
        ordered, back = sort_texts_by_length(texts)
        half = len(encoder.layers) // 2
        middle = run_layers(encoder.layers[:half], encoder.embeddings(ordered.tokens), ordered.tokens)
        states = run_layers(encoder.layers[half:], middle, ordered.tokens)
        for router in self.architecture.routers(texts.tokens.side).values():
            router.last_routing = None  # it would keep this step's graph alive
        head = dict(self.architecture.heads.items()).get("global")
        pool = PoolingHead(pooling=head.pooling if isinstance(head, PoolingHead) else "cls")
        return EncodedTexts(ordered, back, encoder, states, middle, pool(states, ordered.tokens).vectors)

    def mlm_losses(self, encoded: Mapping[str, EncodedTexts]) -> dict[str, TokenLoss]:
        """The encoder's own losses of texts, by name; none with `mlm_weight=0`."""
        return {name: mlm_loss(one.states, one.texts, one.encoder) for name, one in encoded.items()} if self.weights["mlm"] else {}

    def decoder_loss(self, vectors: Tensor, decode: Callable[[Tensor], TokenLoss], *, blocks: int = 1) -> TokenLoss:
        """The loss of `decode` on vectors [B, H] in the order of the batch; if `measures_bottleneck`, also the gain over shuffled vectors.

        Shuffled, each text has the vector of the next text of the batch, over all processes, the last that of the first; of `blocks` equal
        blocks of texts each is shuffled by itself. Masks and dropout are the same both times, and random numbers drawn later are those
        that follow a single decoding. A batch of one text is not measured.
        """
        if not self.measures_bottleneck or (self.process_group.size == 1 and len(vectors) == blocks):
            return decode(vectors)
        with torch.no_grad(), torch.random.fork_rng([vectors.device] if vectors.is_cuda else []):
            shuffled_loss = decode(self._vectors_of_next_texts(vectors.detach(), blocks)).value
        loss = decode(vectors)
        return replace(loss, gain=shuffled_loss - loss.value.detach())

    def _vectors_of_next_texts(self, vectors: Tensor, blocks: int) -> Tensor:
        parts = vectors.chunk(blocks)
        following = self.process_group.all_gather(parts, "the vectors of a step")[(self.process_group.rank + 1) % self.process_group.size]
        return torch.cat([torch.cat([part[1:], other[:1]]) for part, other in zip(parts, following, strict=True)])

    def combine_losses(self, parts: Mapping[str, TokenLoss]) -> tuple[Tensor, StepMetrics]:
        """Weighted sum of the parts and the metrics `loss`, `loss.PART`, `accuracy.PART`.

        `self.weights` are by the first word of a part's name (`mlm` of `mlm.query`); a part without one has 1.
        For decoders that were measured also `bottleneck_gain.PART`, and `bottleneck_gain`, their mean.
        With several processes the metrics are those of the whole batch, and the gradients of the processes add up to the whole batch's.
        """
        factors = [self.weights.get(name.partition(".")[0], 1.0) for name in parts]
        values = [factor * part.value for factor, part in zip(factors, parts.values(), strict=True)]
        names = ["loss", *(f"loss.{name}" for name in parts), *(f"accuracy.{name}" for name in parts)]
        value, correct = (torch.stack([getattr(part, name).detach() for part in parts.values()]).double() for name in ("value", "correct"))
        count = torch.stack([torch.full_like(part.value.detach(), part.count) for part in parts.values()]).double()
        gain = torch.stack([part.value.detach() * 0 if part.gain is None else part.gain for part in parts.values()])
        own = torch.stack([value * count, correct, count, gain * count])  # [4, parts]
        by_process = torch.stack([tensor for (tensor,) in self.process_group.all_gather([own], "the losses of a step")])
        sums = torch.stack([by_process[: 1 if part.is_global else None, :, n].sum(0) for n, part in enumerate(parts.values())], 1)
        means, shares, _, gains = (sums / sums[2].clamp_min(1)).float()
        owned = (own[2] / sums[2].clamp_min(1)).float()  # this process's part of the predictions
        loss = torch.stack(
            [value if part.is_global else value * share for value, part, share in zip(values, parts.values(), owned, strict=True)]
        )
        total_loss = torch.stack([factor * mean for factor, mean in zip(factors, means, strict=True)]).sum()
        facts: StepMetrics = dict(zip(names, [total_loss, *means, *shares], strict=True))
        measured = {f"{BOTTLENECK_GAIN}.{name}": gain for name, gain in zip(parts, gains, strict=True) if parts[name].gain is not None}
        if measured:
            facts |= measured | {BOTTLENECK_GAIN: sum(measured.values()) / len(measured)}
        return loss.sum(), facts


def vocabulary_loss(states: Tensor, targets: Tensor, encoder: Encoder) -> TokenLoss:
    """Cross-entropy of the vocabulary head on states [n, H] against token ids [n]."""
    head = encoder.vocabulary_head
    assert head is not None
    reduce = getattr(head, "reduce_logits", reduce_logits)
    value, correct = fused_linear_cross_entropy(head(states), encoder.vocabulary_words, head.bias, targets, reduce)
    return TokenLoss(value, correct, len(targets))


def mlm_loss(states: Tensor, texts: MaskedTexts, encoder: Encoder) -> TokenLoss:
    """Masked-language-model loss of states [T, H]; the vocabulary head runs on masked positions only. Devlin et al. 2019."""
    rows = texts.masked_positions
    return vocabulary_loss(states.index_select(0, rows), texts.original_ids.index_select(0, rows), encoder)


@torch.no_grad()
def scale_heads(objective: Pretraining, batch: PretrainingBatch) -> None:
    """Multiply the logits of vocabulary heads by less than 1 where the loss of masked tokens is above ln V, that of equal logits.

    A head that was fitted for sparse weights (`heads.mlm_head`) is far too sure of tokens that it does not see. The factor is the largest
    with which the loss on a sample of `batch` is ln V. Which terms are above zero, and so the sparse bottleneck, hardly changes.
    """
    was_training, scaled = objective.training, set[VocabularyHead]()
    objective.eval()
    for texts in filter(None, (batch.anchors, batch.contexts)):
        encoder = objective.architecture.encoder_for(texts.tokens.side)
        head = encoder.vocabulary_head
        if not isinstance(head, VocabularyHead) or head in scaled:
            continue
        scaled.add(head)
        encoded = objective.encode(texts)
        rows = encoded.texts.masked_positions[:MAX_SCALE_TOKENS]
        logits = F.linear(head(encoded.states[rows]), encoder.vocabulary_words, head.bias)
        losses = {factor: float(F.cross_entropy(logits * factor, encoded.texts.original_ids[rows])) for factor in SCALES}
        if losses[1.0] > (uniform := math.log(len(head.bias))) + MAX_EXCESS:
            factor = next((factor for factor in SCALES if losses[factor] <= uniform + MAX_EXCESS), SCALES[-1])
            for part in (head.norm.weight, head.norm.bias, head.bias):
                if part is not None:
                    part.mul_(factor)
            reason = f"the loss of masked tokens is {losses[1.0]:.2f}, above that of equal logits, {uniform:.2f}"
            log.info("%s: logits of the vocabulary head are scaled by %.3g, for %.2f", reason, factor, losses[factor])
    objective.train(was_training)


def sort_texts_by_length(texts: MaskedTexts) -> tuple[MaskedTexts, Tensor]:
    """Texts sorted by length, and the rows [B] that restore their order."""
    tokens = texts.tokens.sort_by_length()
    if (back := tokens.order) is None:
        return texts, torch.arange(len(tokens), device=texts.original_ids.device)
    first = tokens.starts.index_select(0, back)  # [B] new start of each text
    destinations = first.index_select(0, texts.tokens.text_indices()) + texts.tokens.positions()  # [T] new position of each token
    plain = torch.empty_like(texts.original_ids).index_copy_(0, destinations, texts.original_ids)
    return MaskedTexts(tokens, plain, destinations[texts.masked_positions].sort().values), back


def align_by_length(vectors: Tensor, texts: MaskedTexts) -> tuple[Tensor, MaskedTexts]:
    """One vector per text [B, H] and the texts, both in the order of `sort_texts_by_length`."""
    ordered, back = sort_texts_by_length(texts)
    return vectors.index_select(0, back.argsort()), ordered


def concatenate_texts(first: MaskedTexts, second: MaskedTexts) -> MaskedTexts:
    """The texts of both, which must be of one side, end to end."""
    one, other, size = first.tokens, second.tokens, len(first.original_ids)
    assert one.side == other.side and all(part is None for part in (one.segments, one.no_attend_mask, other.segments, other.no_attend_mask))
    starts = torch.cat([one.starts, other.starts[1:] + size])
    tokens = replace(one, ids=torch.cat([one.ids, other.ids]), starts=starts, lengths=one.lengths + other.lengths)
    masked_positions = torch.cat([first.masked_positions, second.masked_positions + size])
    return MaskedTexts(tokens, torch.cat([first.original_ids, second.original_ids]), masked_positions)


def check_minimum(name: str, value: float, least: float) -> None:
    """UsageError for an option below its minimum."""
    if not value >= least:
        raise UsageError(f"{name}={value}: expected {least} or more")


def check_weights(**weights: float) -> None:
    """UsageError unless the weights of all parts of a loss are 0 or more and one is above 0."""
    for name, weight in weights.items():
        check_minimum(name, weight, 0)
    if not any(weights.values()):
        raise UsageError(f"{', '.join(f'{name}=0' for name in weights)}: nothing would be learned; expected one of them above 0")


def _check_encoder(encoder: Encoder, name: str) -> None:
    shared = sum(not isinstance(layer.router, TowerRouter) for layer in encoder.layers)
    if shared != encoder.config.layers:
        reason = f"its encoder has {shared} of {encoder.config.layers} layers, the rest are towers"
        advice = f"pre-train --arch dense and finetune --arch {name} from it"
        raise UsageError(f"{name} cannot be pre-trained as one encoder: {reason}; {advice}")
    if encoder.vocabulary_head is None:
        missing = f"pre-training needs a vocabulary head, which this {name} lacks"
        raise UsageError(f"{missing}; it is present with --arch dense:head=true, mote:similarity=hybrid and others with a lexical expert")
