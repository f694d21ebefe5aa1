"""Impact-ordered postings in windows of documents, with the documents' own weights; built window by window.

Little work is done by numpy alone, whose results are those of the compiled loops in `postings_search` to the bit: the loops take seconds
to compile, once on a machine, and half a second to load.
"""

from abc import abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder, find_nonempty_begins
from moeir.artifacts.journals import AppendableNpy
from moeir.indexes import base
from moeir.indexes.sparse_rows import STEPS, SparseRows

WINDOW_SIZE = 2**16  # documents whose scans fit in a core's cache, and whose offsets fit in uint16
MAX_SCORE, MIN_SCORE = 1e38, 1e-30  # float32 tells scores apart within this range
MAX_SCANNED_TERMS = 2**14  # of a query that is scanned
DTYPES = {
    "lists": np.int64, "windows": np.int32, "begins": np.int64, "ends": np.int64, "offsets": np.uint16, "steps": np.uint8,
    "starts": np.int64, "terms": np.int32, "weights": np.float32, "highest": np.float32,
}  # fmt: skip
LIST_COLUMNS = ("windows", "begins", "ends")
LISTS_AT_ONCE = 2**20
PLAIN_ENTRIES = 2**28  # terms of documents that an opened index compares by numpy, a second's work, before it takes compiled loops
PLAIN_AT_ONCE = 2**23  # of these at a time, as numpy's arrays have some 30 bytes for each


@dataclass
class Postings:
    """The arrays of an inverted index: every document's own weights, and for every term one list of postings per window that has any.

    The lists of term t are lists[t] to lists[t + 1]: windows int32, and begins and ends int64 in `offsets` (uint16, documents within
    their window) and `steps` (uint8, descending: the weight is in (step − 1, step] · highest[t] / 255). Documents: starts int64 [N + 1],
    terms [nnz], and weights float32 or, if only steps are stored, uint8. highest float32 [V].
    """

    lists: np.ndarray
    windows: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    steps: np.ndarray
    starts: np.ndarray
    terms: np.ndarray
    weights: np.ndarray
    highest: np.ndarray
    window: int
    signed: bool  # some weight is negative: the scan proves nothing
    plain_entries: int = 0  # how many terms of documents have been compared by numpy

    @classmethod
    def from_files(
        cls, arrays: ArrayFolder, window: int, documents: int, vocabulary: int, *, signed: bool = False, steps_only: bool = False
    ) -> "Postings":
        """From memory maps; ArtifactError if they are not arrays of these sizes, or point outside each other."""
        if not 1 <= window <= WINDOW_SIZE:
            raise ValueError(f"a window of {window} documents")
        dtypes = _column_dtypes(vocabulary, steps_only)
        terms = arrays.read("terms", dtypes["terms"], (None,), below=vocabulary)
        windows = arrays.read("windows", dtypes["windows"], (None,), below=-(-documents // window))
        starts = arrays.read_offsets("starts", documents, len(terms), "engine.json and terms.npy")
        lists = arrays.read_offsets("lists", vocabulary, len(windows), "engine.json and windows.npy")
        others = {"highest": arrays.read("highest", np.float32, (vocabulary,), finite=True)}
        others |= {name: arrays.read(name, np.int64, (len(windows),), by="windows.npy") for name in ("begins", "ends")}
        for name in ("offsets", "steps", "weights"):
            others[name] = arrays.read(name, dtypes[name], (len(terms),), by="terms.npy", finite=True)
        postings = cls(lists=lists, windows=windows, starts=starts, terms=terms, **others, window=window, signed=signed)
        postings._check_lists(arrays)
        return postings

    def _check_lists(self, arrays: ArrayFolder) -> None:
        """Check that the lists of a window lie among the postings of its documents, and cover all postings."""
        documents, covered = len(self.starts) - 1, 0
        for first in range(0, len(self.windows), LISTS_AT_ONCE):
            windows, begins, ends = (column[first : first + LISTS_AT_ONCE] for column in (self.windows, self.begins, self.ends))
            rows = windows.astype(np.int64) * self.window
            last = self.starts[np.minimum(rows + self.window, documents)]
            if ((begins < self.starts[rows]) | (begins >= last)).any():
                arrays.refuse("begins", "postings of each list's window", "others")
            if ((ends <= begins) | (ends > last)).any():
                arrays.refuse("ends", "ends after begins.npy, within each list's window", "others")
            if (self.steps[ends - 1] == 0).any():
                arrays.refuse("steps", f"1 to {STEPS}", "0")
            covered += int((ends - begins).sum())
        if covered != len(self.terms):
            arrays.refuse("ends", f"lists from begins.npy that cover {len(self.terms)} postings", f"{covered}")
        for row in range(0, documents, self.window):
            below = min(self.window, documents - row)
            offsets = self.offsets[self.starts[row] : self.starts[row + below]]
            if below < WINDOW_SIZE and offsets.max(initial=0) >= below:
                arrays.refuse("offsets", f"documents below {below} in the window from document {row}", f"{offsets.max()}")
        arrays.check_order("windows", find_nonempty_begins(self.lists))
        arrays.check_order("terms", find_nonempty_begins(self.starts))
        arrays.check_order("steps", self.begins, descending=True)

    def positions_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the terms and weights of the documents `rows` [n] are, end to end: int64 [nnz], and starts int64 [n + 1]."""
        begins, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return np.arange(starts[-1]) + np.repeat(begins - starts[:-1], lengths), starts

    def search(self, queries: SparseRows, id_ranks: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """The `depth` best documents of each query -> rows int64 [Q, n · depth], scores float32 [Q, n · depth]: n lists, each best first.

        Ties go to the highest id rank. Unused entries hold row -1 and score −∞.
        """
        starts, terms, weights = self._prepare_queries(queries)
        count = len(starts) - 1
        memmap.note_pages_read(sum(getattr(self, name).nbytes for name in DTYPES))
        if not self._takes_loops(len(self.terms), count):
            return self._search_plainly(starts, terms, self._query_weights(terms, weights), id_ranks, depth)
        import numba

        from moeir.indexes.postings_search import SCAN_BLOCK, search_part

        threads = numba.get_num_threads()
        windows = -(-len(id_ranks) // self.window)
        splits = max(1, min(threads // max(count, 1), windows // 2))  # with fewer queries than threads, threads share a query's windows
        rows = np.full((count * splits, depth), base.NO_ROW, dtype=np.int64)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        span, parts = min(self.window, -(-len(id_ranks) // SCAN_BLOCK) * SCAN_BLOCK), min(threads, len(rows))
        arguments = self._compiled_arguments(starts, terms, weights)

        def search(part: int) -> None:
            search_part(*arguments, id_ranks, span, part, parts, rows, scores)

        if parts == 1:
            search(0)
        else:
            with ThreadPoolExecutor(parts) as pool:
                list(pool.map(search, range(parts)))
        return rows.reshape(count, -1), scores.reshape(count, -1)

    def _compiled_arguments(self, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray) -> tuple[Any, ...]:
        """Lists, documents and queries as compiled loops take them."""
        from moeir.indexes.postings_search import Documents, PostingLists, Queries

        lists = (self.lists, self.windows, self.begins, self.ends, self.offsets, self.steps)
        queries = Queries(starts, terms, self._query_weights(terms, weights), self._scannable(starts, terms, weights))
        return PostingLists(*lists, self._scales), Documents(self.starts, self.terms, self.weights, self._shift), queries

    def _takes_loops(self, entries: int, passes: int = 1) -> bool:
        """Whether compiled loops compare so many terms of documents, so many times; what numpy compares is counted."""
        is_little = entries <= PLAIN_AT_ONCE and self.plain_entries + passes * entries <= PLAIN_ENTRIES
        self.plain_entries += passes * entries if is_little else 0
        return not is_little

    def _search_plainly(
        self, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray, id_ranks: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """`search` by numpy: every document's terms are compared with each query."""
        rows = np.full((len(starts) - 1, depth), base.NO_ROW, dtype=np.int64)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        owners = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        for query, (begin, end) in enumerate(pairwise(starts.tolist())):
            is_query_term, weight_by_term = np.zeros(len(self.highest), dtype=bool), np.zeros(len(self.highest))
            is_query_term[terms[begin:end]], weight_by_term[terms[begin:end]] = True, weights[begin:end]
            entries = np.flatnonzero(is_query_term[self.terms])
            sums = self._sum_products(owners[entries], weight_by_term[self.terms[entries]], entries, len(self.starts) - 1)
            hits = np.unique(owners[entries])
            base.fill_ranked_hits(hits, sums[hits], id_ranks, rows[query], scores[query])
        return rows, scores

    def _sum_products(self, owners: np.ndarray, weights: np.ndarray, entries: np.ndarray, count: int) -> np.ndarray:
        """The scores float32 [count] of documents or pairs: of each, the float64 sum, one after another, of the products of query weights
        float64 [n] and the document's weights at `entries` [n]; owners [n] are ascending."""
        products = weights * (self.weights[entries].astype(np.float64) - self._shift)
        with np.errstate(over="ignore"):  # to infinity, as compiled loops do
            scores: np.ndarray = (np.bincount(owners, products, count) + 0.0).astype(np.float32)  # −0 becomes 0
        return scores

    def score_pairs(self, queries: SparseRows, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        """Scores of pairs, as in `search`, 0 if no term is shared: ascending query_rows [P], document_rows [P] -> float32 [P]."""
        starts, terms, weights = self._prepare_queries(queries)
        if not self._takes_loops(int((self.starts[document_rows + 1] - self.starts[document_rows]).sum())):
            return self._score_pairs_plainly(starts, terms, self._query_weights(terms, weights), query_rows, document_rows)
        from moeir.indexes.postings_search import score_row_pairs

        scores = np.zeros(len(query_rows), dtype=np.float32)
        _, documents, prepared_queries = self._compiled_arguments(starts, terms, weights)
        score_row_pairs(documents, prepared_queries, len(self.highest), query_rows, document_rows, scores)
        return scores

    def _score_pairs_plainly(
        self, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray, query_rows: np.ndarray, document_rows: np.ndarray
    ) -> np.ndarray:
        """`score_pairs` by numpy."""
        positions, pair_starts = self.positions_of(document_rows)
        pairs = np.repeat(np.arange(len(document_rows)), np.diff(pair_starts))
        query_keys = np.repeat(np.arange(len(starts) - 1), np.diff(starts)) * len(self.highest) + terms  # ascending
        keys = query_rows[pairs] * len(self.highest) + self.terms[positions]
        places = np.minimum(np.searchsorted(query_keys, keys), max(len(query_keys) - 1, 0))
        entries = np.flatnonzero(query_keys[places] == keys) if len(query_keys) else np.zeros(0, np.int64)
        return self._sum_products(pairs[entries], weights[places[entries]], positions[entries], len(document_rows))

    def _scannable(self, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Which queries can be scanned, bool [Q]: few terms, no negative weight, and scores that float32 tells apart."""
        text_indices = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        max_scores = np.bincount(text_indices, weights=weights * self.highest[terms], minlength=len(starts) - 1)
        negative_counts = np.bincount(text_indices, weights=weights < 0, minlength=len(starts) - 1)
        in_range: np.ndarray = (max_scores < MAX_SCORE) & ((max_scores > MIN_SCORE) | (max_scores == 0))
        return in_range & (negative_counts == 0) & (np.diff(starts) < MAX_SCANNED_TERMS) & (not self.signed)

    @property
    def _shift(self) -> float:
        return 0.5 if self.weights.dtype == np.uint8 else 0.0  # a step means its midpoint

    @property
    def _scales(self) -> np.ndarray:
        """Value of each term's largest step in the units of `_query_weights`."""
        return np.full(len(self.highest), STEPS, np.float32) if self._shift else self.highest

    def _query_weights(self, terms: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Query weights per unit of a document's stored weight, float64 [nnz]."""
        return weights * (self.highest[terms] / np.float64(STEPS)) if self._shift else weights

    def _prepare_queries(self, queries: SparseRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts, ascending distinct terms, and float64 weights of queries; repeated terms are summed."""
        starts, terms, weights = queries.sort_terms()
        text_indices = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        is_first = np.append(True, (np.diff(terms) != 0) | (np.diff(text_indices) > 0))[: len(terms)]
        weights = weights.astype(np.float64)
        if not is_first.all():
            weights = np.add.reduceat(weights, np.flatnonzero(is_first))
            starts, terms = np.concatenate([[0], np.cumsum(is_first)])[starts], terms[is_first]
        return starts.astype(np.int64), terms.astype(np.int64), weights


class PostingsIndex(base.Index):
    """An index whose scores add up over the terms that a query and a document share; other documents are not retrieved."""

    score_if_not_found = 0.0
    window = WINDOW_SIZE
    _postings: Postings

    @abstractmethod
    def _query_rows(self, queries: Any) -> SparseRows:
        """Terms and weights of the queries."""

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        id_ranks = self.id_ranks
        hits, values = self._postings.search(self._query_rows(queries), id_ranks, depth)
        if hits.shape == rows.shape:  # one list for each query: ranked already
            rows[:], scores[:] = hits, values
        else:
            base.fill_all_ranked_hits(hits, values, id_ranks, rows, scores)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        return self._postings.score_pairs(self._query_rows(queries), query_rows, document_rows)


def write_postings(document_windows: Iterable[SparseRows], highest: np.ndarray, folder: Path, *, steps_only: bool = False) -> None:
    """Write the arrays of `Postings`, window by window."""
    vocabulary, entry_count = len(highest), 0
    files = {name: AppendableNpy(folder / f"{name}.npy", dtype) for name, dtype in _column_dtypes(vocabulary, steps_only).items()}
    directory: list[dict[str, np.ndarray]] = []
    files["starts"].append(np.zeros(1, np.int64))
    for window, texts in enumerate(document_windows):
        starts, terms, weights = texts.sort_terms()
        steps = _quantise_weights(weights, highest[terms])
        offsets, sorted_steps, counts = _sort_by_impact(starts, terms, steps, vocabulary)
        present = np.flatnonzero(counts)
        ends = entry_count + np.cumsum(counts[present])
        narrow = {"windows": np.full(len(present), window, np.int32), "of": present.astype(np.int32)}
        directory.append(narrow | {"begins": ends - counts[present], "ends": ends})
        blocks = {"offsets": offsets, "steps": sorted_steps, "terms": terms, "weights": steps if steps_only else weights}
        for name, block in (blocks | {"starts": entry_count + starts[1:]}).items():
            files[name].append(block)
        entry_count += len(terms)
    columns = {name: np.concatenate([np.zeros(0, np.int32), *(part.pop(name) for part in directory)]) for name in (*LIST_COLUMNS, "of")}
    order = np.argsort(columns["of"], kind="stable")
    for name in LIST_COLUMNS:
        files[name].append(columns.pop(name)[order])
    files["lists"].append(np.concatenate([[0], np.cumsum(np.bincount(columns["of"], minlength=vocabulary))]))
    files["highest"].append(highest)
    for file in files.values():
        file.close()


def _column_dtypes(vocabulary: int, steps_only: bool) -> dict[str, Any]:
    return DTYPES | ({"weights": np.uint8} if steps_only else {}) | ({"terms": np.uint16} if vocabulary <= 2**16 else {})


def _quantise_weights(weights: np.ndarray, highest: np.ndarray) -> np.ndarray:
    above = np.maximum(highest.astype(np.float64), np.finfo(np.float32).smallest_subnormal)
    return np.ceil(weights.astype(np.float64) * STEPS / above).clip(1, STEPS).astype(np.uint8)


def _sort_by_impact(starts: np.ndarray, terms: np.ndarray, steps: np.ndarray, vocabulary: int) -> tuple[np.ndarray, ...]:
    """Order a window's postings by term, then step descending, then document: offsets, steps, and postings per term [V]."""
    rows = np.repeat(np.arange(len(starts) - 1, dtype=np.uint64), np.diff(starts))
    keys = np.sort(terms.astype(np.uint64) << 24 | (STEPS - steps).astype(np.uint64) << 16 | rows)
    return keys.astype(np.uint16), STEPS - (keys >> 16).astype(np.uint8), np.bincount(terms, minlength=vocabulary)
