"""Batches of spans, their contexts and masked tokens, as a pure function of the step.

The context and masks of a span depend on (seed, epoch, span) alone, the composition of batches on (seed, epoch). An epoch has each span
once, or one random span of each document: spans of long documents would otherwise be most of what is learned from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.packed_pairs import concatenate_ranges
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens, TensorFields
from moeir.errors import DataError, UsageError
from moeir.kernels.splitmix import Int64Array, randint_high, random_bits, text_keys
from moeir.pretraining.masking import WordVocabulary, mask_tokens
from moeir.pretraining.span_cache import QueryCache, SpanCache

ANCHOR_MASK, CONTEXT_MASK, DECODER_ANCHOR_MASK, DECODER_CONTEXT_MASK, CONTEXT_CHOICE = range(5)  # random choices for a span in an epoch
SPAN_CHOICE, HELD_OUT_CHOICE = 5, 6  # for a document in an epoch, and for a document
FIRST = np.zeros(1, dtype=np.int64)  # counter of the first random number of a key


@dataclass(frozen=True)
class MaskedTexts(TensorFields):
    """B texts of one side with some tokens masked.

    `tokens` holds the encoder's input, special tokens around each text; `original_ids` [T] the ids before masking;
    `masked_positions` [m] the indices among the T tokens to predict, ascending: original_ids[masked_positions] are the targets.
    """

    tokens: PackedTokens
    original_ids: Tensor
    masked_positions: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class PretrainingBatch(TensorFields):
    """Texts of one step: B anchors and the other texts the objective requires, in the same order.

    `contexts` holds the context of each anchor, another span (side "document") or a query (side "query"); `decoder_anchors` and
    `decoder_contexts` are the same texts masked again at the decoder's rate.
    """

    anchors: MaskedTexts
    contexts: MaskedTexts | None
    decoder_anchors: MaskedTexts | None
    decoder_contexts: MaskedTexts | None
    step: int
    steps: int


@dataclass(frozen=True)
class InputTemplate:
    """Template by which cached tokens become encoder input: special tokens around a text, marker and prefix before it.

    `prefix_ids` holds the ids of marker and prefix by side; they count towards a text's length and are never masked.
    """

    special_tokens: SpecialTokens
    vocabulary: WordVocabulary
    query_length: int
    prefix_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def from_model(cls, model: RetrievalModel) -> Self:
        """Template of a model: its markers and prefixes."""
        input_config, special_tokens, tokenizer = model.input_config, model.tokenizer.special_tokens, model.tokenizer
        prefix_ids: dict[str, list[int]] = {}
        for side, prefix, marker in (
            ("query", input_config.query_prefix, special_tokens.query_marker),
            ("document", input_config.document_prefix, special_tokens.document_marker),
        ):
            marker_ids = [marker] if model.architecture.markers and marker is not None else []
            # the space after the prefix belongs to the text's first word
            prefix_ids[side] = [*marker_ids, *tokenizer.encode([prefix.rstrip()])[0][1:-1]]
        return cls(special_tokens, WordVocabulary.from_tokenizer(tokenizer), input_config.query_length, prefix_ids)

    def content_budget(self, side: str, length: int) -> int:
        """Content tokens of a text of at most `length` tokens."""
        return length - 2 - len(self.prefix_ids.get(side, ()))

    def mask(self, content: Int64Array, starts: Int64Array, side: str, keys: npt.NDArray[np.uint64], rate: float) -> MaskedTexts:
        """Texts of a side, truncated already: content [T] without special tokens, starts [B+1], with tokens masked and special tokens
        around each text."""
        masked_ids, is_masked = mask_tokens(content, starts, keys, rate, self.vocabulary)
        prefix, sizes = [self.special_tokens.beginning, *self.prefix_ids.get(side, ())], np.diff(starts)
        positions = np.arange(len(masked_ids)) + np.repeat(np.arange(len(sizes)) * (len(prefix) + 1) + len(prefix), sizes)
        starts = starts + np.arange(len(starts)) * (len(prefix) + 1)
        input_ids, original_ids = np.full((2, starts[-1]), self.special_tokens.separator, dtype=np.int64)
        for values, ids in ((input_ids, masked_ids), (original_ids, content)):
            values[positions] = ids
            values[starts[:-1, None] + np.arange(len(prefix))] = prefix
        tokens = PackedTokens.from_arrays(input_ids, sizes + len(prefix) + 1, side)
        return MaskedTexts(tokens, torch.from_numpy(original_ids), torch.from_numpy(positions[is_masked]))


@dataclass(frozen=True)
class BatchRequirements:
    """What an objective needs: contexts (`none`, `query`, or a kind of span), rates, and second masks if `decoder_rate` is set."""

    context: str
    encoder_rate: float
    decoder_rate: float | None = None


def hold_out_documents(count: int, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """[N] which of `count` documents are held out: each with the probability `share`, whatever else there is."""
    keys = text_keys(seed, 0, HELD_OUT_CHOICE, np.arange(count))
    chosen: npt.NDArray[np.bool_] = random_bits(keys, FIRST) >> np.uint64(32) < np.uint64(share * 2**32)
    return chosen


class SpanSampler:
    """Epochs of shuffled spans in batches of `size`; spans without a context of the required kind are left out.

    `draw`: an epoch has all spans, or of all documents one each, of equal probability. `documents` [N]: which documents are read.
    """

    def __init__(
        self,
        cache: SpanCache,
        queries: QueryCache | None,
        template: InputTemplate,
        requirements: BatchRequirements,
        *,
        size: int,
        steps: int,
        seed: int,
        draw: str = "spans",
        documents: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        if template.content_budget("query", template.query_length) < 1:
            raise UsageError(f"--query-length {template.query_length}: no room for a token besides special tokens and prefix")
        self.cache, self.queries, self.template, self.requirements = cache, queries, template, requirements
        self.steps, self.seed = steps, seed
        self._anchor_spans = self._find_anchors(documents)
        self._owner_starts: Int64Array | None = None  # [m+1] the first anchor of each document
        if draw == "documents":
            owners = cache.boundaries.document_rows(self._anchor_spans)
            self._owner_starts = np.append(np.flatnonzero(np.diff(owners, prepend=-1)), len(owners))
        self.batch_size = min(size, self.anchor_count)
        self._order_of_epoch = lru_cache(maxsize=1)(self._shuffle)  # the steps of an epoch come one after another

    def _find_anchors(self, documents: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
        """[n] the spans that can be anchors, ascending."""
        parts = self.cache.boundaries
        if self.queries is not None:
            eligible = self.queries.has_query(np.diff(parts.documents))
            reason = "every document with a query is empty"
        elif self.requirements.context == "none":
            eligible, reason = np.ones(len(parts), dtype=np.bool_), "no span"
        else:
            eligible, reason = parts.has_sibling(), "no document has two spans, but contexts are other spans; lower --document-length"
        if not eligible.any():
            raise DataError(f"--corpus: {reason}")
        if documents is not None and not (eligible := eligible & np.repeat(documents, np.diff(parts.documents))).any():
            raise DataError("--held-out: leaves no span for one of both parts; expected a share that leaves documents for each")
        return np.flatnonzero(eligible).astype(np.int64 if len(eligible) >= 2**31 else np.int32)

    @property
    def anchor_count(self) -> int:
        """Number of anchors in an epoch, before it is truncated to whole batches."""
        return len(self._anchor_spans) if self._owner_starts is None else len(self._owner_starts) - 1

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch; an incomplete last batch is left out."""
        return self.anchor_count // self.batch_size

    def anchors_at(self, step: int) -> Int64Array:
        """[B] the spans of a step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        drawn = self._order_of_epoch(epoch)[index * self.batch_size : (index + 1) * self.batch_size].astype(np.int64)
        if self._owner_starts is None:
            return drawn
        first, after = self._owner_starts[drawn], self._owner_starts[drawn + 1]
        chosen = randint_high(random_bits(text_keys(self.seed, epoch, SPAN_CHOICE, drawn), FIRST), after - first)
        return self._anchor_spans[first + chosen].astype(np.int64)

    def _shuffle(self, epoch: int) -> npt.NDArray[Any]:
        """The order of an epoch: its spans, or numbers of its documents."""
        drawn = self._anchor_spans if self._owner_starts is None else np.arange(self.anchor_count)
        return np.random.default_rng([self.seed, epoch]).permutation(drawn)

    def batch_at(self, step: int, rank: int = 0, ranks: int = 1) -> PretrainingBatch:
        """The batch of a step, counted from 0 over all epochs; each of `ranks` processes gets a contiguous part of it."""
        spans = np.array_split(self.anchors_at(step), ranks)[rank]
        epoch, needs, parts = step // self.steps_per_epoch, self.requirements, self.cache.boundaries
        bounds = parts.token_bounds(spans)
        anchors, contexts = _gather_texts(self.cache.ids, bounds), None
        side = "document" if self.queries is None else "query"
        if needs.context != "none":
            context_keys = text_keys(self.seed, epoch, CONTEXT_CHOICE, spans)
            if self.queries is not None:
                begins, ends = self.queries.sample_queries(parts.document_rows(spans), spans, context_keys)
                ends = np.minimum(ends, begins + self.template.content_budget("query", self.template.query_length))
                contexts = _gather_texts(self.queries.ids, (begins, ends))
            else:
                contexts = _gather_texts(self.cache.ids, parts.sample_contexts(needs.context, spans, context_keys))

        def mask(texts: tuple[Int64Array, Int64Array], side: str, copy: int, rate: float) -> MaskedTexts:
            return self.template.mask(*texts, side, text_keys(self.seed, epoch, copy, spans), rate)

        return PretrainingBatch(
            mask(anchors, "document", ANCHOR_MASK, needs.encoder_rate),
            None if contexts is None else mask(contexts, side, CONTEXT_MASK, needs.encoder_rate),
            None if needs.decoder_rate is None else mask(anchors, "document", DECODER_ANCHOR_MASK, needs.decoder_rate),
            None if contexts is None or needs.decoder_rate is None else mask(contexts, side, DECODER_CONTEXT_MASK, needs.decoder_rate),
            step,
            self.steps,
        )


def _gather_texts(ids: npt.NDArray[Any], bounds: tuple[Int64Array, Int64Array]) -> tuple[Int64Array, Int64Array]:
    """The tokens [T] of texts between the bounds [B] end to end, and their starts [B+1]."""
    begins, sizes = bounds[0], bounds[1] - bounds[0]
    return ids[concatenate_ranges(begins, sizes)].astype(np.int64), np.concatenate([[0], np.cumsum(sizes)])
