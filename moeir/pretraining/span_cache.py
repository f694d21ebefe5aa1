"""Cache of a corpus's tokens on disk, built once for all epochs and restarts; memory holds one chunk of texts at a time.

A cache is a folder named by a digest of its sources and settings: other texts, tokenizers or settings give another folder.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from moeir.artifacts import manifests, memmap
from moeir.artifacts.journals import AppendableText
from moeir.artifacts.memmap import open_readonly
from moeir.backbones.token_files import TokenFileWriter, chunk_texts
from moeir.backbones.tokenizer import TextTokenizer
from moeir.console import meter
from moeir.errors import DataError, UsageError
from moeir.pretraining.spans import SpanBoundaries, find_sentence_starts, pack_sentences, split_long_sentences
from moeir.records import texts
from moeir.records.texts import Text

CACHE_VERSION = 1  # of the file format and of the rules that split and pack
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
            for chunk in chunk_texts(documents):
                writer.append(chunk)
                counter.advance(len(chunk))
        writer.close()
        spans = writer.files.rows("spans") - 1
        if not spans:
            raise DataError(f"{corpus}: no document has a token")
        return {"texts": writer.text_count, "tokens": writer.files.rows("ids"), "spans": spans}

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


class _SpanCacheWriter:
    """Tokenizes documents and splits them into spans, into the files of a cache."""

    def __init__(self, folder: Path, tokenizer: TextTokenizer, maximum: int, short: float, seed: int) -> None:
        dtypes = zip(SPAN_ARRAYS, (tokenizer.id_dtype, np.int64, np.int64, np.int64), strict=True)
        self.files = TokenFileWriter(folder, dict(dtypes))
        self.text_count: int = self.files.entry.get("texts", 0)
        self._names = AppendableText(folder / "ids.txt", self.files.entry.get("names", 0))
        self._tokenizer, self._maximum, self._short, self._seed = tokenizer, maximum, short, seed

    def append(self, chunk: list[Text]) -> None:
        """Tokenize a chunk and append it to disk."""
        ids: list[int] = []
        sentences: list[int] = []
        spans: list[int] = []
        documents: list[int] = []
        first_token, first_sentence, first_span = map(self.files.rows, SPAN_ARRAYS[:3])
        tokenized = self._tokenizer.encode_with_offsets([text.content for text in chunk])
        for text, (tokens, characters) in zip(chunk, tokenized, strict=True):
            begins, firsts = split_into_spans(text, characters, self._maximum, self._short, self._seed)
            documents.append(first_span + len(spans))
            spans += [first_sentence + len(sentences) + first for first in firsts]
            sentences += [first_token + len(ids) + begin for begin in begins]
            ids += tokens
        self.files.append(ids=ids, sentences=sentences, spans=spans, documents=documents)
        self._names.append(text.id for text in chunk)
        self.text_count += len(chunk)
        self.files.commit(texts=self.text_count, names=self._names.flush())

    def close(self) -> None:
        """Write the ends of the last sentence, span and document, and the arrays' headers."""
        self.files.append(sentences=[self.files.rows("ids")])
        self.files.append(spans=[self.files.rows("sentences") - 1])
        self.files.append(documents=[self.files.rows("spans") - 1])
        self.files.close()
        self._names.close()


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
