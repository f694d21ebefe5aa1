"""Base class of pre-training objectives (masked texts in, loss and metrics out) and the parts they share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder, run
from moeir.backbones.tokens import Signs
from moeir.errors import UsageError
from moeir.heads.pooled import Pooled
from moeir.kernels.token_loss import token_loss
from moeir.pretraining.batches import Batch, MaskedTexts

Facts = dict[str, float | Tensor]  # of a step; tensors stay on the device until they are logged


@dataclass(frozen=True)
class Loss:
    """Mean loss of `count` predictions, with gradient, and the number of correct ones.

    Each process has its own predictions, unless the loss is already that of the whole batch (`is_global`).
    """

    value: Tensor
    correct: Tensor
    count: int
    whole: bool = False


class Others(Protocol):
    """Communication with the processes that share each batch with this one."""

    @property
    def rank(self) -> int:
        """Index of this process."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def said(self, words: Any, moment: str) -> list[Any]:
        """Gather one object from each process, in order of rank; `moment` names the step in errors."""

    def all_of(self, own: Sequence[Tensor], moment: str) -> list[list[Tensor]]:
        """Gather the tensors of every process, in order of rank, without gradient."""


@dataclass(frozen=True)
class Read:
    """B encoded texts, sorted by length; the rows `original_order` [B] restore the order of the input.

    `states` [T, H] are the last layer's, `middle_states` [T, H] the input of the upper half of the layers; `pooled_vectors` [B, H] has one
    vector per text, in the order of `texts`.
    """

    texts: MaskedTexts
    back: Tensor
    encoder: Encoder
    states: Tensor
    middle: Tensor
    pooled: Tensor

    @property
    def vectors(self) -> Tensor:
        """[B, H] in the order of the input."""
        return self.pooled.index_select(0, self.back)


class Pretraining(nn.Module, ABC):
    """An objective without labels over an architecture's encoders, with a decoder that is discarded afterwards.

    `context` is the second text each anchor needs: `none`, another `span` of its document, or a `query`. Tokens are masked for the encoder
    at `encoder_rate` and, if there is a `decoder_rate`, masked again at that rate. Decoder parameters are initialised from torch's
    generator: seed it before. The objective holds the architecture, so its parameters are all trainable parameters.
    """

    context: ClassVar[str] = "none"
    others: Others | None = None  # if several processes share each batch

    def __init__(self, architecture: Architecture, *, rate: float, decoder_rate: float | None = None) -> None:
        super().__init__()
        for name, value in (("rate", rate), ("decoder_rate", decoder_rate)):
            if value is not None and not 0 < value < 1:
                raise UsageError(f"{name}={value}: expected more than 0 and less than 1, the share of masked tokens")
        self.architecture = architecture
        self.encoder_rate, self.decoder_rate = rate, decoder_rate
        for encoder in (architecture.encoder_of(side) for side in ("query", "document")):
            _check(encoder, type(architecture).__name__.lower())

    @abstractmethod
    def forward(self, batch: Batch) -> tuple[Tensor, Facts]:
        """The loss of a batch and its metrics: `loss`, and for each part its loss and accuracy."""

    def encode(self, texts: MaskedTexts) -> Read:
        """Encode texts with the encoder of their side.

        A text's vector is that of the architecture's global expert before normalisation: the first token unless it pools the mean.
        """
        encoder = self.architecture.encoder_of(texts.tokens.side)
        ordered, back = by_length(texts)
        half = len(encoder.layers) // 2
        middle = run(encoder.layers[:half], encoder.embeddings(ordered.tokens), ordered.tokens)
        states = run(encoder.layers[half:], middle, ordered.tokens)
        for router in self.architecture.routers().values():
            router.routed = None  # it would keep this step's graph alive
        head = dict(self.architecture.heads.items()).get("global")
        pool = Pooled(pooling=head.pooling if isinstance(head, Pooled) else "cls")
        return Read(ordered, back, encoder, states, middle, pool(states, ordered.tokens).vectors)

    def outcome(self, parts: Mapping[str, Loss], weights: Mapping[str, float] | None = None) -> tuple[Tensor, Facts]:
        """Weighted sum of the parts (default weight 1) and the metrics `loss`, `loss.PART`, `accuracy.PART`.

        With several processes the metrics are those of the whole batch, and the gradients of the processes add up to the whole batch's.
        """
        weights = weights or {}
        values = [weights.get(name, 1.0) * part.value for name, part in parts.items()]
        if self.others is not None:
            return self._shared(parts, values, weights)
        loss = torch.stack(values).sum()
        shares = [part.correct / max(1, part.count) for part in parts.values()]
        facts = torch.stack([loss, *(part.value for part in parts.values()), *shares]).detach()
        return loss, dict(zip(_facts(parts), facts, strict=True))

    def _shared(self, parts: Mapping[str, Loss], values: list[Tensor], weights: Mapping[str, float]) -> tuple[Tensor, Facts]:
        assert self.others is not None
        own = [(float(part.value.detach()), int(part.correct), part.count) for part in parts.values()]
        by_process = self.others.said(own, "the losses of a step")
        scales, means, shares = [], [], []
        for number, part in enumerate(parts.values()):
            entries = [losses[number] for losses in (by_process[:1] if part.whole else by_process)]
            total = max(1, sum(count for _, _, count in entries))
            scales.append(1.0 if part.whole else part.count / total)
            means.append(sum(value * count for value, _, count in entries) / total)
            shares.append(sum(correct for _, correct, _ in entries) / total)
        loss = torch.stack([value * scale for value, scale in zip(values, scales, strict=True)]).sum()
        total_loss = sum(weights.get(name, 1.0) * mean for name, mean in zip(parts, means, strict=True))
        return loss, dict(zip(_facts(parts), [total_loss, *means, *shares], strict=True))


def _facts(parts: Mapping[str, Loss]) -> list[str]:
    return ["loss", *(f"loss.{name}" for name in parts), *(f"accuracy.{name}" for name in parts)]


def predicted(states: Tensor, targets: Tensor, encoder: Encoder) -> Loss:
    """Cross-entropy of the vocabulary head on states [n, H] against token ids [n]."""
    head = encoder.vocabulary_head
    assert head is not None
    value, correct = token_loss(head(states), encoder.embeddings.words.weight, head.bias, targets)
    return Loss(value, correct, len(targets))


def masked_loss(states: Tensor, texts: MaskedTexts, encoder: Encoder) -> Loss:
    """Masked-language-model loss of states [T, H]; the vocabulary head runs on masked positions only. Devlin et al. 2019."""
    return predicted(states.index_select(0, texts.hidden), texts.plain.index_select(0, texts.hidden), encoder)


def by_length(texts: MaskedTexts) -> tuple[MaskedTexts, Tensor]:
    """Texts sorted by length, and the rows [B] that restore their order."""
    tokens = texts.tokens.sort_by_length()
    if (back := tokens.order) is None:
        return texts, torch.arange(len(tokens), device=texts.plain.device)
    first = tokens.starts.index_select(0, back)  # [B] new start of each text
    destinations = first.index_select(0, texts.tokens.owners()) + texts.tokens.positions()  # [T] new position of each token
    plain = torch.empty_like(texts.plain).index_copy_(0, destinations, texts.plain)
    return MaskedTexts(tokens, plain, destinations[texts.hidden].sort().values), back


def aligned(vectors: Tensor, texts: MaskedTexts) -> tuple[Tensor, MaskedTexts]:
    """One vector per text [B, H] and the texts, both in the order of `sort_texts_by_length`."""
    ordered, back = by_length(texts)
    return vectors.index_select(0, back.argsort()), ordered


def joined(first: MaskedTexts, second: MaskedTexts) -> MaskedTexts:
    """The texts of both, which must be of one side, end to end."""
    one, other, size = first.tokens, second.tokens, len(first.plain)
    assert one.side == other.side and all(part is None for part in (one.segments, one.silent, other.segments, other.silent))
    starts = torch.cat([one.starts, other.starts[1:] + size])
    tokens = replace(one, ids=torch.cat([one.ids, other.ids]), starts=starts, lengths=one.lengths + other.lengths)
    return MaskedTexts(tokens, torch.cat([first.plain, second.plain]), torch.cat([first.hidden, second.hidden + size]))


def special(texts: MaskedTexts, special_tokens: Signs) -> Tensor:
    """[T] which tokens are the special ones that begin and end texts."""
    return (texts.plain == special_tokens.beginning) | (texts.plain == special_tokens.separator)


def check_number(name: str, value: float, least: float) -> None:
    """UsageError for an option below its minimum."""
    if not value >= least:
        raise UsageError(f"{name}={value}: expected {least} or more")


def _check(encoder: Encoder, name: str) -> None:
    if len(encoder.layers) != encoder.shape.layers:
        reason = f"its encoder has {len(encoder.layers)} of {encoder.shape.layers} layers, the rest are towers"
        raise UsageError(
            f"{name} cannot be pre-trained as one encoder: {reason}; pre-train --arch dense and finetune --arch {name} from it"
        )
    if encoder.vocabulary_head is None:
        missing = f"pre-training needs a vocabulary head, which this {name} lacks"
        raise UsageError(f"{missing}; it is present with --arch dense:head=true, mote:similarity=hybrid and others with a lexical expert")
