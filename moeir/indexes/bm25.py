"""BM25 over texts: term weights by Lucene's formula, search over postings."""

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import UsageError
from moeir.indexes.analyzer import open_analyzer
from moeir.indexes.base import Index
from moeir.indexes.postings import Postings, PostingsIndex, write_postings
from moeir.indexes.sparse_rows import SparseRows

VOCABULARY_FILE = "vocabulary.json"
TERMS_AT_ONCE = 2**20


class Bm25(PostingsIndex, Index):
    """BM25 as Lucene scores it, over the stems of a language's words (`language`, by default English).

    weight of term t in document d = log(1 + (N − n + ½) / (n + ½)) · f / (f + k1 · (1 − b + b · |d| / mean |d|)), where n of N
    documents hold t, f times in d (Robertson and Zaragoza 2009, Kamphuis et al. 2020 "Lucene (accurate)"), without the factor k1 + 1 of
    older forms: it changes no order, but the share of BM25 in a sum with other scores. N and the mean length are those of the documents
    with at least one term. A query's score adds the weights of its terms, repeated ones as often as they occur. Only documents that share
    a term are retrieved.

    `stemmer` is `snowball` (the language's of Snowball; for English, Porter's), one of Snowball's by its name, or `none`; `stop_words` is
    `lucene` (the list of Lucene's analyser of the language, where there is one) or `none`. Queries are analysed as the index says.
    """

    kind = "text"

    def __init__(
        self,
        id_ranks: np.ndarray | None = None,
        device: str = "cpu",
        *,
        k1: float = 0.9,
        b: float = 0.4,
        language: str = "english",
        stemmer: str = "snowball",
        stop_words: str = "lucene",
    ) -> None:
        super().__init__(id_ranks, device)
        if not 0 <= k1 < float("inf"):
            raise UsageError(f"bm25: k1 must be 0 or more, not {k1}")
        if not 0 <= b <= 1:
            raise UsageError(f"bm25: b must lie between 0 and 1, not {b}")
        self._analyzer = open_analyzer(language, stemmer, stop_words)
        self.k1, self.b, self.language, self.stemmer, self.stop_words = k1, b, language, self._analyzer.stemmer, stop_words
        self._vocabulary: dict[str, int] = {}
        self._distinct_counts, self._word_counts = array("i"), array("i")  # per document: distinct terms, and words
        self._term_ids, self._term_counts = array("i"), array("i")  # per document and distinct term: term id, and frequency

    def _add(self, shard: Sequence[str]) -> None:
        for text in shard:
            counts = Counter(self._analyzer.terms(text))
            self._term_ids.extend(self._vocabulary.setdefault(term, len(self._vocabulary)) for term in counts)
            self._term_counts.extend(counts.values())
            self._distinct_counts.append(len(counts))
            self._word_counts.append(counts.total())

    def _sort_terms(self) -> None:
        """Renumber terms alphabetically, and sort those of each document, so that nothing depends on the order of documents and words."""
        names = sorted(self._vocabulary)
        ranks = np.empty(len(names), np.int32)
        ranks[[self._vocabulary[name] for name in names]] = np.arange(len(names))
        self._vocabulary = {name: rank for rank, name in enumerate(names)}
        terms = np.asarray(self._term_ids)  # a view: changed in place
        for first in range(0, len(terms), TERMS_AT_ONCE):
            part = slice(first, first + TERMS_AT_ONCE)
            terms[part] = ranks[terms[part]]
        counts, starts = np.asarray(self._term_counts), self._document_starts()
        for first in range(0, len(self), self.window):
            own_starts = starts[first : first + self.window + 1]
            part = slice(own_starts[0], own_starts[-1])
            _, terms[part], counts[part] = SparseRows(own_starts - own_starts[0], terms[part], counts[part]).sort_terms()

    def _document_starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self._distinct_counts, dtype=np.int64)])

    def _document_windows(self) -> Iterator[SparseRows]:
        """The documents as sparse rows of BM25 weights, one window at a time."""
        terms, term_counts, word_counts = (np.asarray(column) for column in (self._term_ids, self._term_counts, self._word_counts))
        starts = self._document_starts()
        document_frequencies = np.zeros(len(self._vocabulary), np.int64)
        for first in range(0, len(terms), TERMS_AT_ONCE):
            document_frequencies += np.bincount(terms[first : first + TERMS_AT_ONCE], minlength=len(document_frequencies))
        count = max(np.count_nonzero(word_counts), 1)  # as Lucene's docCount
        idf = np.log1p((count - document_frequencies + 0.5) / (document_frequencies + 0.5))
        mean_length = max(word_counts.sum(dtype=np.int64), 1) / count
        length_norms = self.k1 * (1 - self.b + self.b * word_counts / mean_length)
        for first in range(0, len(self), self.window):
            window_starts = starts[first : first + self.window + 1]
            part = slice(window_starts[0], window_starts[-1])
            entry_norms = np.repeat(length_norms[first : first + self.window], np.diff(window_starts))
            weights = idf[terms[part]] * term_counts[part] / (term_counts[part] + entry_norms)
            yield SparseRows(window_starts - window_starts[0], terms[part].astype(np.int64), weights.astype(np.float32))

    def _max_weights(self) -> np.ndarray:
        highest = np.zeros(len(self._vocabulary), np.float32)
        for texts in self._document_windows():
            np.maximum.at(highest, texts.terms, texts.weights)
        return highest

    def _query_rows(self, queries: Sequence[str]) -> SparseRows:
        """Terms of the queries and their frequencies; terms that no document has are dropped."""
        known = self._vocabulary
        terms = [[known[term] for term in self._analyzer.terms(text) if term in known] for text in queries]
        owners = np.repeat(np.arange(len(queries)), [len(of_query) for of_query in terms])
        keys = owners * len(known) + np.fromiter(chain.from_iterable(terms), np.int64, len(owners))
        keys, counts = np.unique(keys, return_counts=True)
        starts = np.searchsorted(keys, np.arange(len(queries) + 1) * len(known)).astype(np.int64)
        return SparseRows(starts, keys % max(len(known), 1), counts.astype(np.float32))

    def _write(self, folder: Path) -> dict[str, Any]:
        self._sort_terms()
        write_postings(self._document_windows(), self._max_weights(), folder)
        (folder / VOCABULARY_FILE).write_text(json.dumps(list(self._vocabulary), ensure_ascii=False) + "\n", encoding="utf-8")
        return {"vocabulary": len(self._vocabulary), "window": self.window}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        names, documents = json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8")), int(settings["documents"])
        if len(names) != settings["vocabulary"]:
            raise ValueError(f"{VOCABULARY_FILE} holds {len(names)} terms, not {settings['vocabulary']}")
        self._vocabulary = {name: rank for rank, name in enumerate(names)}
        self._postings = Postings.from_files(arrays, settings["window"], documents, len(names))
        return documents
