"""Query-document pairs for cross-encoders: each text is tokenized once, and pairs are assembled per batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from moeir.backbones.packed_tokens import Numbers, PackedTokens


@dataclass(frozen=True)
class PairTemplate:
    """Special tokens before a query, between query and document, and after the document; `token_types` of the five parts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    token_types: tuple[int, int, int, int, int]

    @property
    def special_token_count(self) -> int:
        """Number of special tokens of a pair."""
        return len(self.before) + len(self.between) + len(self.after)


@dataclass(frozen=True)
class RaggedIds:
    """Token ids [T] of n texts end to end, starts [n+1]: text n is ids[starts[n] : starts[n + 1]]."""

    ids: Numbers
    starts: Numbers

    @classmethod
    def from_lists(cls, texts: Sequence[Sequence[int]]) -> "RaggedIds":
        """Build from lists of ids.

        >>> RaggedIds.from_lists([[4, 5], [], [6]]).starts.tolist()
        [0, 2, 2, 3]
        """
        starts = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
        return cls(np.fromiter((token_id for text in texts for token_id in text), np.int64, int(starts[-1])), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class PackedPairs:
    """Pair n: query `query_rows[n]`, and the first `document_lengths[n]` tokens of document `document_rows[n]`."""

    template: PairTemplate
    queries: RaggedIds
    documents: RaggedIds
    query_rows: Numbers
    document_rows: Numbers
    document_lengths: Numbers

    @cached_property
    def lengths(self) -> Numbers:
        """[n] tokens of each pair."""
        return np.asarray(self.template.special_token_count + self._query_lengths + self.document_lengths)

    @cached_property
    def starts(self) -> Numbers:
        """[n+1] start of each pair, if all are concatenated."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def _query_lengths(self) -> Numbers:
        return np.asarray(self.queries.starts[self.query_rows + 1] - self.queries.starts[self.query_rows])

    def pack(self, rows: Sequence[int] | Numbers, side: str = "pair") -> PackedTokens:
        """The pairs of `rows`, in that order, with their token types."""
        pairs, template = np.asarray(rows, dtype=np.int64), self.template
        query_lengths, document_lengths = self._query_lengths[pairs], self.document_lengths[pairs]
        sizes = (len(template.before), query_lengths, len(template.between), document_lengths, len(template.after))
        parts = np.stack(np.broadcast_arrays(*sizes), axis=1)  # [n, 5] lengths of the five parts
        ends = parts.cumsum().reshape(parts.shape)
        ids = np.empty(int(parts.sum()), dtype=np.int64)
        for column, special_ids in ((0, template.before), (2, template.between), (4, template.after)):
            for offset, token_id in enumerate(special_ids):
                ids[ends[:, column] - len(special_ids) + offset] = token_id
        query_begins = self.queries.starts[self.query_rows[pairs]]
        document_begins = self.documents.starts[self.document_rows[pairs]]
        for column, texts, begins in ((1, self.queries, query_begins), (3, self.documents, document_begins)):
            target = concatenate_ranges(ends[:, column] - parts[:, column], parts[:, column])
            ids[target] = texts.ids[concatenate_ranges(begins, parts[:, column])]
        lengths = parts.sum(axis=1)
        starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        segments = None
        if any(template.token_types):
            segments = torch.from_numpy(np.repeat(np.tile(np.array(template.token_types, dtype=np.int64), len(pairs)), parts.ravel()))
        return PackedTokens(torch.from_numpy(ids), starts, side, tuple(lengths.tolist()), segments=segments)


def concatenate_ranges(begins: Numbers, sizes: Numbers) -> Numbers:
    """Concatenate the ranges of `sizes` numbers from `begins` on.

    >>> concatenate_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(begins - before, sizes))
