"""Cache of a corpus's tokens on disk, built once for all epochs and restarts; memory holds one chunk of texts at a time.

A cache is a folder named by a digest of its sources and settings: other texts, tokenizers or settings give another folder.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from moeir.artifacts import caches, making, manifests
from moeir.artifacts.caches import mapped
from moeir.artifacts.journals import GrowingArray, GrowingLines, Journal
from moeir.backbones.tokenizer import TextReader
from moeir.console import meter
from moeir.errors import DataError, UsageError
from moeir.pretraining.sentences import breaks
from moeir.pretraining.spans import Spans, cut, packed
from moeir.records import texts
from moeir.records.texts import Text

FORM = 1  # of the file format and of the rules that split and pack
CHUNK_TEXTS, CHUNK_CHARACTERS = 1024, 1 << 21
Ids: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
ARRAYS = ("ids", "sentences", "spans", "documents")


@dataclass(frozen=True)
class TokenCache:
    """ids [T] of all documents end to end, without special tokens, and their `boundaries`; both memory-mapped."""

    folder: Path
    ids: Ids
    parts: Spans

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a folder built by `build_span_cache`."""
        maximum = int(manifests.read_manifest(folder)["settings"]["maximum"])
        ids, sentences, spans, documents = (mapped(folder / f"{name}.npy") for name in ARRAYS)
        return cls(folder, ids, Spans(sentences, spans, documents, maximum))

    def __len__(self) -> int:
        """Number of spans."""
        return len(self.parts)

    def names(self) -> list[str]:
        """The ids of the documents, in the order of the corpus."""
        return manifests.read_lines(self.folder / "ids.txt")


def cached(
    folder: Path,
    corpus: Path | str,
    tokenizer: TextReader,
    *,
    digest: str,
    maximum: int,
    short: float = 0.15,
    seed: int = 42,
    keep_empty: bool = False,
) -> TokenCache:
    """The token cache of a corpus, from `folder` if it exists, otherwise built; an interrupted build is continued.

    `digest` identifies the corpus, `maximum` is the maximum tokens of a span without special ones, `short` the share of shorter spans.
    """
    if maximum < 2:
        raise UsageError(f"spans of {maximum} tokens: expected at least 2; raise the length of documents")
    if not 0 <= short <= 1:
        raise UsageError(f"short spans {short}: expected a ratio, 0 to 1")
    settings = {"maximum": maximum, "short": short, "seed": seed, "keep_empty": keep_empty}

    def fill(target: Path) -> dict[str, int]:
        writer = _Shelf(target, tokenizer, maximum, short, seed)
        documents = texts.read(corpus, keep_empty=keep_empty)
        with meter("tokenizing documents") as counter:
            for _ in islice(documents, writer.texts):
                counter.advance()
            for chunk in chunks(documents):
                writer.add(chunk)
                counter.advance(len(chunk))
        writer.close()
        if not writer.spans.rows - 1:
            raise DataError(f"{corpus}: no document has a token")
        return {"texts": writer.texts, "tokens": writer.ids.rows, "spans": writer.spans.rows - 1}

    return TokenCache.open(kept(folder, "documents", settings, {"corpus": [digest], "tokenizer": [tokenizer.digest]}, fill))


def kept(
    folder: Path, kind: str, settings: Mapping[str, Any], sources: Mapping[str, Sequence[str]], fill: Callable[[Path], dict[str, int]]
) -> Path:
    """The cache folder of these settings and sources; `fill` writes its files if it does not exist.

    A stream is always read again, as its content may have changed.
    """
    record = {"stage": "pretrain", "settings": {"form": FORM, **settings}, "sources": {name: list(one) for name, one in sources.items()}}
    return caches.kept(folder, kind, record, fill, anew=any("stdin" in digests for digests in sources.values()))


def chunks(documents: Iterable[Text]) -> Iterator[list[Text]]:
    """Split documents into chunks of bounded size."""
    chunk: list[Text] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += len(document.content)
        if len(chunk) >= CHUNK_TEXTS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


class _Shelf:
    """Appends to the files of a cache; a journal records how much of each is complete."""

    def __init__(self, folder: Path, tokenizer: TextReader, maximum: int, short: float, seed: int) -> None:
        (folder / making.RESUME).mkdir(exist_ok=True)
        self._journal = Journal(folder / making.RESUME / "journal.jsonl")
        sizes = self._journal.entries[-1] if self._journal.entries else dict.fromkeys(("texts", "names", *ARRAYS), 0)
        self.texts: int = sizes["texts"]
        types: tuple[type[np.integer[Any]], ...] = (tokenizer.id_type, np.int64, np.int64, np.int64)
        arrays = [GrowingArray(folder / f"{name}.npy", dtype, rows=sizes[name]) for name, dtype in zip(ARRAYS, types, strict=True)]
        self.ids, self.sentences, self.spans, self.documents = arrays
        self._names = GrowingLines(folder / "ids.txt", sizes["names"])
        self._reader, self._maximum, self._short, self._seed = tokenizer, maximum, short, seed

    def add(self, chunk: list[Text]) -> None:
        """Tokenize a chunk and append it to disk."""
        ids: list[int] = []
        sentences: list[int] = []
        spans: list[int] = []
        documents: list[int] = []
        tokenized = self._reader.located([text.content for text in chunk])
        for text, (tokens, characters) in zip(chunk, tokenized, strict=True):
            begins, firsts = spanned(text, characters, self._maximum, self._short, self._seed)
            documents.append(self.spans.rows + len(spans))
            spans += [self.sentences.rows + len(sentences) + first for first in firsts]
            sentences += [self.ids.rows + len(ids) + begin for begin in begins]
            ids += tokens
        for array, block in zip(self._arrays, (ids, sentences, spans, documents), strict=True):
            array.append(np.array(block, dtype=np.int64))
            array.flush()
        self._names.append(text.id for text in chunk)
        self.texts += len(chunk)
        rows = {name: array.rows for name, array in zip(ARRAYS, self._arrays, strict=True)}
        self._journal.write({"texts": self.texts, "names": self._names.flush(), **rows})

    @property
    def _arrays(self) -> tuple[GrowingArray, ...]:
        return self.ids, self.sentences, self.spans, self.documents

    def close(self) -> None:
        """Write the ends of the last sentence, span and document, and the arrays' headers."""
        for inner, outer in pairwise(self._arrays):
            outer.append(np.array([inner.rows if inner is self.ids else inner.rows - 1]))
        for array in self._arrays:
            array.close()
        self._names.close()
        self._journal.close()


def spanned(text: Text, characters: Sequence[int], maximum: int, short: float, seed: int) -> tuple[list[int], list[int]]:
    """For a text whose tokens begin at `characters`: the first token of each sentence and the first sentence of each span."""
    begins = cut(_sentences(text, characters), len(characters), maximum)
    lengths = [stop - begin for begin, stop in pairwise([*begins, len(characters)])]
    return begins, packed(lengths, maximum, random.Random(f"{seed} {text.id}"), short=short)


def _sentences(text: Text, characters: Sequence[int]) -> list[int]:
    """First tokens of sentences, given the character where each token begins; a title is a sentence of its own."""
    if not characters:
        return []
    title = len(text.title.lstrip()) if text.title.strip() else 0
    boundaries = [0, *(title + boundary for boundary in breaks(text.content[title:]))]
    token_rows = np.searchsorted(np.array(characters), boundaries[1:])
    return sorted({0, *(int(boundary) for boundary in token_rows if boundary < len(characters))})
