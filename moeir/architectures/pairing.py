"""Tokenization of cross-encoder input: queries and documents are tokenized once each, then combined into pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeir.architectures.base import Architecture, ReadingRules
from moeir.backbones.pairs import Bodies, Frame, Numbers, Pairs
from moeir.backbones.tokenizer import TextReader
from moeir.errors import UsageError
from moeir.records.texts import FIELD_SIGN, PARTS


@dataclass(frozen=True)
class Pairing:
    """Input configuration of a cross-encoder with its tokenizer: queries of at most `query_length` tokens including two special ones,
    pairs of at most `document_length`, to which the document is truncated. `field_indices` are the fields that are read."""

    reader: TextReader
    rules: ReadingRules
    frame: Frame
    parts: tuple[int, ...]
    separate: bool

    @classmethod
    def of(cls, tokenizer: TextReader, input_config: ReadingRules, architecture: Architecture) -> "Pairing":
        """For a cross-encoder; UsageError for lengths that leave no room for a document."""
        template = tokenizer.frame()
        length_without_document = input_config.query_length - 2 + template.size
        if length_without_document >= input_config.document_length:
            reason = (
                f"a query of {input_config.query_length} tokens leaves no room for a document in a pair of {input_config.document_length}"
            )
            raise UsageError(f"--query-length {input_config.query_length}: {reason}; lower it, or raise --document-length")
        return cls(tokenizer, input_config, template, tuple(PARTS.index(name) for name in architecture.fields), architecture.separate)

    def ids(self, texts: Sequence[str], side: str, *, whole: bool = False) -> list[list[int]]:
        """Tokens without special ones; a document is a `Text.joined_fields`. Truncated to fit into a pair unless `untruncated`."""
        if side == "query":
            return [ids[: self.rules.query_length - 2] for ids in self.reader.bodies(self.rules.prefixed(texts, "query"))]
        budget = None if whole else self.rules.document_length - self.frame.size
        return [ids[:budget] for ids in self._documents(texts)]

    def _documents(self, texts: Sequence[str]) -> list[list[int]]:
        fields = [text.split(FIELD_SIGN) if FIELD_SIGN in text else ["", "", text] for text in texts]
        selected = [[parts[index] for index in self.parts if parts[index]] for parts in fields]
        if not self.separate:
            selected = [[" ".join(parts)] for parts in selected]
        flat = self.reader.bodies([part for parts in selected for part in self._prefixed(parts)])
        bodies, documents = iter(flat), []
        for parts in selected:
            ids: list[int] = []
            for number in range(len(parts)):
                ids += [self.reader.signs.separator] * (number > 0) + next(bodies)
            documents.append(ids)
        return documents

    def _prefixed(self, parts: list[str]) -> list[str]:
        return [*self.rules.prefixed(parts[:1], "document"), *parts[1:]]

    def joined(self, queries: Bodies, documents: Bodies, query: Numbers, document: Numbers) -> Pairs:
        """Pairs of rows `query` and `document` [n]: each document contributes as many first tokens as fit (FirstP)."""
        sizes = documents.starts[document + 1] - documents.starts[document]
        lengths = np.minimum(sizes, self.room(queries, query))
        return Pairs(self.frame, queries, documents, query, document, np.zeros(len(query), dtype=np.int64), lengths)

    def room(self, queries: Bodies, query: Numbers) -> Numbers:
        """[n] document tokens that fit into a pair with each of the queries `query`."""
        query_lengths = queries.starts[query + 1] - queries.starts[query]
        return np.asarray(self.rules.document_length - self.frame.size - query_lengths)
