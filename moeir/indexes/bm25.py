"""BM25 over texts: bm25s weighs the terms, our postings find the documents."""

import json
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import bm25s
import numpy as np

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes.analyzer import EnglishAnalyzer
from moeir.indexes.base import Index
from moeir.indexes.inverted import opened_postings, rank_found
from moeir.indexes.postings import ROWS_AT_ONCE, Postings

VOCABULARY = "vocabulary.json"
NOTHING = Postings(np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


class Bm25(Index):
    """BM25 as Lucene scores it, over terms as Lucene's EnglishAnalyzer finds them.

    weight of term t in document d = log(1 + (N − n + ½) / (n + ½)) · f / (f + k1 · (1 − b + b · |d| / mean |d|)), where n
    documents hold t, f times in d (Robertson and Zaragoza 2009, Kamphuis et al. 2020 "Lucene (accurate)"). A query's
    score adds the weights of its terms, repeated ones as often as they occur. Only documents that share a term are found.
    """

    kind: ClassVar[str] = "text"
    unfound: ClassVar[float] = 0.0
    rows_at_once = ROWS_AT_ONCE

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
        self._texts: list[array[int]] = []
        self._postings: Postings | None = None
        self._documents = 0

    def __len__(self) -> int:
        return self._documents

    def add(self, shard: Sequence[str]) -> None:
        if self._postings is not None and not self._texts:
            raise ArtifactError("a bm25 index that was opened takes no more documents; build it anew")
        for row, text in enumerate(shard, start=len(self)):
            if not isinstance(text, str):
                raise DataError(f"row {row}: expected a text, found {type(text).__name__}")
            self._texts.append(array("i", [self._terms.setdefault(term, len(self._terms)) for term in self._analyzer.terms(text)]))
        self._documents = len(self._texts)
        self._postings = None

    def _weighed(self) -> Postings:
        """Build once all shards are in; terms are renumbered alphabetically, so that nothing depends on their first use."""
        if self._postings is None:
            names = sorted(self._terms)
            ranks = {self._terms[name]: rank for rank, name in enumerate(names)}
            self._terms = {name: rank for rank, name in enumerate(names)}
            self._texts = [array("i", [ranks[term] for term in text]) for text in self._texts]
            self._postings = self._weights() if names else NOTHING
        return self._postings

    def _weights(self) -> Postings:
        model = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        texts = [text.tolist() for text in self._texts]
        model.index((texts, self._terms), create_empty_token=False, show_progress=False)
        columns = model.scores
        return Postings(columns["indptr"].astype(np.int64), columns["indices"].astype(np.int32), columns["data"].astype(np.float32))

    def _read(self, queries: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """starts int64 [Q + 1], terms int64 [nnz], how often each occurs float32 [nnz]; terms of no document left out."""
        known = [Counter(self._terms[term] for term in self._analyzer.terms(text) if term in self._terms) for text in queries]
        starts = np.concatenate([[0], np.cumsum([len(terms) for terms in known])]).astype(np.int64)
        terms = np.array([term for counts in known for term in counts], dtype=np.int64)
        return starts, terms, np.array([count for counts in known for count in counts.values()], dtype=np.float32)

    def _found(self, queries: Sequence[str], depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        postings, places = self._weighed(), self.places
        found, values = postings.search(*self._read(queries), places, depth, rows_at_once=min(self.rows_at_once, len(self)))
        rank_found(found, values, places, rows, scores)

    def _paired(self, queries: Sequence[str], query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        postings = self._weighed()
        return postings.paired(*self._read(queries), query_rows, document_rows)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": len(self._terms)}

    def _arrays(self) -> dict[str, np.ndarray]:
        postings = self._weighed()
        return {"starts": postings.starts, "rows": postings.rows, "weights": postings.weights}

    def save(self, folder: Path | str) -> None:
        super().save(folder)
        names = sorted(self._terms, key=self._terms.__getitem__)
        (Path(folder) / VOCABULARY).write_text(json.dumps(names, ensure_ascii=False) + "\n", encoding="utf-8")

    def _restore(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        names = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self._terms = {name: rank for rank, name in enumerate(names)}
        self._postings = opened_postings(arrays, settings["vocabulary"])
        self._documents = settings["documents"]
        if len(names) != settings["vocabulary"]:
            raise ValueError(f"{VOCABULARY} holds {len(names)} terms, not {settings['vocabulary']}")
