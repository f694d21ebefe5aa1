"""Impact-ordered postings in windows of documents, with the documents' own weights; built window by window.

Little work is done by numpy alone, whose results are those of the compiled loops in `postings_search` to the bit: the loops take seconds
to compile, once on a machine, and half a second to load.
"""

from abc import abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder, find_nonempty_begins
from moeir.artifacts.journals import AppendableNpy
from moeir.indexes import base
from moeir.indexes.sparse_rows import STEPS, SparseRows

WINDOW_SIZE = 2**16  # documents whose scans fit in a core's cache, and whose offsets fit in uint16
MAX_SCORE, MIN_SCORE = 1e38, 1e-30  # float32 tells scores apart within this range
MAX_SCANNED_TERMS = 2**14  # of a query that is scanned
ROUNDING_SLACK = 1.0 + 2.0**-20  # upper bound of the relative rounding error in float64 and to float32
DTYPES = {
    "lists": np.int64, "windows": np.int32, "begins": np.int64, "ends": np.int64, "offsets": np.uint16, "steps": np.uint8,
    "starts": np.int64, "terms": np.int32, "weights": np.float32, "highest": np.float32,
}  # fmt: skip
LIST_COLUMNS = ("windows", "begins", "ends")
LISTS_AT_ONCE = 2**20
PLAIN_ENTRIES = 2**28  # terms of documents that an opened index compares by numpy, a second's work, before it takes compiled loops
PLAIN_AT_ONCE = 2**23  # of these at a time, as numpy's arrays have some 30 bytes for each


class Query(NamedTuple):
    """Ascending terms and their float64 weights, and both by term: bool [V], for the nearest cache, and float64 [V]."""

    terms: np.ndarray
    weights: np.ndarray
    is_present: np.ndarray
    weight_by_term: np.ndarray


@dataclass
class Postings:
    """The arrays of an inverted index: every document's own weights, and for every term one list of postings per window that has any.

    The lists of term t are lists[t] to lists[t + 1]: windows int32, and begins and ends int64 in `offsets` (uint16, documents within
    their window) and `steps` (uint8, descending: the weight is in (step − 1, step] · highest[t] / 255). Documents: starts int64 [N + 1],
    terms [nnz], and weights float32. highest float32 [V].
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
    def from_files(cls, arrays: ArrayFolder, window: int, documents: int, vocabulary: int, *, signed: bool = False) -> "Postings":
        """From memory maps; ArtifactError if they are not arrays of these sizes, or point outside each other."""
        if not 1 <= window <= WINDOW_SIZE:
            raise ValueError(f"a window of {window} documents")
        dtypes = _column_dtypes(vocabulary)
        terms = arrays.read("terms", dtypes["terms"], (None,), below=vocabulary)
        windows = arrays.read("windows", dtypes["windows"], (None,), below=-(-documents // window))
        starts = arrays.read_offsets("starts", documents, len(terms), "engine.json and terms.npy")
        lists = arrays.read_offsets("lists", vocabulary, len(windows), "engine.json and windows.npy")
        others = {"highest": arrays.read("highest", np.float32, (vocabulary,))}
        others |= {name: arrays.read(name, np.int64, (len(windows),), by="windows.npy") for name in ("begins", "ends")}
        for name in ("offsets", "steps", "weights"):
            others[name] = arrays.read(name, dtypes[name], (len(terms),), by="terms.npy")
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

    def search(self, queries: SparseRows, id_ranks: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
        """Fill rows int64 [Q, K] and scores float32 [Q, K], blank on entry, with the best documents of each query."""
        queries, documents = self._prepare_queries(queries), len(id_ranks)
        memmap.note_pages_read(sum(getattr(self, name).nbytes for name in DTYPES))
        if not self._takes_loops(len(self.terms), len(rows)):
            owners = np.repeat(np.arange(documents), np.diff(self.starts))
            for number, own_rows in enumerate(rows):
                hits, values = _find_scored(self._sum_products(self._build_query(queries, number), slice(None), owners, documents))
                base.fill_ranked_hits(hits, values, id_ranks, own_rows, scores[number])
            return
        import numba

        threads = numba.get_num_threads()
        splits = max(1, min(threads // len(rows), -(-documents // self.window) // 2))  # if queries are few, threads share one's windows
        part_rows = np.full((len(rows) * splits, rows.shape[1]), base.NO_ROW, dtype=np.int64)
        part_scores = np.full(part_rows.shape, -np.inf, dtype=np.float32)

        def search_part(part: int) -> None:
            query = self._build_query(queries, part // splits)
            hits, values = self._find_hits(query, rows.shape[1], documents, part % splits, splits)
            base.fill_ranked_hits(hits, values, id_ranks, part_rows[part], part_scores[part])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(search_part, range(len(part_rows))))
        lists = part_rows.reshape(len(rows), -1), part_scores.reshape(len(rows), -1)
        base.fill_all_ranked_hits(*lists, id_ranks, rows, scores)

    def score_pairs(self, queries: SparseRows, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        """Scores of pairs, as in `search`, 0 if no term is shared: ascending query_rows [P], document_rows [P] -> float32 [P]."""
        queries, scores = self._prepare_queries(queries), np.empty(len(query_rows), dtype=np.float32)
        lengths = self.starts[document_rows + 1] - self.starts[document_rows]
        loops = self._takes_loops(int(lengths.sum()))
        for number in np.unique(query_rows).tolist():
            pairs, query = slice(*np.searchsorted(query_rows, [number, number + 1])), self._build_query(queries, number)
            if loops:
                scores[pairs] = self._score_rows(query, document_rows[pairs])
            else:
                own, starts = lengths[pairs], self.starts[document_rows[pairs]]
                positions = np.arange(own.sum()) + np.repeat(starts - np.cumsum(own) + own, own)
                scores[pairs] = self._sum_products(query, positions, np.repeat(np.arange(len(own)), own), len(own))
        scores[np.isnan(scores)] = 0.0
        return scores

    def _takes_loops(self, entries: int, passes: int = 1) -> bool:
        """Whether compiled loops compare so many terms of documents, so many times; what numpy compares is counted."""
        is_little = entries <= PLAIN_AT_ONCE and self.plain_entries + passes * entries <= PLAIN_ENTRIES
        self.plain_entries += passes * entries if is_little else 0
        return not is_little

    def _find_hits(self, query: Query, depth: int, documents: int, first: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
        """The documents of every stride-th window that can be among the best `depth`, at least as many if there are, and their scores."""
        if not self._is_scannable(query):
            every = np.arange(first, documents, stride)
            hits, values = _find_scored(self._score_rows(query, every))
            return every[hits], values
        from moeir.indexes.postings_search import MAX_SCAN, SCAN_BLOCK, scan_windows

        count, highest = len(query.terms), query.weights * self.highest[query.terms]
        unit = float(highest.sum()) / (MAX_SCAN - count - 1)  # the score of one scan unit
        table = np.ceil(highest[:, None] / (STEPS * unit or 1.0) * np.arange(STEPS + 1)).clip(min=1).astype(np.uint16)
        table[:, 0] = 0
        error, sums = count + int(table[:, 1].sum()), np.empty(min(self.window, -(-documents // SCAN_BLOCK) * SCAN_BLOCK), np.uint16)
        rows, scans = np.empty(documents, np.int32), np.empty(documents, np.int32)  # pages that are never written take no memory
        lists = (self.lists, self.windows, self.begins, self.ends, self.offsets, self.steps)
        count, best = scan_windows(*lists, query.terms, table, error, first, stride, depth, sums, rows, scans)
        rows, scans = rows[:count], scans[:count]
        is_best = scans >= best
        values = self._score_rows(query, rows[is_best])
        scored = values[~np.isnan(values)]
        floor = np.partition(scored, len(scored) - depth)[len(scored) - depth] if len(scored) >= depth else -np.inf
        others = rows[~is_best & (scans >= best - error) & (scans * (unit * ROUNDING_SLACK) >= floor)]
        rows, values = np.concatenate([rows[is_best], others]), np.concatenate([values, self._score_rows(query, others)])
        hits, values = _find_scored(values)
        return rows[hits], values

    def _score_rows(self, query: Query, rows: np.ndarray) -> np.ndarray:
        """The scores of documents [n], float32; NaN for one that shares no term with the query."""
        from moeir.indexes.postings_search import score_rows

        scores = np.empty(len(rows), np.float32)
        score_rows(rows, self.starts, self.terms, self.weights, query.is_present, query.weight_by_term, scores)
        return scores

    def _sum_products(self, query: Query, positions: Any, owners: np.ndarray, count: int) -> np.ndarray:
        """`_score_rows` by numpy, of `count` documents whose terms are at `positions` [nnz], of the documents `owners` [nnz], ascending."""
        terms = self.terms[positions]
        shared = np.flatnonzero(query.is_present[terms])
        products = query.weight_by_term[terms[shared]] * self.weights[positions][shared].astype(np.float64)
        with np.errstate(over="ignore"):  # to infinity, as compiled loops do
            scores: np.ndarray = (np.bincount(owners[shared], products, count) + 0.0).astype(np.float32)  # −0 becomes 0
        scores[np.bincount(owners[shared], minlength=count) == 0] = np.nan
        return scores

    def _is_scannable(self, query: Query) -> bool:
        """Whether a query can be scanned: few terms, no negative weight, and scores that float32 tells apart."""
        highest = float((query.weights * self.highest[query.terms]).sum())
        in_range = highest < MAX_SCORE and (highest > MIN_SCORE or highest == 0)
        return in_range and len(query.terms) < MAX_SCANNED_TERMS and not self.signed and not (query.weights < 0).any()

    def _build_query(self, queries: SparseRows, number: int) -> Query:
        """One of the queries that `_prepare_queries` returns."""
        part = slice(queries.starts[number], queries.starts[number + 1])
        query = Query(queries.terms[part], queries.weights[part], np.zeros(len(self.highest), bool), np.empty(len(self.highest)))
        query.is_present[query.terms], query.weight_by_term[query.terms] = True, query.weights
        return query

    def _prepare_queries(self, queries: SparseRows) -> SparseRows:
        """Queries with ascending distinct terms, and float64 weights; repeated terms are summed."""
        starts, terms, weights = queries.sort_terms()
        text_indices = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        is_first = np.append(True, (np.diff(terms) != 0) | (np.diff(text_indices) > 0))[: len(terms)]
        weights = weights.astype(np.float64)
        if not is_first.all():
            weights = np.add.reduceat(weights, np.flatnonzero(is_first))
            starts, terms = np.concatenate([[0], np.cumsum(is_first)])[starts], terms[is_first]
        return SparseRows(starts.astype(np.int64), terms.astype(np.int64), weights)


def _find_scored(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the scores [n] are numbers, and these."""
    hits = np.flatnonzero(~np.isnan(scores))
    return hits, scores[hits]


class PostingsIndex(base.Index):
    """An index whose scores add up over the terms that a query and a document share; other documents are not retrieved."""

    score_if_not_found = 0.0
    window = WINDOW_SIZE
    _postings: Postings

    @abstractmethod
    def _query_rows(self, queries: Any) -> SparseRows:
        """Terms and weights of the queries."""

    def expect_many_queries(self) -> None:
        self._postings.plain_entries = PLAIN_ENTRIES

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        self._postings.search(self._query_rows(queries), self.id_ranks, rows, scores)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        return self._postings.score_pairs(self._query_rows(queries), query_rows, document_rows)


def write_postings(document_windows: Iterable[SparseRows], highest: np.ndarray, folder: Path) -> None:
    """Write the arrays of `Postings`, window by window."""
    vocabulary, entry_count = len(highest), 0
    files = {name: AppendableNpy(folder / f"{name}.npy", dtype) for name, dtype in _column_dtypes(vocabulary).items()}
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
        blocks = {"offsets": offsets, "steps": sorted_steps, "terms": terms, "weights": weights}
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


def _column_dtypes(vocabulary: int) -> dict[str, Any]:
    return DTYPES | ({"terms": np.uint16} if vocabulary <= 2**16 else {})


def _quantise_weights(weights: np.ndarray, highest: np.ndarray) -> np.ndarray:
    above = np.maximum(highest.astype(np.float64), np.finfo(np.float32).smallest_subnormal)
    return np.ceil(weights.astype(np.float64) * STEPS / above).clip(1, STEPS).astype(np.uint8)


def _sort_by_impact(starts: np.ndarray, terms: np.ndarray, steps: np.ndarray, vocabulary: int) -> tuple[np.ndarray, ...]:
    """Order a window's postings by term, then step descending, then document: offsets, steps, and postings per term [V]."""
    rows = np.repeat(np.arange(len(starts) - 1, dtype=np.uint64), np.diff(starts))
    keys = np.sort(terms.astype(np.uint64) << 24 | (STEPS - steps).astype(np.uint64) << 16 | rows)
    return keys.astype(np.uint16), STEPS - (keys >> 16).astype(np.uint8), np.bincount(terms, minlength=vocabulary)
