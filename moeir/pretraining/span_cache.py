"""Caches on disk of the tokens of a corpus, cut into spans, and of the queries of its documents, built once for all epochs and restarts.

A cache is a folder named by a digest of its sources and settings: other texts, tokenizers or settings give another folder. Memory holds
one chunk of texts at a time. Queries come from the output of `generate-queries`, where an id `DOCUMENT#char=BEGIN,END` binds a query to the
span with most of these characters.
"""

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from moeir.artifacts import manifests, memmap
from moeir.artifacts.journals import AppendableText
from moeir.backbones.token_files import TokenFileWriter, chunk_texts, open_arrays
from moeir.backbones.tokenizer import TextTokenizer
from moeir.console import meter
from moeir.errors import DataError, UsageError
from moeir.kernels.splitmix import Int64Array, UInt64Array, randint_high, random_bits
from moeir.pretraining.spans import SpanBoundaries, pack_sentences, split_long_sentences
from moeir.records import generated_queries, texts
from moeir.records.sentences import find_sentence_starts
from moeir.records.texts import Text

CACHE_VERSION = 3  # of the file format and of the rules that split and pack
TokenIds: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
SPAN_ARRAYS, QUERY_ARRAYS = ("ids", "sentences", "spans", "documents", "character_ends"), ("ids", "starts", "links", "offsets")
CHUNK_QUERIES = 4096


@dataclass(frozen=True)
class SpanCache:
    """ids [T] of all documents end to end, without special tokens, their `boundaries`, and `character_ends` [n], where each span ends
    in its document's content; all memory-mapped."""

    folder: Path
    ids: TokenIds
    boundaries: SpanBoundaries
    character_ends: Int64Array

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
    """The token cache of a corpus, from `folder` if it exists, otherwise built.

    `digest` identifies the corpus, `maximum` is the maximum tokens of a span without special ones, `short` the share of shorter spans.
    """
    if maximum < 2:
        raise UsageError(f"spans of {maximum} tokens: expected at least 2; raise the length of documents")
    settings = {"form": CACHE_VERSION, "maximum": maximum, "short": short, "seed": seed, "keep_empty": keep_empty}
    record = {"stage": "pretrain", "settings": settings, "sources": {"corpus": [digest], "tokenizer": [tokenizer.digest]}}

    def fill(target: Path) -> dict[str, int]:
        files = TokenFileWriter(target, dict.fromkeys(SPAN_ARRAYS, np.int64) | {"ids": tokenizer.id_dtype})
        names, count = AppendableText(target / "ids.txt"), 0
        with meter("tokenizing documents") as counter:
            for chunk in chunk_texts(texts.read_texts(corpus, keep_empty=keep_empty)):
                _append_spans(files, chunk, tokenizer, maximum, short, seed)
                names.append(text.id for text in chunk)
                count += len(chunk)
                counter.advance(len(chunk))
        for ends, of in zip(SPAN_ARRAYS[1:4], SPAN_ARRAYS[:3], strict=True):  # the end of the last sentence, span and document
            files.append(**{ends: [files.rows(of) - (of != "ids")]})
        files.close()
        names.close()
        if not (spans := files.rows("spans") - 1):
            raise DataError(f"{corpus}: no document has a token")
        return {"texts": count, "tokens": files.rows("ids"), "spans": spans}

    cache = memmap.get_or_build(folder, "documents", record, fill, rebuild=digest == "stdin")  # a stream may be another one now
    ids, sentences, spans, documents, ends = open_arrays(cache, SPAN_ARRAYS)
    return SpanCache(cache, ids, SpanBoundaries(sentences, spans, documents, maximum), ends)


def _append_spans(files: TokenFileWriter, chunk: Sequence[Text], tokenizer: TextTokenizer, maximum: int, short: float, seed: int) -> None:
    """Tokenize a chunk of documents, split them into spans and append them to the files."""
    ids, sentences, spans, documents, ends = (list[int]() for _ in SPAN_ARRAYS)
    first_token, first_sentence, first_span = map(files.rows, SPAN_ARRAYS[:3])
    tokenized = tokenizer.encode_with_offsets([text.content for text in chunk])
    for text, (tokens, characters) in zip(chunk, tokenized, strict=True):
        begins, firsts = split_into_spans(text, characters, maximum, short, seed)
        documents.append(first_span + len(spans))
        ends += [characters[begins[first]] for first in firsts[1:]] + [len(text.content)] * bool(firsts)
        spans += [first_sentence + len(sentences) + first for first in firsts]
        sentences += [first_token + len(ids) + begin for begin in begins]
        ids += tokens
    files.append(ids=ids, sentences=sentences, spans=spans, documents=documents, character_ends=ends)


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


@dataclass(frozen=True)
class QueryCache:
    """ids [T] of all queries end to end without special tokens, starts [m+1] of each query; links the queries of each owner: of the N
    documents, then of the n spans; offsets [N+n+1] where each owner's begin among them. All memory-mapped."""

    ids: TokenIds
    starts: Int64Array
    links: Int64Array
    offsets: Int64Array
    document_count: int

    def __len__(self) -> int:
        """Number of queries."""
        return len(self.starts) - 1

    def has_query(self, spans_per_document: Int64Array) -> npt.NDArray[np.bool_]:
        """[n] whether a span or its document as a whole has a query."""
        has_query = np.diff(self.offsets) > 0
        return np.repeat(has_query[: self.document_count], spans_per_document) | has_query[self.document_count :]

    def sample_queries(self, documents: Int64Array, spans: Int64Array, keys: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """[B] token bounds of a random query of each span or of its document, chosen by its key; every span must have one."""
        owners = spans + self.document_count
        first, first_of_span = self.offsets[documents], self.offsets[owners]
        of_document, of_span = self.offsets[documents + 1] - first, self.offsets[owners + 1] - first_of_span
        chosen = randint_high(random_bits(keys, np.zeros(1, dtype=np.int64)), of_document + of_span)
        queries = self.links[np.where(chosen < of_document, first + chosen, first_of_span + chosen - of_document)]
        return self.starts[queries], self.starts[queries + 1]


def build_query_cache(
    folder: Path, corpus: SpanCache, queries: Sequence[Path], tokenizer: TextTokenizer, *, digests: Sequence[str]
) -> QueryCache:
    """The query cache of a corpus, from `folder` if it exists, otherwise built. `digests` identify the files of queries; those without a
    token are left out."""
    document_count = len(corpus.boundaries.documents) - 1
    sources = {"documents": [manifests.compute_digest(corpus.folder)], "tokenizer": [tokenizer.digest], "queries": list(digests)}
    record = {"stage": "pretrain", "settings": {"form": CACHE_VERSION}, "sources": sources}

    def fill(target: Path) -> dict[str, int]:
        owners, empty = array("q"), 0
        files = TokenFileWriter(target, dict.fromkeys(QUERY_ARRAYS, np.int64) | {"ids": tokenizer.id_dtype})
        files.append(starts=[0])
        with meter("tokenizing queries") as counter:
            for chunk in texts.split_chunks(_generated_pairs(queries, corpus), CHUNK_QUERIES):
                token_lists = tokenizer.encode([query for query, _ in chunk], special=False)
                owners.extend(row for tokens, (_, row) in zip(token_lists, chunk, strict=True) if tokens)
                sizes = [len(tokens) for tokens in token_lists if tokens]
                empty += len(chunk) - len(sizes)
                files.append(starts=files.rows("ids") + np.cumsum(sizes), ids=np.fromiter(chain.from_iterable(token_lists), dtype=np.int64))
                counter.advance(len(chunk))
        if not owners:
            raise DataError(f"{', '.join(map(str, queries))}: no query for a document of the corpus")
        counts = np.bincount(owners, minlength=document_count + len(corpus))
        files.append(links=np.argsort(owners, kind="stable"), offsets=np.concatenate([[0], np.cumsum(counts)]))
        files.close()
        return {"queries": len(owners), "empty": empty}

    cache = memmap.get_or_build(folder, "queries", record, fill, rebuild="stdin" in digests)
    return QueryCache(*open_arrays(cache, QUERY_ARRAYS), document_count)


def _generated_pairs(files: Sequence[Path], corpus: SpanCache) -> Iterator[tuple[str, int]]:
    """Queries generated for one document or span each, with its row: of N documents 0 … N - 1, of spans from N on."""
    rows = {name: row for row, name in enumerate(corpus.document_ids())}
    for file in files:
        for record in generated_queries.read_generated_queries(file, allow_empty=len(files) > 1):
            row = rows[record.id] if record.id in rows else len(rows) + _find_span(corpus, rows, record.id, file)
            yield from ((query, row) for query in record.queries)


def _find_span(corpus: SpanCache, rows: Mapping[str, int], name: str, file: Path) -> int:
    """The number of the span with most of the characters `DOCUMENT#char=BEGIN,END`; of equal ones the first."""
    document, begin, end = generated_queries.parse_span_id(name) or (name, 0, 0)
    if (row := rows.get(document)) is None:
        raise DataError(f"{file}: has queries of document {document!r}, which is not in the corpus")
    first, after = corpus.boundaries.documents[row : row + 2]
    ends = corpus.character_ends[first:after]
    length = int(ends[-1]) if len(ends) else 0
    if not begin < end <= length:
        advice = f"expected #char=BEGIN,END with BEGIN < END <= {length}, its characters with the title"
        raise DataError(f"{file}: has queries of {name!r}: {advice}")
    overlaps = np.minimum(ends, end) - np.maximum(np.concatenate([[0], ends[:-1]]), begin)
    return int(first) + int(overlaps.argmax())
