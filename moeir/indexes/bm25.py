"""BM25 over texts: weights of terms by Lucene's formula, documents found over postings."""

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
    """BM25 as Lucene scores it, over terms as Lucene's EnglishAnalyzer finds them.

    weight of term t in document d = log(1 + (N − n + ½) / (n + ½)) · f / (f + k1 · (1 − b + b · |d| / mean |d|)), where n
    documents hold t, f times in d (Robertson and Zaragoza 2009, Kamphuis et al. 2020 "Lucene (accurate)"). A query's
    score adds the weights of its terms, repeated ones as often as they occur. Only documents that share a term are found.
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
        self._distinct, self._counted = array("i"), array("i")  # of every document: how many terms, and how many words
        self._found_terms, self._times = array("i"), array("i")  # its terms, and how often each occurs
        self._postings: Postings | None = None
        self._documents = 0

    def __len__(self) -> int:
        return self._documents

    def add(self, shard: Sequence[str]) -> None:
        if self._postings is not None and not self._distinct:
            raise ArtifactError("a bm25 index that was opened takes no more documents; build it anew")
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
        """Number terms alphabetically, so that nothing depends on their first use."""
        names = sorted(self._terms)
        ranks = np.empty(len(names), np.int32)
        ranks[[self._terms[name] for name in names]] = np.arange(len(names))
        self._terms = {name: rank for rank, name in enumerate(names)}
        terms = np.asarray(self._found_terms)  # where they lie
        for first in range(0, len(terms), TERMS_AT_ONCE):
            part = slice(first, first + TERMS_AT_ONCE)
            terms[part] = ranks[terms[part]]

    def _stretches(self) -> Iterator[Texts]:
        """The documents with their terms' weights, a window of them at a time."""
        terms, times, counted = (np.asarray(column) for column in (self._found_terms, self._times, self._counted))
        starts = np.concatenate([[0], np.cumsum(self._distinct, dtype=np.int64)])
        holders = np.zeros(len(self._terms), np.int64)
        for first in range(0, len(terms), TERMS_AT_ONCE):
            holders += np.bincount(terms[first : first + TERMS_AT_ONCE], minlength=len(holders))
        rarity = np.log1p((len(self) - holders + 0.5) / (holders + 0.5))
        length = self.k1 * (1 - self.b + self.b * counted / max(counted.mean(), 1.0 / len(self))) if len(self) else counted
        for first in range(0, len(self), self.window):
            own = starts[first : first + self.window + 1]
            part = slice(own[0], own[-1])
            owners = np.repeat(length[first : first + self.window], np.diff(own))
            weights = rarity[terms[part]] * times[part] / (times[part] + owners)
            yield Texts(own - own[0], terms[part].astype(np.int64), weights.astype(np.float32))

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
        """The terms of queries and how often each occurs; terms of no document left out."""
        known = [Counter(self._terms[term] for term in self._analyzer.terms(text) if term in self._terms) for text in queries]
        starts = np.concatenate([[0], np.cumsum([len(terms) for terms in known])]).astype(np.int64)
        terms = np.array([term for counts in known for term in counts], dtype=np.int64)
        return Texts(starts, terms, np.array([count for counts in known for count in counts.values()], dtype=np.float32))

    def _found(self, queries: Sequence[str], depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        postings, places = self._weighed(), self.places
        rank_found(*postings.search(self._read(queries), places, depth), places, rows, scores)

    def _paired(self, queries: Sequence[str], query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        postings = self._weighed()
        return postings.paired(self._read(queries), query_rows, document_rows)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": len(self._terms), "window": self.window}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {} if self._postings is None else self._postings.arrays()

    def save(self, folder: Path | str) -> None:
        """Write the index; one that was not searched yet is built on disk, a window of documents at a time."""
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
