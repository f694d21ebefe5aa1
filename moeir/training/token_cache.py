"""Token cache: texts are tokenized once, by a checkpoint's reading rules, and stay on disk for every step, restart and later training.

A cache is a folder named by the digest of texts, tokenizer and rules. Processes share the texts of a batch, and batches are prefetched in a
thread.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeir.architectures.checkpoint import RetrievalModel
from moeir.architectures.cross_encoder import PairTokenizer
from moeir.artifacts import manifests, memmap
from moeir.backbones.packed_pairs import PackedPairs, RaggedIds, concatenate_ranges
from moeir.backbones.packed_tokens import Numbers, PackedTokens, TensorFields
from moeir.backbones.prefetch import StepPrefetcher
from moeir.backbones.token_files import TokenFileWriter, chunk_texts, open_arrays
from moeir.console import meter
from moeir.errors import DataError
from moeir.kernels.token_budget import split_by_tokens
from moeir.training.sampling import BatchIds, BatchSampler
from moeir.training.text_stream import RowIndex, TextStream

CACHE_VERSION = 2  # of the files of a cache, and of how a checkpoint tokenizes
ARRAYS = ("ids", "starts", "silent")
PREFETCH_STEPS = 4
OVERLAP_KINDS = 4  # of queries, by the quarter of their tokens that the positive has


@dataclass(frozen=True)
class TokenCache(RaggedIds):
    """Texts with their special tokens; silent [n] counts the tokens at the end of each text that are not attended to. All memory-mapped."""

    silent: Numbers

    def pack(self, rows: Sequence[int], side: str) -> PackedTokens:
        """The texts of `rows`, in that order."""
        row_array = np.asarray(rows, dtype=np.int64)
        begins, sizes = self.starts[row_array], self.starts[row_array + 1] - self.starts[row_array]
        return PackedTokens.from_arrays(self.ids[concatenate_ranges(begins, sizes)], sizes, side, self.silent[row_array])


@dataclass(frozen=True)
class ShardSpec:
    """The part of a batch that a process encodes, as number `rank` of `size`, in parts of `max_tokens` tokens (None: one part)."""

    rank: int = 0
    size: int = 1
    max_tokens: int | None = None


SINGLE_SHARD = ShardSpec()


@dataclass(frozen=True)
class ShardedTexts(TensorFields):
    """A process's share of the texts of a side, in the parts that are encoded one after another, each sorted by length.

    With the parts of all processes end to end, text i of the batch is number restore_order[i]; where `restore_order` is None it is
    number i. `total_tokens` are those of all processes.
    """

    parts: tuple[PackedTokens, ...]
    restore_order: Tensor | None
    total_tokens: int


def shard_texts(texts: TokenCache | PackedPairs, rows: Sequence[int], side: str, shard: ShardSpec) -> ShardedTexts:
    """The texts of `rows` shared by length: processes have equal work, and the texts of a part have nearly the same length."""
    row_array = np.asarray(rows, dtype=np.int64)
    sizes = texts.starts[row_array + 1] - texts.starts[row_array]
    total = int(sizes.sum())
    if shard.size == 1 and (shard.max_tokens is None or total <= shard.max_tokens):
        return ShardedTexts((texts.pack(rows, side).sort_by_length(),), None, total)
    by_length = np.argsort(sizes, kind="stable")
    round_number, position = np.divmod(np.arange(len(row_array)), shard.size)
    owners = np.where(round_number % 2, shard.size - 1 - position, position)  # back and forth, so that no one always gets the longer text
    own = by_length[owners == shard.rank]
    batches = split_by_tokens(sizes[own].tolist(), shard.max_tokens or total)
    parts = tuple(texts.pack(row_array[own[first:last]].tolist(), side).sort_by_length() for first, last in batches)
    order = by_length[np.argsort(owners, kind="stable")]
    return ShardedTexts(parts, torch.from_numpy(np.argsort(order, kind="stable")), total)


@dataclass(frozen=True)
class TrainingTexts:
    """The texts of several data sets, each with its own ids, as rows of one cache.

    A bi-encoder reads queries and documents apart. With a `pair_tokenizer`, for a cross-encoder, each query is concatenated with each of
    its documents.
    """

    cache: TokenCache
    rows: Sequence[RowIndex]
    pair_tokenizer: PairTokenizer | None = None
    template_ids: frozenset[int] = frozenset()  # of the tokens that every text has

    @property
    def kind_count(self) -> int:
        """Kinds of queries: the data sets if there are several, else quarters of overlap."""
        return len(self.rows) if len(self.rows) > 1 else OVERLAP_KINDS

    def query_kinds(self, ids: BatchIds) -> Tensor:
        """[Q] the number of each query's kind: its data set, of several; else in which quarter the part of its distinct tokens lies that
        its positive has: 0 for up to 25 %, 3 for more than 75 %. Tokens that every text has do not count; without any it is 0."""
        if len(self.rows) > 1:
            return torch.full((len(ids.queries),), ids.dataset)
        rows, size, kinds = self.rows[0], len(ids.documents) // len(ids.queries), []
        for query, positive in zip(ids.queries, ids.documents[::size], strict=True):
            own, other = (
                set(self.cache.ids[self.cache.starts[row] : self.cache.starts[row + 1]].tolist()) - self.template_ids
                for row in (rows.queries[query], rows.documents[positive])
            )
            kinds.append(max(0, -(-OVERLAP_KINDS * len(own & other) // max(len(own), 1)) - 1))
        return torch.tensor(kinds)

    def read_batch(self, ids: BatchIds, shard: ShardSpec = SINGLE_SHARD) -> tuple[ShardedTexts, ShardedTexts]:
        """The queries and the documents of a step, or no queries and its pairs, query by query; in CPU memory."""
        rows = self.rows[ids.dataset]
        queries, documents = [rows.queries[one] for one in ids.queries], [rows.documents[one] for one in ids.documents]
        if self.pair_tokenizer is None:
            return shard_texts(self.cache, queries, "query", shard), shard_texts(self.cache, documents, "document", shard)
        query_rows = np.repeat(queries, len(documents) // len(queries))
        pairs = self.pair_tokenizer.make_pairs(self.cache, self.cache, query_rows, np.array(documents))
        return ShardedTexts((), None, 0), shard_texts(pairs, range(len(documents)), "pair", shard)


@dataclass(frozen=True)
class TokenizedBatch(TensorFields):
    """The ids of a step, and their texts as tokens.

    `ignore_mask` [Q, N] marks documents that are no negatives of a query, and with pairs those of other queries; `teacher_scores`
    [Q, 1 + n] has a teacher's scores, if there is a teacher; `kinds` [Q] the kind of each query, of a bi-encoder.
    """

    ids: BatchIds
    queries: ShardedTexts
    documents: ShardedTexts
    ignore_mask: Tensor
    teacher_scores: Tensor | None
    kinds: Tensor | None = None


def prefetch_batches(
    sampler: BatchSampler, texts: TrainingTexts, steps: int, shard: ShardSpec = SINGLE_SHARD, *, pin_memory: bool = False
) -> StepPrefetcher[TokenizedBatch]:
    """The batches of `steps` steps, tokenized in a thread."""

    def make_batch(step: int) -> TokenizedBatch:
        ids = sampler.batch_at(step)
        duplicates = texts.rows[ids.dataset].document_duplicates, texts.rows[ids.dataset].query_duplicates
        ignored = ids.false_negative_mask(*duplicates) if texts.pair_tokenizer is None else ids.other_queries_mask()
        kinds = texts.query_kinds(ids) if texts.pair_tokenizer is None else None
        batch = TokenizedBatch(ids, *texts.read_batch(ids, shard), ignored, ids.teacher_matrix(), kinds)
        return batch.pin_memory() if pin_memory else batch

    return StepPrefetcher(make_batch, steps, depth=PREFETCH_STEPS)


def build_token_cache(folder: Path, stream: TextStream, checkpoint: RetrievalModel) -> TrainingTexts:
    """The tokens of a stream's texts: opened in `folder` if the cache is there, else built."""
    settings = {"form": CACHE_VERSION, "reading": checkpoint.input_config.to_dict(), "marks": _template_fingerprint(checkpoint)}
    record = {"stage": "finetune", "settings": settings, "sources": {"texts": [stream.digest], "tokenizer": [checkpoint.tokenizer.digest]}}

    def fill(cache_folder: Path) -> dict[str, Any]:
        files = TokenFileWriter(cache_folder, {"ids": checkpoint.tokenizer.id_dtype, "starts": np.int64, "silent": np.int32})
        files.append(starts=[0])
        digest = hashlib.sha256()
        checkpoint.truncation.clear()  # of a fitted head's texts
        with meter("reading tokens of texts", stream.count) as counter:
            for (side, prompt), texts_of_side in groupby(stream.stream(), key=lambda text: (text.side, text.prompt)):
                for chunk in chunk_texts(texts_of_side):
                    tokens, silent = checkpoint.token_ids([text.content for text in chunk], side, prompt)
                    files.append(
                        starts=files.rows("ids") + np.cumsum([len(ids) for ids in tokens]),
                        ids=np.fromiter(chain.from_iterable(tokens), dtype=np.int64),
                        silent=silent or [0] * len(chunk),
                    )
                    for text in chunk:
                        digest.update(text.digest_bytes)
                    counter.advance(len(chunk))
        files.close()
        if digest.hexdigest() != stream.digest:
            raise DataError("the texts have changed while they were read; run the same command again")
        return {"texts": stream.count, "tokens": files.rows("ids"), "truncation": checkpoint.truncation}

    cache_folder = memmap.get_or_build(folder, "texts", json.loads(json.dumps(record)), fill)
    truncation = manifests.read_manifest(cache_folder)["counts"]["truncation"]
    checkpoint.truncation.update({side: Counter(counts) for side, counts in truncation.items()})
    checkpoint.log_truncation()
    cache = TokenCache(*open_arrays(cache_folder, ARRAYS))
    if checkpoint.architecture.reads_pairs:
        return TrainingTexts(cache, stream.rows, checkpoint.pair_tokenizer)
    return TrainingTexts(cache, stream.rows, template_ids=_find_template_ids(checkpoint, next(iter(stream.prompts), "")))


def _find_template_ids(checkpoint: RetrievalModel, prompt: str) -> frozenset[int]:
    """The tokens that every query or every document has: of its prefix or `prompt`, markers and [MASK] tokens."""
    config, ids = checkpoint.input_config, set[int]()
    for side, own in (("query", prompt), ("document", "")):
        empty = checkpoint.tokenizer.encode(config.add_prefix([""], side, own))
        ids.update(*checkpoint.architecture.truncate_and_mark(empty, side, config.max_length(side))[0])
    return frozenset(ids)


def _template_fingerprint(checkpoint: RetrievalModel) -> dict[str, Any]:
    """An architecture's tokens of an empty text, by side: markers and [MASK] tokens, and how many are not attended to; for a cross-encoder
    the parts of a document that it reads."""
    if checkpoint.architecture.reads_pairs:
        pairs = checkpoint.pair_tokenizer
        context = {} if pairs.context is None else {"context": pairs.context}
        return {"parts": pairs.field_indices, "separate": pairs.separate, **context}
    [empty], lengths = checkpoint.tokenizer.encode([""]), checkpoint.input_config
    return {side: checkpoint.architecture.truncate_and_mark([empty], side, lengths.max_length(side)) for side in ("query", "document")}
