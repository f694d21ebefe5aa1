"""Texts of a run: query texts in its order, documents streamed from the corpus, and tokens cached per tokenizer and input format."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.pairs import Ragged
from moeir.errors import DataError
from moeir.records import texts
from moeir.records.runs import Integers, Run

TEXTS_AT_ONCE = 1024


@dataclass(frozen=True)
class Shelf:
    """Tokens of all queries and of the requested documents: document `code` of the run is row rows[code], or -1."""

    queries: Ragged
    documents: Ragged
    rows: Integers


@dataclass
class Library:
    """Query texts of a run in its order, and the path of its documents; `document_ids` are their ids, by code."""

    queries: Sequence[str]
    names: Sequence[str]
    corpus: Path
    keep_empty: bool = False
    _shelves: dict[str, Shelf] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, run: Run, queries: Path, corpus: Path, *, keep_empty: bool = False, label: str = "the run") -> "Library":
        """Read the query texts of a run; DataError if one is not in the file."""
        by_id = {text.id: text.content for text in texts.read(queries)}
        for query in run.queries:
            if query not in by_id:
                raise DataError(f"{queries}: has no query {query!r}, which {label} holds; do the ids agree?")
        return cls([by_id[query] for query in run.queries], run.names, corpus, keep_empty)

    def walked(self, codes: Integers, *, fielded: bool) -> Iterator[tuple[int, str]]:
        """Codes and texts of documents in the order of the corpus; DataError if one is missing."""
        wanted = {self.names[code]: code for code in np.unique(codes).tolist()}
        for text in texts.read(self.corpus, keep_empty=self.keep_empty) if wanted else ():
            code = wanted.pop(text.id, None)
            if code is not None:
                yield code, text.fielded if fielded else text.content
            if not wanted:
                return
        if wanted:
            more = f" ({len(wanted)} such documents)" if len(wanted) > 1 else ""
            raise DataError(f"{self.corpus}: has no document {min(wanted)!r}, which is to be reranked{more}; do the ids agree?")

    def shelf(self, checkpoint: OpenCheckpoint, codes: Integers, *, whole: bool) -> Shelf:
        """Tokens of the queries and documents for a cross-encoder, truncated to fit a pair, or `whole`."""
        pairing = checkpoint.pairing
        key = repr((checkpoint.reader.digest, asdict(pairing.rules), pairing.parts, pairing.separate, whole))
        tokenized = self._shelves.get(key)
        if tokenized is None or (tokenized.rows[codes] < 0).any():
            self._shelves[key] = tokenized = self._read(checkpoint, codes, whole=whole)
        return tokenized

    def _read(self, checkpoint: OpenCheckpoint, codes: Integers, *, whole: bool) -> Shelf:
        pairing, kind = checkpoint.pairing, checkpoint.reader.id_type
        rows, sizes, parts = np.full(len(self.names), -1, dtype=np.int64), [0], [np.empty(0, dtype=kind)]
        documents_of_corpus = self.walked(codes, fielded=True)
        while window := list(islice(documents_of_corpus, TEXTS_AT_ONCE)):
            rows[[code for code, _ in window]] = np.arange(len(sizes) - 1, len(sizes) - 1 + len(window))
            ids = pairing.ids([text for _, text in window], "document", whole=whole)
            sizes += [len(text) for text in ids]
            parts.append(np.fromiter((number for text in ids for number in text), kind))
        documents = Ragged(np.concatenate(parts), np.cumsum(sizes))
        return Shelf(Ragged.of(pairing.ids(self.queries, "query")), documents, rows)
