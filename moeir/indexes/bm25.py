"""BM25 over texts: term weights by Lucene's formula, search over postings."""

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes.analyzer import EnglishAnalyzer
from moeir.indexes.base import Index
from moeir.indexes.inverted import rank_found
from moeir.indexes.postings import WINDOW, Files, Postings, Texts, kept, write

VOCABULARY = "vocabulary.json"
TERMS_AT_ONCE = 2**20


class Bm25(Index):
    """BM25 as Lucene scores it, over terms of Lucene's EnglishAnalyzer.

    weight of term t in document d = log(1 + (N − n + ½) / (n + ½)) · f / (f + k1 · (1 − b + b · |d| / mean |d|)), where n
    documents hold t, f times in d (Robertson and Zaragoza 2009, Kamphuis et al. 2020 "Lucene (accurate)"). A query's
    score adds the weights of its terms, repeated ones as often as they occur. Only documents that share a term are retrieved.
    """

    kind: ClassVar[str] = "text"
    unfound: ClassVar[float] = 0.0
    window = WINDOW

    def __init__(
        self,
        order: np.ndarray | None = None,
        device: str = "cpu",
        *,
        k1: float = 0.9,
        b: float = 0.4,
        stemmer: str = "porter",
        stop_words: str = "lucene",
    ) -> None:
        super().__init__(order, device)
        if not 0 <= k1 < float("inf"):
            raise UsageError(f"bm25: k1 must be 0 or more, not {k1}")
        if not 0 <= b <= 1:
            raise UsageError(f"bm25: b must lie between 0 and 1, not {b}")
        self.k1, self.b, self.stemmer, self.stop_words = k1, b, stemmer, stop_words
        self._analyzer = EnglishAnalyzer(stemmer, stop_words)
        self._terms: dict[str, int] = {}
        self._distinct, self._counted = array("i"), array("i")  # per document: distinct terms, and words
        self._found_terms, self._times = array("i"), array("i")  # per document and distinct term: term id, and frequency
        self._postings: Postings | None = None
        self._documents = 0

    def __len__(self) -> int:
        return self._documents

    def add(self, shard: Sequence[str]) -> None:
        if self._postings is not None and not self._distinct:
            raise ArtifactError("an opened bm25 index takes no more documents; build a new one")
        for row, text in enumerate(shard, start=len(self)):
            if not isinstance(text, str):
                raise DataError(f"row {row}: expected a text, found {type(text).__name__}")
            counts = Counter(self._analyzer.terms(text))
            self._found_terms.extend(self._terms.setdefault(term, len(self._terms)) for term in counts)
            self._times.extend(counts.values())
            self._distinct.append(len(counts))
            self._counted.append(counts.total())
        self._documents = len(self._distinct)
        self._postings = None

    def _renumbered(self) -> None:
        """Renumber terms alphabetically, so that nothing depends on document order."""
        names = sorted(self._terms)
        ranks = np.empty(len(names), np.int32)
        ranks[[self._terms[name] for name in names]] = np.arange(len(names))
        self._terms = {name: rank for rank, name in enumerate(names)}
        terms = np.asarray(self._found_terms)  # a view: changed in place
        for first in range(0, len(terms), TERMS_AT_ONCE):
            part = slice(first, first + TERMS_AT_ONCE)
            terms[part] = ranks[terms[part]]

    def _stretches(self) -> Iterator[Texts]:
        """The documents as sparse rows of BM25 weights, one window at a time."""
        terms, term_counts, word_counts = (np.asarray(column) for column in (self._found_terms, self._times, self._counted))
        starts = np.concatenate([[0], np.cumsum(self._distinct, dtype=np.int64)])
        document_frequencies = np.zeros(len(self._terms), np.int64)
        for first in range(0, len(terms), TERMS_AT_ONCE):
            document_frequencies += np.bincount(terms[first : first + TERMS_AT_ONCE], minlength=len(document_frequencies))
        idf = np.log1p((len(self) - document_frequencies + 0.5) / (document_frequencies + 0.5))
        mean_length = max(word_counts.mean(), 1.0 / len(self)) if len(self) else 1.0
        length_norms = self.k1 * (1 - self.b + self.b * word_counts / mean_length)
        for first in range(0, len(self), self.window):
            window_starts = starts[first : first + self.window + 1]
            part = slice(window_starts[0], window_starts[-1])
            entry_norms = np.repeat(length_norms[first : first + self.window], np.diff(window_starts))
            weights = idf[terms[part]] * term_counts[part] / (term_counts[part] + entry_norms)
            yield Texts(window_starts - window_starts[0], terms[part].astype(np.int64), weights.astype(np.float32))

    def _highest(self) -> np.ndarray:
        highest = np.zeros(len(self._terms), np.float32)
        for texts in self._stretches():
            np.maximum.at(highest, texts.terms, texts.weights)
        return highest

    def _weighed(self) -> Postings:
        if self._postings is None:
            self._renumbered()
            self._postings = Postings(**kept(self._stretches(), self._highest()), window=self.window, signed=False)
        return self._postings

    def _read(self, queries: Sequence[str]) -> Texts:
        """Terms of the queries and their frequencies; terms that no document has are dropped."""
        counters = [Counter(self._terms[term] for term in self._analyzer.terms(text) if term in self._terms) for text in queries]
        starts = np.concatenate([[0], np.cumsum([len(terms) for terms in counters])]).astype(np.int64)
        terms = np.array([term for counts in counters for term in counts], dtype=np.int64)
        return Texts(starts, terms, np.array([count for counts in counters for count in counts.values()], dtype=np.float32))

    def _found(self, queries: Sequence[str], depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        postings, id_ranks = self._weighed(), self.places
        rank_found(*postings.search(self._read(queries), id_ranks, depth), id_ranks, rows, scores)

    def _paired(self, queries: Sequence[str], query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        postings = self._weighed()
        return postings.paired(self._read(queries), query_rows, document_rows)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": len(self._terms), "window": self.window}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {} if self._postings is None else self._postings.arrays()

    def save(self, folder: Path | str) -> None:
        """Write the index; if it was not searched yet, it is built on disk, one window of documents at a time."""
        super().save(folder)
        if self._postings is None:
            self._renumbered()
            with Files(Path(folder)) as files:
                write(self._stretches(), self._highest(), files)
        names = sorted(self._terms, key=self._terms.__getitem__)
        (Path(folder) / VOCABULARY).write_text(json.dumps(names, ensure_ascii=False) + "\n", encoding="utf-8")

    def _restore(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        names = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self._terms = {name: rank for rank, name in enumerate(names)}
        self._documents = settings["documents"]
        if len(names) != settings["vocabulary"]:
            raise ValueError(f"{VOCABULARY} holds {len(names)} terms, not {settings['vocabulary']}")
        self.window = settings.get("window", self.window)
        self._postings = Postings.restored(arrays, self.window, False, self._documents, len(names))
