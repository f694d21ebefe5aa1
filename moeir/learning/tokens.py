"""Token cache: texts are tokenized once, by a checkpoint's reading rules, and stay on disk for every step, restart and later training.

A cache is a folder named by the digest of texts, tokenizer and rules. Batches are prefetched in a thread.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.architectures.pairing import Pairing
from moeir.artifacts import caches, making
from moeir.artifacts.journals import GrowingArray, Journal
from moeir.backbones.ahead import ahead
from moeir.backbones.tokens import Tokens
from moeir.console import meter
from moeir.errors import DataError
from moeir.learning.batches import Drawn, Steps
from moeir.learning.dealing import WHOLE, Dealt, Share, dealt
from moeir.learning.texts import Found, Needed, Rows

FORM = 1  # of the files of a cache, and of how a checkpoint tokenizes
CHUNK_TEXTS, CHUNK_CHARACTERS = 1024, 1 << 21
STEPS_AHEAD = 4
ARRAYS = ("ids", "starts", "silent")
Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class TokenCache:
    """ids [T] of n texts end to end, special tokens included; starts [n+1]; silent [n] counts the tokens at the end of each text that are
    not attended to. All memory-mapped."""

    ids: Numbers
    starts: Numbers
    silent: Numbers

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a folder that `build_token_cache` has written."""
        return cls(*(caches.mapped(folder / f"{name}.npy") for name in ARRAYS))

    def __len__(self) -> int:
        """Texts."""
        return len(self.silent)

    def packed(self, rows: Sequence[int], side: str) -> Tokens:
        """The texts of `rows`, in that order."""
        row_array = np.asarray(rows, dtype=np.int64)
        begins = self.starts[row_array]
        sizes = self.starts[row_array + 1] - begins
        starts = np.concatenate([[0], np.cumsum(sizes)])
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)  # [T] of each token in its text
        ids = self.ids[positions + np.repeat(begins, sizes)].astype(np.int64)
        attended, silent_mask = sizes - self.silent[row_array], None
        if (attended < sizes).any():
            silent_mask = torch.from_numpy(positions >= np.repeat(attended, sizes))
        return Tokens(torch.from_numpy(ids), torch.from_numpy(starts), side, tuple(sizes.tolist()), silent=silent_mask)


@dataclass(frozen=True)
class TokenTexts:
    """The texts of several data sets, each with its own ids, as rows of one cache; queries and documents are encoded apart."""

    cache: TokenCache
    rows: Sequence[Rows]

    def read(self, drawn: Drawn, share: Share = WHOLE) -> tuple[Dealt, Dealt]:
        """The queries and the documents of a step, in CPU memory."""
        rows = self.rows[drawn.place]
        queries = dealt(self.cache, [rows.queries[one] for one in drawn.queries], "query", share)
        return queries, dealt(self.cache, [rows.documents[one] for one in drawn.documents], "document", share)


@dataclass(frozen=True)
class PairTexts:
    """The same texts for a cross-encoder: each query is concatenated with each of its documents."""

    cache: TokenCache
    rows: Sequence[Rows]
    pairing: Pairing

    def read(self, drawn: Drawn, share: Share = WHOLE) -> tuple[Dealt, Dealt]:
        """No single texts, and the pairs of a step, query by query, in CPU memory."""
        rows, group = self.rows[drawn.place], len(drawn.documents) // len(drawn.queries)
        query = np.repeat([rows.queries[one] for one in drawn.queries], group)
        document = np.array([rows.documents[one] for one in drawn.documents])
        pairs = self.pairing.joined(self.cache, self.cache, query, document)
        return Dealt((), None, 0), dealt(pairs, range(len(query)), "pair", share)


class Read(NamedTuple):
    """The ids of a step, and their texts as tokens.

    `ignore_mask` [Q, N] marks documents that are no negatives of a query, and with pairs those of other queries; `teacher_scores`
    [Q, 1 + n] has a teacher's scores, if there is a teacher.
    """

    drawn: Drawn
    queries: Dealt
    documents: Dealt
    ignored: Tensor
    teacher: Tensor | None

    def pinned(self) -> Self:
        """The same in pinned memory."""
        teacher = None if self.teacher is None else self.teacher.pin_memory()
        return self._replace(
            queries=self.queries.pinned(), documents=self.documents.pinned(), ignored=self.ignored.pin_memory(), teacher=teacher
        )


class Batches:
    """The batches of `steps` steps, prefetched in a thread; fast for consecutive steps from any first one."""

    def __init__(self, plan: Steps, texts: TokenTexts | PairTexts, steps: int, share: Share = WHOLE, *, pinned: bool = False) -> None:
        self._make = partial(_read, plan, texts, share, pinned=pinned)
        self._steps, self._next = steps, -1
        self._made: Iterator[Read] = iter(())

    def at(self, step: int) -> Read:
        """The batch of a step, counted from 0; the thread ends after the last one."""
        if step != self._next:
            self._made = ahead(self._make, step, max(self._steps, step + 1), depth=STEPS_AHEAD)
        self._next = -1
        batch = next(self._made)
        if step + 1 < self._steps:
            self._next = step + 1
        else:
            self._made = iter(())
        return batch


def _read(plan: Steps, texts: TokenTexts | PairTexts, share: Share, step: int, *, pinned: bool) -> Read:
    ids = plan.at(step)
    ignored = ids.others() if isinstance(texts, PairTexts) else ids.ignored()
    batch = Read(ids, *texts.read(ids, share), ignored, ids.teacher())
    return batch.pinned() if pinned else batch


def cached(folder: Path, needed: Needed, checkpoint: OpenCheckpoint) -> TokenTexts:
    """The tokens of a stream's texts: opened in `folder` if the cache is there, else built, or completed if it was interrupted."""
    settings = {"form": FORM, "reading": asdict(checkpoint.rules), "marks": _marks(checkpoint)}
    record = {"stage": "finetune", "settings": settings, "sources": {"texts": [needed.digest], "tokenizer": [checkpoint.reader.digest]}}

    def fill(cache_folder: Path) -> dict[str, int]:
        writer, texts = _Shelf(cache_folder, checkpoint), needed.walk()
        if not writer.holds(texts):
            writer, texts = _Shelf(cache_folder, checkpoint, anew=True), needed.walk()
        with meter("reading tokens of texts", needed.count) as counter:
            counter.advance(writer.texts)
            for chunk in _chunks(texts):
                writer.add(chunk)
                counter.advance(len(chunk))
        writer.close()
        if writer.digest.hexdigest() != needed.digest:
            raise DataError("the texts have changed while they were read; run the same command again")
        return {"texts": writer.texts, "tokens": writer.ids.rows}

    cache_folder = caches.kept(folder, "texts", json.loads(json.dumps(record)), fill)
    return TokenTexts(TokenCache.open(cache_folder), needed.rows)


def _marks(checkpoint: OpenCheckpoint) -> dict[str, Any]:
    """An architecture's tokens of an empty text, by side: markers and [MASK] tokens, and how many are not attended to; for a cross-encoder
    the parts of a document that it reads."""
    if checkpoint.architecture.pairs:
        return {"parts": checkpoint.pairing.parts, "separate": checkpoint.pairing.separate}
    signs, rules = checkpoint.reader.signs, checkpoint.rules
    empty = [signs.beginning, signs.separator]
    return {side: checkpoint.architecture.marked([empty], side, rules.length(side)) for side in ("query", "document")}


def _chunks(texts: Iterator[Found]) -> Iterator[list[Found]]:
    """Consecutive texts of one side in chunks of bounded size."""
    chunk: list[Found] = []
    characters = 0
    for text in texts:
        if chunk and (len(chunk) >= CHUNK_TEXTS or characters >= CHUNK_CHARACTERS or text.side != chunk[0].side):
            yield chunk
            chunk, characters = [], 0
        chunk.append(text)
        characters += len(text.content)
    if chunk:
        yield chunk


class _Shelf:
    """Appends to the files of a cache; a journal records how much of them is complete."""

    def __init__(self, folder: Path, checkpoint: OpenCheckpoint, *, anew: bool = False) -> None:
        journal = folder / making.RESUME / "journal.jsonl"
        journal.parent.mkdir(exist_ok=True)
        if anew:
            journal.unlink()
        self.digest, self._journal = hashlib.sha256(), Journal(journal)
        empty_entry = {"digest": self.digest.hexdigest(), **dict.fromkeys(("texts", *ARRAYS), 0)}
        self._marks = entry = self._journal.entries[-1] if self._journal.entries else empty_entry
        self.texts: int = entry["texts"]
        types: tuple[type[np.integer[Any]], ...] = (checkpoint.reader.id_type, np.int64, np.int32)
        self._arrays = [GrowingArray(folder / f"{name}.npy", kind, rows=entry[name]) for name, kind in zip(ARRAYS, types, strict=True)]
        self.ids, self._starts, self._silent = self._arrays
        self._checkpoint = checkpoint
        if not self._starts.rows:
            self._starts.append(np.zeros(1))

    def holds(self, texts: Iterator[Found]) -> bool:
        """Whether the stream starts with the texts that are written already; consumes them."""
        for text in islice(texts, self.texts):
            self.digest.update(text.sealed)
        return self.digest.hexdigest() == self._marks["digest"]

    def add(self, chunk: Sequence[Found]) -> None:
        """Tokenize a chunk and write it to disk."""
        texts, silent = self._checkpoint.ids([streamed.content for streamed in chunk], chunk[0].side)
        self._starts.append(self.ids.rows + np.cumsum([len(text) for text in texts]))
        self.ids.append(np.fromiter(chain.from_iterable(texts), dtype=np.int64))
        self._silent.append(np.array([0] * len(texts) if silent is None else silent))
        for array in self._arrays:
            array.flush()
        for streamed in chunk:
            self.digest.update(streamed.sealed)
        self.texts += len(chunk)
        rows = {name: array.rows for name, array in zip(ARRAYS, self._arrays, strict=True)}
        self._journal.write({"digest": self.digest.hexdigest(), "texts": self.texts, **rows})

    def close(self) -> None:
        """Write the final headers of the arrays."""
        for array in self._arrays:
            array.close()
        self._journal.close()
