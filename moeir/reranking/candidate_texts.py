"""Texts of a run: query texts in its order, documents streamed from the corpus, and tokens cached per tokenizer and input format."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.packed_pairs import RaggedIds
from moeir.errors import DataError
from moeir.records import texts
from moeir.records.runs import Integers, Run

TEXTS_PER_BATCH = 1024


@dataclass(frozen=True)
class TokenizedTexts:
    """Tokens of all queries and of the requested documents: document `code` of the run is row rows[code], or -1."""

    queries: RaggedIds
    documents: RaggedIds
    rows: Integers


@dataclass
class CandidateTexts:
    """Query texts of a run in its order, and the path of its documents; `document_ids` are their ids, by code."""

    queries: Sequence[str]
    document_ids: Sequence[str]
    corpus: Path
    keep_empty: bool = False
    _tokenized: dict[str, TokenizedTexts] = field(default_factory=dict, repr=False)

    @classmethod
    def from_run(cls, run: Run, queries: Path, corpus: Path, *, keep_empty: bool = False, label: str = "the run") -> "CandidateTexts":
        """Read the query texts of a run; DataError if one is not in the file."""
        by_id = {text.id: text.content for text in texts.read_texts(queries)}
        for query in run.queries:
            if query not in by_id:
                raise DataError(f"{queries}: has no query {query!r}, which {label} holds; do the ids agree?")
        return cls([by_id[query] for query in run.queries], run.document_ids, corpus, keep_empty)

    def iter_documents(self, codes: Integers, *, join_fields: bool) -> Iterator[tuple[int, str]]:
        """Codes and texts of documents in the order of the corpus; DataError if one is missing."""
        wanted = {self.document_ids[code]: code for code in np.unique(codes).tolist()}
        for text in texts.read_texts(self.corpus, keep_empty=self.keep_empty) if wanted else ():
            code = wanted.pop(text.id, None)
            if code is not None:
                yield code, text.joined_fields if join_fields else text.content
            if not wanted:
                return
        if wanted:
            more = f" ({len(wanted)} such documents)" if len(wanted) > 1 else ""
            raise DataError(f"{self.corpus}: has no document {min(wanted)!r}, which is to be reranked{more}; do the ids agree?")

    def tokenize(self, checkpoint: RetrievalModel, codes: Integers, *, whole: bool) -> TokenizedTexts:
        """Tokens of the queries and documents for a cross-encoder, truncated to fit a pair, or `whole`."""
        pairing = checkpoint.pair_tokenizer
        key = repr((checkpoint.tokenizer.digest, asdict(pairing.input_config), pairing.field_indices, pairing.separate, whole))
        tokenized = self._tokenized.get(key)
        if tokenized is None or (tokenized.rows[codes] < 0).any():
            self._tokenized[key] = tokenized = self._tokenize_all(checkpoint, codes, whole=whole)
        return tokenized

    def _tokenize_all(self, checkpoint: RetrievalModel, codes: Integers, *, whole: bool) -> TokenizedTexts:
        pairing, kind = checkpoint.pair_tokenizer, checkpoint.tokenizer.id_dtype
        rows, sizes, parts = np.full(len(self.document_ids), -1, dtype=np.int64), [0], [np.empty(0, dtype=kind)]
        documents_of_corpus = self.iter_documents(codes, join_fields=True)
        while window := list(islice(documents_of_corpus, TEXTS_PER_BATCH)):
            rows[[code for code, _ in window]] = np.arange(len(sizes) - 1, len(sizes) - 1 + len(window))
            ids = pairing.token_ids([text for _, text in window], "document", untruncated=whole)
            sizes += [len(text) for text in ids]
            parts.append(np.fromiter((number for text in ids for number in text), kind))
        documents = RaggedIds(np.concatenate(parts), np.cumsum(sizes))
        return TokenizedTexts(RaggedIds.from_lists(pairing.token_ids(self.queries, "query")), documents, rows)
