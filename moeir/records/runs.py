"""Runs (ranked lists); only this module defines THE ORDER OF RANKS and prints scores.

Score descending as float32, then document id descending by bytes: trec_eval's order. A run is columnar: seven million
hits are three arrays and one sorted list of distinct ids, so that comparing two codes compares two ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeir.errors import DataError
from moeir.parsing import shorten_message
from moeir.records import lines, trec_columns
from moeir.records.ids import IdColumn, Ids, parse_id

Integers: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int32]
Scores: TypeAlias = NDArray[np.float32]

MAX_RANK_DIGITS = 18
_SCORE_FORMAT = ".9g"
SORTED_QUERIES = 1024  # sorted at a time, which bounds the memory


def rank_order(scores: ArrayLike, order: ArrayLike, depth: int | None = None) -> Integers:
    """Indexes of the best hits, best first: score descending as float32, then `order` descending.

    scores [n], order [n] = each document's index among the ids sorted ascending by bytes (`id_ranks`) -> [min(n, depth)].

    >>> rank_order([1.0, 2.0, 1.0], [0, 1, 2]).tolist()
    [1, 2, 0]
    """
    scores32 = np.asarray(scores, dtype=np.float32)
    tie_breakers = np.asarray(order, dtype=np.int64)
    assert scores32.shape == tie_breakers.shape
    assert not np.isnan(scores32).any()
    if depth is None or depth >= len(scores32):
        return np.lexsort((-tie_breakers, -scores32))
    if depth <= 0:
        return np.empty(0, dtype=np.int64)
    cutoff = np.partition(scores32, len(scores32) - depth)[len(scores32) - depth]
    candidates = np.flatnonzero(scores32 >= cutoff)  # includes all ties at the cutoff
    best = np.lexsort((-tie_breakers[candidates], -scores32[candidates]))[:depth]
    return candidates[best]


def id_ranks(ids: Sequence[str]) -> Integers:
    """Each id's index among the ids sorted ascending by bytes [N]: the tie-breaker of `rank_order`.

    >>> id_ranks(["b", "a", "é"]).tolist()
    [1, 0, 2]
    """
    ranks = np.empty(len(ids), dtype=np.int64)
    if isinstance(ids, IdColumn):
        ranks[np.argsort(ids.byte_strings, kind="stable")] = np.arange(len(ids))
        return ranks
    ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))  # code points sort like UTF-8 bytes
    return ranks


def format_score(score: float) -> str:
    """A score as in every file: float32 with nine significant digits, enough to read the same number back.

    >>> format_score(0.1)
    '0.100000001'
    """
    return format(float(np.float32(score)), _SCORE_FORMAT)


@dataclass(frozen=True, eq=False)
class Run:
    """Ranked lists of Q queries: the list of query i is rows starts[i] to starts[i + 1], best first.

    starts [Q+1], documents [n] = indexes into `document_ids`, scores [n]; document ids ascend by bytes. `depth` is K, what the lists
    were searched to, or [Q] what each was, if that is known.
    """

    queries: list[str]
    starts: Integers
    documents: Codes
    scores: Scores
    document_ids: Sequence[str]
    tag: str = "moeir"
    depth: int | Integers | None = None

    def __repr__(self) -> str:
        return f"Run({self.tag}: {len(self.queries):,} queries, {len(self.scores):,} hits)"

    @classmethod
    def from_hits(cls, hits: Mapping[str, Mapping[str, float] | Iterable[tuple[str, float]]], tag: str = "moeir") -> "Run":
        """A run from each query's documents and scores, in any order."""
        lists = [list(pairs.items()) if isinstance(pairs, Mapping) else list(pairs) for pairs in hits.values()]
        ids = {document: parse_id(document, "document") for pairs in lists for document, _ in pairs}
        names = sorted(set(ids.values()))
        codes = {name: code for code, name in enumerate(names)}
        owners = np.repeat(np.arange(len(lists)), [len(pairs) for pairs in lists])
        documents = np.array([codes[ids[document]] for pairs in lists for document, _ in pairs], dtype=np.int64)
        scores = np.array([score for pairs in lists for _, score in pairs], dtype=np.float32)
        queries = [parse_id(query, "query") for query in hits]
        if len(set(queries)) < len(queries):
            raise DataError(f"query {max(queries, key=queries.count)!r} has two lists")
        return cls.from_columns(queries, owners, names, documents, scores, tag)

    @classmethod
    def from_columns(
        cls,
        queries: Sequence[str],
        query_codes: ArrayLike,
        document_ids: Sequence[str],
        document_codes: ArrayLike,
        scores: ArrayLike,
        tag: str = "moeir",
        *,
        depth: int | Integers | None = None,
        where: str = "",
    ) -> "Run":
        """A run from one row per hit, in any order; `where`, such as `run.trec: `, starts the message of an error.

        query_codes [n] = indexes into `queries`, document_codes [n] = indexes into `document_ids`, scores [n].
        """
        owners = np.asarray(query_codes, dtype=np.int32)
        documents = np.asarray(document_codes, dtype=np.int32)
        scores32 = np.asarray(scores, dtype=np.float32)
        for row in np.flatnonzero(~np.isfinite(scores32))[:1].tolist():
            raise DataError(f"{where}score of document {document_ids[documents[row]]!r} is not a finite float32 number")
        if not isinstance(document_ids, Ids) and any(map(str.__ge__, document_ids, document_ids[1:])):
            documents = id_ranks(document_ids).astype(np.int32)[documents]
            document_ids = sorted(document_ids)
        if (owners[1:] < owners[:-1]).any():
            order = np.argsort(owners, kind="stable")
            owners, documents, scores32 = owners[order], documents[order], scores32[order]
        pairs = owners * np.int64(len(document_ids)) + documents
        pairs.sort()
        for pair in pairs[1:][pairs[1:] == pairs[:-1]][:1].tolist():
            query, document = divmod(pair, len(document_ids))
            raise DataError(f"{where}document {document_ids[document]!r} is listed twice for query {queries[query]!r}")
        del pairs
        starts = np.searchsorted(owners, np.arange(len(queries) + 1, dtype=np.int32)).astype(np.int64)
        return cls(list(queries), starts, *sort_lists(starts, documents, scores32), document_ids, tag, depth)

    @cached_property
    def query_rows(self) -> dict[str, int]:
        """Index of each query in `queries`."""
        return {query: row for row, query in enumerate(self.queries)}

    @property
    def list_depth(self) -> int | Integers:
        """K, the depth of the search, of all or of each [Q]: `depth`, or the length of the longest list where that is not known."""
        return self.max_list_length if self.depth is None else self.depth

    @property
    def max_list_length(self) -> int:
        """The number of hits of the longest list."""
        return int(np.diff(self.starts).max(initial=0))

    def __len__(self) -> int:
        return len(self.queries)

    def list_at(self, row: int) -> tuple[Codes, Scores]:
        """Documents and scores of the query at index `row`; views, not copies."""
        owned = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return self.documents[owned], self.scores[owned]

    def hits(self, query: str) -> list[tuple[str, float]]:
        """Ids and scores of one query, best first; empty for an unknown query."""
        if query not in self.query_rows:
            return []
        documents, scores = self.list_at(self.query_rows[query])
        return list(zip(map(self.document_ids.__getitem__, documents.tolist()), scores.tolist(), strict=True))

    def documents_of(self, query: str) -> list[str]:
        """Document ids of one query, best first; empty for an unknown query."""
        if query not in self.query_rows:
            return []
        return [self.document_ids[document] for document in self.list_at(self.query_rows[query])[0].tolist()]

    def select_queries(self, first: int, names: Sequence[str]) -> "Run":
        """The lists of consecutive queries from index `first` on, under these names; views, not copies."""
        starts = self.starts[first : first + len(names) + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        depth = self.depth[first : first + len(names)] if isinstance(self.depth, np.ndarray) else self.depth
        return Run(list(names), starts - starts[0], self.documents[rows], self.scores[rows], self.document_ids, self.tag, depth)

    def top(self, depth: int) -> "Run":
        """The first `depth` hits of every query."""
        within_depth, starts = mask_within_depth(self.starts, depth)
        columns = self.documents[within_depth], self.scores[within_depth], self.document_ids, self.tag
        return Run(self.queries, starts, *columns, limit_depth(depth, self.list_depth))


def read_run(path: Path | str) -> Run:
    """Read a run of TREC lines, `query Q0 document rank score tag`; the rank column is ignored, ranks follow from the scores."""
    run = Run.from_columns(*trec_columns.read_columns(path), where=f"{lines.source_name(path)}: ")
    trec_columns.release_memory(len(run.scores))
    return run


def write_run(run: Run, path: Path | str, tag: str | None = None) -> None:
    """Write TREC lines, ranks from 1, scores with nine significant digits."""
    lists = format_lists(run, run.tag if tag is None else tag, lines.source_name(path, "standard output"))
    with lines.open_writer(path) as output:
        output.writelines(f"{text}\n" for text in lists)


def format_lists(run: Run, tag: str, where: str) -> Iterator[str]:
    """The TREC lines of each query that has hits, without the last newline; DataError, at `where`, for what `read_run` refuses."""
    for word in chain([tag], run.queries, run.document_ids):
        parse_id(word, where)
    if not np.isfinite(run.scores).all():
        raise DataError(f"{where}: a score is not a finite float32 number")
    return _format_lists(run, tag)


def _format_lists(run: Run, tag: str) -> Iterator[str]:
    names = run.document_ids
    for row in np.flatnonzero(np.diff(run.starts)).tolist():
        documents, scores = run.list_at(row)
        start, end = f"{run.queries[row]} Q0 ", f" {tag}"
        yield "\n".join(
            f"{start}{names[document]} {rank} {score:{_SCORE_FORMAT}}{end}"
            for rank, (document, score) in enumerate(zip(documents.tolist(), scores.tolist(), strict=True), 1)
        )


def sort_lists(starts: Integers, documents: NDArray[np.integer], scores: Scores) -> tuple[Codes, Scores]:
    """Documents and scores in rank order within each query, as by `rank_order`.

    Sorts one integer per hit, a part of the queries at a time: the bits of its score above its document's code, so that both descend.
    """
    sorted_documents, sorted_scores = np.empty(len(documents), np.int32), np.empty(len(scores), np.float32)
    for query in range(0, len(starts) - 1, SORTED_QUERIES):
        bounds = starts[query : query + SORTED_QUERIES + 1]
        rows = slice(int(bounds[0]), int(bounds[-1]))
        bits = (scores[rows] + np.float32(0)).view(np.uint32)  # minus zero becomes zero
        keys = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF)).astype(np.uint64) << np.uint64(32)
        keys |= np.uint64(0xFFFFFFFF) - documents[rows].astype(np.uint64)
        for first, last in pairwise((bounds - bounds[0]).tolist()):
            keys[first:last].sort()
        bits = (keys >> np.uint64(32)).astype(np.uint32)
        sorted_scores[rows] = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF)).view(np.float32)
        sorted_documents[rows] = np.uint64(0xFFFFFFFF) - (keys & np.uint64(0xFFFFFFFF))
    return sorted_documents, sorted_scores


def parse_hit(line: str, where: str) -> tuple[str, str, int, float, str]:
    """Query, document, rank, score and tag of a line of a run, by the same rules as `read_run`; the rank is a whole number."""
    words, score = trec_columns.parse_line(line.encode(), where)
    trec_columns.check_iteration(words, line.encode(), where)
    query, _, document, rank, _, tag = (word.decode() for word in words)
    if not rank.isdecimal() or len(rank) > MAX_RANK_DIGITS:
        raise DataError(f"{where}: rank is not a whole number: {shorten_message(repr(rank))}")
    return query, document, int(rank), score, tag


def limit_depth(depth: int, searched: int | Integers) -> int | Integers:
    """The depth of lists, or of each list [Q], that were searched to another one and cut."""
    return min(depth, searched) if isinstance(searched, int) else np.minimum(depth, searched)


def mask_within_depth(starts: Integers, depth: int) -> tuple[NDArray[np.bool_], Integers]:
    """Whether each hit is among the first `depth` of its list [n], and the starts of the shortened lists [Q+1]; starts [Q+1].

    >>> [array.tolist() for array in mask_within_depth(np.array([0, 3, 4]), 2)]
    [[True, True, False, True], [0, 2, 3]]
    """
    sizes = np.diff(starts)
    within_depth = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes) < depth
    return within_depth, np.concatenate(([0], np.cumsum(np.minimum(sizes, depth)))).astype(np.int64)
