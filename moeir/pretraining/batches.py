"""Batches of spans, their contexts and masked tokens, as a pure function of the step.

The context and masks of a span depend on (seed, epoch, span) alone, the composition of batches on (seed, epoch).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones import ahead as threads
from moeir.backbones.tokens import Signs, Tokens
from moeir.errors import DataError, UsageError
from moeir.pretraining.corpus import TokenCache
from moeir.pretraining.draws import Numbers, keys
from moeir.pretraining.masking import Words, hide
from moeir.pretraining.queries import QueryCache
from moeir.pretraining.spans import CONTEXTS

ANCHOR, CONTEXT, ANCHOR_AGAIN, CONTEXT_AGAIN, MEETING = range(5)  # random choices for a span in an epoch


@dataclass(frozen=True)
class MaskedTexts:
    """B texts of one side with some tokens masked.

    `tokens` holds the encoder's input, special tokens around each text; `original_ids` [T] the ids before masking;
    `masked_positions` [m] the indices among the T tokens to predict, ascending: original_ids[masked_positions] are the targets.
    """

    tokens: Tokens
    plain: Tensor
    hidden: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def to(self, device: torch.device | str) -> Self:
        """A copy on a device; pinned tensors are copied asynchronously."""
        plain, hidden = (part.to(device, non_blocking=part.is_pinned()) for part in (self.plain, self.hidden))
        return type(self)(self.tokens.to(device), plain, hidden)

    def pinned(self) -> Self:
        """A copy in pinned memory."""
        return type(self)(self.tokens.pinned(), self.plain.pin_memory(), self.hidden.pin_memory())


@dataclass(frozen=True)
class Batch:
    """Texts of one step: B anchors and the other texts the objective requires, in the same order.

    `contexts` holds the context of each anchor, another span (side "document") or a query (side "query"); `decoder_anchors` and
    `decoder_contexts` are the same texts masked again at the decoder's rate.
    """

    anchors: MaskedTexts
    contexts: MaskedTexts | None
    anchors_again: MaskedTexts | None
    contexts_again: MaskedTexts | None
    step: int
    steps: int

    def to(self, device: torch.device | str) -> Self:
        """A copy on a device."""
        return self._map(lambda texts: texts.to(device))

    def pinned(self) -> Self:
        """A copy in pinned memory."""
        return self._map(MaskedTexts.pinned)

    def _map(self, change: Callable[[MaskedTexts], MaskedTexts]) -> Self:
        parts = (self.contexts, self.anchors_again, self.contexts_again)
        contexts, first, second = (None if part is None else change(part) for part in parts)
        return type(self)(change(self.anchors), contexts, first, second, self.step, self.steps)


@dataclass(frozen=True)
class Reading:
    """Template by which cached tokens become encoder input: special tokens around a text, marker and prefix before it.

    `prefix_ids` holds the ids of marker and prefix by side; they count towards a text's length and are never masked.
    """

    signs: Signs
    words: Words
    query_length: int
    ahead: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: OpenCheckpoint) -> Self:
        """Template of a model: its markers and prefixes."""
        input_config, special_tokens, tokenizer = model.rules, model.reader.signs, model.reader
        prefix_ids: dict[str, list[int]] = {}
        for side, prefix, marker in (
            ("query", input_config.query_prefix, special_tokens.query_marker),
            ("document", input_config.document_prefix, special_tokens.document_marker),
        ):
            marker_ids = [marker] if model.architecture.markers and marker is not None else []
            prefix_ids[side] = [
                *marker_ids,
                *tokenizer.ids([prefix.rstrip()])[0][1:-1],
            ]  # the space after the prefix belongs to the text's first word
        return cls(special_tokens, Words.of(tokenizer), input_config.query_length, prefix_ids)

    def room(self, side: str, length: int) -> int:
        """Content tokens of a text of at most `length` tokens."""
        return length - 2 - len(self.ahead.get(side, ()))


@dataclass(frozen=True)
class Needs:
    """What an objective needs: contexts (`none`, `query`, or a kind of span), rates, and second masks if `decoder_rate` is set."""

    context: str
    encoder_rate: float
    decoder_rate: float | None = None

    def __post_init__(self) -> None:
        if self.context not in ("none", "query", *CONTEXTS):
            raise UsageError(f"contexts {self.context}: expected none, query, {', '.join(CONTEXTS)}")


class Plan:
    """Epochs of shuffled spans in batches of `size`; spans without a context of the required kind are left out."""

    def __init__(
        self, cache: TokenCache, queries: QueryCache | None, reading: Reading, needs: Needs, *, size: int, steps: int, seed: int
    ) -> None:
        if size < 1:
            raise UsageError(f"--batch-size {size}: expected at least 1 span")
        if (needs.context == "query") != (queries is not None):
            raise UsageError("--queries: " + ("given, but the objective uses none" if queries else "missing; the objective uses queries"))
        if reading.room("query", reading.query_length) < 1:
            raise UsageError(f"--query-length {reading.query_length}: no room for a token besides special tokens and prefix")
        self.cache, self.queries, self.reading, self.needs = cache, queries, reading, needs
        self.steps, self.seed = steps, seed
        self._spans = self._eligible()
        self.size = min(size, len(self._spans))
        self._ordered: tuple[int, npt.NDArray[Any]] = (-1, self._spans)

    def _eligible(self) -> npt.NDArray[Any]:
        """[n] the spans that can be anchors."""
        parts = self.cache.parts
        if self.queries is not None:
            eligible = np.repeat(self.queries.asked(), np.diff(parts.documents))
            reason = "every document with a query is empty"
        elif self.needs.context == "none":
            eligible, reason = np.ones(len(parts), dtype=np.bool_), "no span"
        else:
            eligible, reason = parts.companions(), "no document has two spans, but contexts are other spans; lower --document-length"
        if not eligible.any():
            raise DataError(f"--corpus: {reason}")
        return np.flatnonzero(eligible).astype(np.int64 if len(eligible) >= 2**31 else np.int32)

    @property
    def spans(self) -> int:
        """Number of anchors in an epoch, before it is truncated to whole batches."""
        return len(self._spans)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch; an incomplete last batch is left out."""
        return len(self._spans) // self.size

    def anchors(self, step: int) -> Numbers:
        """[B] the spans of a step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._ordered[0] != epoch:
            self._ordered = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self._spans))
        return self._ordered[1][index * self.size : (index + 1) * self.size].astype(np.int64)

    def at(self, step: int, rank: int = 0, ranks: int = 1) -> Batch:
        """The batch of a step, counted from 0 over all epochs; each of `ranks` processes gets a contiguous part of it."""
        spans = np.array_split(self.anchors(step), ranks)[rank]
        epoch, needs, parts = step // self.steps_per_epoch, self.needs, self.cache.parts
        bounds = parts.bounds(spans)
        anchors = self._texts(self.cache.ids, bounds, "document")
        contexts = None
        if needs.context != "none":
            context_keys = keys(self.seed, epoch, MEETING, spans)
            if self.queries is not None:
                begins, ends = self.queries.drawn(parts.owners(spans), context_keys)
                ends = np.minimum(ends, begins + self.reading.room("query", self.reading.query_length))
                contexts = self._texts(self.queries.ids, (begins, ends), "query")
            else:
                contexts = self._texts(self.cache.ids, parts.contexts(needs.context, spans, context_keys), "document")

        def mask(texts: "_Texts | None", copy: int, rate: float | None) -> MaskedTexts | None:
            return None if texts is None or rate is None else texts.hidden(keys(self.seed, epoch, copy, spans), rate)

        return Batch(
            anchors.hidden(keys(self.seed, epoch, ANCHOR, spans), needs.encoder_rate),
            mask(contexts, CONTEXT, needs.encoder_rate),
            mask(anchors, ANCHOR_AGAIN, needs.decoder_rate),
            mask(contexts, CONTEXT_AGAIN, needs.decoder_rate),
            step,
            self.steps,
        )

    def _texts(self, ids: npt.NDArray[Any], bounds: tuple[Numbers, Numbers], side: str) -> "_Texts":
        begins, ends = bounds
        sizes = ends - begins
        starts = np.concatenate([[0], np.cumsum(sizes)])
        content = ids[np.arange(starts[-1]) + np.repeat(begins - starts[:-1], sizes)].astype(np.int64)
        return _Texts(content, starts, side, self.reading)


@dataclass(frozen=True)
class _Texts:
    """Texts before masking, already truncated: content [T] without special tokens, starts [B+1]."""

    content: Numbers
    starts: Numbers
    side: str
    reading: Reading

    def hidden(self, keys: npt.NDArray[np.uint64], rate: float) -> MaskedTexts:
        """The texts with tokens masked and special tokens around them."""
        masked_ids, is_masked = hide(self.content, self.starts, keys, rate, self.reading.words)
        prefix = [self.reading.signs.beginning, *self.reading.ahead.get(self.side, ())]
        sizes = np.diff(self.starts)
        starts = self.starts + np.arange(len(self.starts)) * (len(prefix) + 1)
        positions = np.arange(len(masked_ids)) + np.repeat(np.arange(len(sizes)) * (len(prefix) + 1) + len(prefix), sizes)
        input_ids, original_ids = np.full((2, starts[-1]), self.reading.signs.separator, dtype=np.int64)
        for values, content in ((input_ids, masked_ids), (original_ids, self.content)):
            values[positions] = content
            values[starts[:-1, None] + np.arange(len(prefix))] = prefix
        lengths = tuple((sizes + len(prefix) + 1).tolist())
        tokens = Tokens(torch.from_numpy(input_ids), torch.from_numpy(starts), self.side, lengths)
        return MaskedTexts(tokens, torch.from_numpy(original_ids), torch.from_numpy(positions[is_masked]))


def ahead(plan: Plan, first: int, last: int, *, rank: int = 0, ranks: int = 1, depth: int = 2, pinned: bool = False) -> Iterator[Batch]:
    """Batches of the steps from `first` to below `last`, prepared in a thread up to `depth` steps ahead."""

    def make_batch(step: int) -> Batch:
        batch = plan.at(step, rank, ranks)
        return batch.pinned() if pinned else batch

    return threads.ahead(make_batch, first, last, depth=depth)
