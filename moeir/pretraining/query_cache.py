"""Cache of the tokens of queries that belong to the documents of a corpus.

Input is the output of `generate-queries`, or queries and judgements: a query belongs to the documents judged above 0 for it.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from moeir.artifacts import manifests
from moeir.artifacts.journals import AppendableNpy
from moeir.artifacts.memmap import open_readonly
from moeir.backbones.tokenizer import TextTokenizer
from moeir.console import meter
from moeir.errors import DataError
from moeir.kernels.splitmix import Int64Array, UInt64Array, randint_high, random_bits
from moeir.pretraining.span_cache import SpanCache, TokenIds, get_or_build_cache
from moeir.records import generated_queries, qrels, texts

CHUNK_QUERIES = 4096
QUERY_ARRAYS = ("ids", "starts", "links", "documents")


@dataclass(frozen=True)
class QueryCache:
    """ids [T] of all queries end to end without special tokens, starts [m+1] of each query; links [n] the queries of each document,
    document by document, documents [N+1] the offsets of each among them. All memory-mapped."""

    folder: Path
    ids: TokenIds
    starts: Int64Array
    links: Int64Array
    documents: Int64Array

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a folder built by `build_query_cache`."""
        return cls(folder, *(open_readonly(folder / f"{name}.npy") for name in QUERY_ARRAYS))

    def __len__(self) -> int:
        """Number of queries."""
        return len(self.starts) - 1

    def has_query(self) -> npt.NDArray[np.bool_]:
        """[N] whether a document has a query."""
        return np.diff(self.documents) > 0

    def sample_queries(self, documents: Int64Array, keys: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """[B] token bounds of a random query of each document, chosen by its key; every document must have one."""
        first = self.documents[documents]
        rows = first + randint_high(random_bits(keys, np.zeros(1, dtype=np.int64)), self.documents[documents + 1] - first)
        queries = self.links[rows]
        return self.starts[queries], self.starts[queries + 1]


def build_query_cache(
    folder: Path,
    corpus: SpanCache,
    queries: Sequence[Path],
    judgements: Path | None,
    tokenizer: TextTokenizer,
    *,
    digests: Mapping[str, Sequence[str]],
) -> QueryCache:
    """The query cache of a corpus, from `folder` if it exists, otherwise built.

    Without `judgements` the files hold the queries of each document, with them queries by their own ids; `digests` identify the
    files. Queries without a token or without a judgement are left out.
    """
    sources = {"documents": [manifests.compute_digest(corpus.folder)], "tokenizer": [tokenizer.digest], **digests}

    def fill(target: Path) -> dict[str, int]:
        rows = {name: row for row, name in enumerate(corpus.document_ids())}
        pairs = _generated_pairs(queries, rows) if judgements is None else _judged_pairs(queries, judgements, rows)
        owners, members, empty = _write_tokens(target, pairs, tokenizer)
        if not members:
            raise DataError(f"{', '.join(map(str, queries))}: no query for a document of the corpus")
        linked, counts = np.array(owners, dtype=np.int64), np.bincount(owners, minlength=len(rows))
        np.save(target / "links.npy", np.array(members, dtype=np.int64)[np.argsort(linked, kind="stable")])
        np.save(target / "documents.npy", np.concatenate([[0], np.cumsum(counts)]))
        return {"queries": 1 + max(members), "links": len(members), "empty": empty}

    return QueryCache.open(get_or_build_cache(folder, "queries", {"judged": judgements is not None}, sources, fill))


def _generated_pairs(files: Sequence[Path], rows: Mapping[str, int]) -> Iterator[tuple[str, list[int]]]:
    """Queries generated for one document each, with its row."""
    for file in files:
        for record in generated_queries.read_generated_queries(file, allow_empty=len(files) > 1):
            if record.id not in rows:
                raise DataError(f"{file}: has queries of document {record.id!r}, which is not in the corpus")
            yield from ((query, [rows[record.id]]) for query in record.queries)


def _judged_pairs(files: Sequence[Path], judgements: Path, rows: Mapping[str, int]) -> Iterator[tuple[str, list[int]]]:
    """Judged queries, with the rows of their relevant documents."""
    answers = {query: [name for name, grade in grades.items() if grade > 0] for query, grades in qrels.read_qrels(judgements).items()}
    for query, names in answers.items():
        if (missing := next((name for name in names if name not in rows), None)) is not None:
            raise DataError(f"{judgements}: query {query!r} names document {missing!r}, which is not in the corpus")
    for file in files:
        for text in texts.read_texts(file, keep_empty=True):
            if names := answers.pop(text.id, []):
                yield text.content, [rows[name] for name in names]
    if unknown := next((query for query, names in answers.items() if names), None):
        raise DataError(f"{judgements}: query {unknown!r} is not among the queries")


def _write_tokens(folder: Path, pairs: Iterable[tuple[str, list[int]]], tokenizer: TextTokenizer) -> tuple["array[int]", "array[int]", int]:
    """Write tokens to disk; returns document and query of each pair, and the number of queries without a token."""
    ids, starts = (AppendableNpy(folder / f"{name}.npy", kind) for name, kind in (("ids", tokenizer.id_dtype), ("starts", np.int64)))
    owners, members = array("q"), array("q")
    queries = empty = 0
    remaining = iter(pairs)
    starts.append(np.zeros(1))
    with meter("tokenizing queries") as counter:
        while chunk := list(islice(remaining, CHUNK_QUERIES)):
            token_lists = [tokens[1:-1] for tokens in tokenizer.encode([text for text, _ in chunk])]
            for tokens, (_, documents) in zip(token_lists, chunk, strict=True):
                if tokens:
                    owners.extend(documents)
                    members.extend([queries] * len(documents))
                    queries += 1
                else:
                    empty += 1
            starts.append(np.array(list(accumulate((len(tokens) for tokens in token_lists if tokens), initial=ids.rows))[1:]))
            ids.append(np.array([number for tokens in token_lists for number in tokens], dtype=np.int64))
            counter.advance(len(chunk))
    for writer in (ids, starts):
        writer.close()
    return owners, members, empty
