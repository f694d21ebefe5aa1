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

from moeir.artifacts import atomic_write, manifests, memmap
from moeir.artifacts.journals import AppendableNpy, AppendableText, JsonlJournal
from moeir.artifacts.memmap import open_readonly
from moeir.backbones.tokenizer import TextTokenizer
from moeir.console import meter
from moeir.errors import DataError, UsageError
from moeir.pretraining.spans import SpanBoundaries, find_sentence_starts, pack_sentences, split_long_sentences
from moeir.records import texts
from moeir.records.texts import Text

CACHE_VERSION = 1  # of the file format and of the rules that split and pack
MAX_CHUNK_TEXTS, MAX_CHUNK_CHARACTERS = 1024, 1 << 21
TokenIds: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
SPAN_ARRAYS = ("ids", "sentences", "spans", "documents")


@dataclass(frozen=True)
class SpanCache:
    """ids [T] of all documents end to end, without special tokens, and their `boundaries`; both memory-mapped."""

    folder: Path
    ids: TokenIds
    boundaries: SpanBoundaries

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a folder built by `build_span_cache`."""
        maximum = int(manifests.read_manifest(folder)["settings"]["maximum"])
        ids, sentences, spans, documents = (open_readonly(folder / f"{name}.npy") for name in SPAN_ARRAYS)
        return cls(folder, ids, SpanBoundaries(sentences, spans, documents, maximum))

    def __len__(self) -> int:
        """Number of spans."""
        return len(self.boundaries)

    def document_ids(self) -> list[str]:
        """The ids of the documents, in the order of the corpus."""
        return manifests.read_lines(self.folder / "ids.txt")


def build_span_cache(
    folder: Path,
    corpus: Path | str,
    tokenizer: TextTokenizer,
    *,
    digest: str,
    maximum: int,
    short: float = 0.15,
    seed: int = 42,
    keep_empty: bool = False,
) -> SpanCache:
    """The token cache of a corpus, from `folder` if it exists, otherwise built; an interrupted build is continued.

    `digest` identifies the corpus, `maximum` is the maximum tokens of a span without special ones, `short` the share of shorter spans.
    """
    if maximum < 2:
        raise UsageError(f"spans of {maximum} tokens: expected at least 2; raise the length of documents")
    if not 0 <= short <= 1:
        raise UsageError(f"short spans {short}: expected a ratio, 0 to 1")
    settings = {"maximum": maximum, "short": short, "seed": seed, "keep_empty": keep_empty}

    def fill(target: Path) -> dict[str, int]:
        writer = _SpanCacheWriter(target, tokenizer, maximum, short, seed)
        documents = texts.read_texts(corpus, keep_empty=keep_empty)
        with meter("tokenizing documents") as counter:
            for _ in islice(documents, writer.text_count):
                counter.advance()
            for chunk in chunk_documents(documents):
                writer.append(chunk)
                counter.advance(len(chunk))
        writer.close()
        if not writer.spans.rows - 1:
            raise DataError(f"{corpus}: no document has a token")
        return {"texts": writer.text_count, "tokens": writer.ids.rows, "spans": writer.spans.rows - 1}

    return SpanCache.open(get_or_build_cache(folder, "documents", settings, {"corpus": [digest], "tokenizer": [tokenizer.digest]}, fill))


def get_or_build_cache(
    folder: Path, kind: str, settings: Mapping[str, Any], sources: Mapping[str, Sequence[str]], fill: Callable[[Path], dict[str, int]]
) -> Path:
    """The cache folder of these settings and sources; `fill` writes its files if it does not exist.

    A stream is always read again, as its content may have changed.
    """
    record = {
        "stage": "pretrain",
        "settings": {"form": CACHE_VERSION, **settings},
        "sources": {name: list(one) for name, one in sources.items()},
    }
    return memmap.get_or_build(folder, kind, record, fill, rebuild=any("stdin" in digests for digests in sources.values()))


def chunk_documents(documents: Iterable[Text]) -> Iterator[list[Text]]:
    """Split documents into chunks of bounded size."""
    chunk: list[Text] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += len(document.content)
        if len(chunk) >= MAX_CHUNK_TEXTS or characters >= MAX_CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


class _SpanCacheWriter:
    """Appends to the files of a cache; a journal records how much of each is complete."""

    def __init__(self, folder: Path, tokenizer: TextTokenizer, maximum: int, short: float, seed: int) -> None:
        (folder / atomic_write.RESUME).mkdir(exist_ok=True)
        self._journal = JsonlJournal(folder / atomic_write.RESUME / "journal.jsonl")
        sizes = self._journal.entries[-1] if self._journal.entries else dict.fromkeys(("texts", "names", *SPAN_ARRAYS), 0)
        self.text_count: int = sizes["texts"]
        types: tuple[type[np.integer[Any]], ...] = (tokenizer.id_dtype, np.int64, np.int64, np.int64)
        arrays = [AppendableNpy(folder / f"{name}.npy", dtype, rows=sizes[name]) for name, dtype in zip(SPAN_ARRAYS, types, strict=True)]
        self.ids, self.sentences, self.spans, self.documents = arrays
        self._names = AppendableText(folder / "ids.txt", sizes["names"])
        self._tokenizer, self._maximum, self._short, self._seed = tokenizer, maximum, short, seed

    def append(self, chunk: list[Text]) -> None:
        """Tokenize a chunk and append it to disk."""
        ids: list[int] = []
        sentences: list[int] = []
        spans: list[int] = []
        documents: list[int] = []
        tokenized = self._tokenizer.encode_with_offsets([text.content for text in chunk])
        for text, (tokens, characters) in zip(chunk, tokenized, strict=True):
            begins, firsts = split_into_spans(text, characters, self._maximum, self._short, self._seed)
            documents.append(self.spans.rows + len(spans))
            spans += [self.sentences.rows + len(sentences) + first for first in firsts]
            sentences += [self.ids.rows + len(ids) + begin for begin in begins]
            ids += tokens
        for array, block in zip(self._arrays, (ids, sentences, spans, documents), strict=True):
            array.append(np.array(block, dtype=np.int64))
            array.flush()
        self._names.append(text.id for text in chunk)
        self.text_count += len(chunk)
        rows = {name: array.rows for name, array in zip(SPAN_ARRAYS, self._arrays, strict=True)}
        self._journal.write({"texts": self.text_count, "names": self._names.flush(), **rows})

    @property
    def _arrays(self) -> tuple[AppendableNpy, ...]:
        return self.ids, self.sentences, self.spans, self.documents

    def close(self) -> None:
        """Write the ends of the last sentence, span and document, and the arrays' headers."""
        for inner, outer in pairwise(self._arrays):
            outer.append(np.array([inner.rows if inner is self.ids else inner.rows - 1]))
        for array in self._arrays:
            array.close()
        self._names.close()
        self._journal.close()


def split_into_spans(text: Text, characters: Sequence[int], maximum: int, short: float, seed: int) -> tuple[list[int], list[int]]:
    """For a text whose tokens begin at `characters`: the first token of each sentence and the first sentence of each span."""
    begins = split_long_sentences(_find_sentence_tokens(text, characters), len(characters), maximum)
    lengths = [stop - begin for begin, stop in pairwise([*begins, len(characters)])]
    return begins, pack_sentences(lengths, maximum, random.Random(f"{seed} {text.id}"), short=short)


def _find_sentence_tokens(text: Text, characters: Sequence[int]) -> list[int]:
    """First tokens of sentences, given the character where each token begins; a title is a sentence of its own."""
    if not characters:
        return []
    title = len(text.title.lstrip()) if text.title.strip() else 0
    boundaries = [0, *(title + boundary for boundary in find_sentence_starts(text.content[title:]))]
    token_rows = np.searchsorted(np.array(characters), boundaries[1:])
    return sorted({0, *(int(boundary) for boundary in token_rows if boundary < len(characters))})
