"""Which document token each query token meets best among those of the same term, without [Q, N, L, M] and without a pair that differs."""

from collections.abc import Iterator

import torch
from torch import Tensor

PAIRS_AT_ONCE = 2**16


@torch.no_grad()
def best_matches(queries: Tensor, query_terms: Tensor, documents: Tensor, document_terms: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs (query token, document token) that score: of each query token, the best token of its term in each document, if positive.

    queries [T, D], query_terms [T], documents [U, D], document_terms [U], owners [U] (the document of each token, ascending) -> query
    tokens and document tokens, each [pairs]. Of equals the first is taken.
    """
    order = document_terms.argsort(stable=True)  # by term, then document, then place
    terms = document_terms[order].contiguous()
    first, last = (torch.searchsorted(terms, query_terms, right=right) for right in (False, True))
    fresh = torch.ones_like(terms, dtype=torch.bool)
    fresh[1:] = (terms[1:] != terms[:-1]) | (owners[order][1:] != owners[order][:-1])
    groups = fresh.cumsum(0) - 1  # the tokens of one term in one document
    found = []
    for begin, end, total in _blocks((last - first).tolist()):
        lengths = (last - first)[begin:end]
        token = torch.repeat_interleave(torch.arange(begin, end, device=terms.device), lengths, output_size=total)
        before = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths, output_size=total)
        place = torch.arange(len(token), device=terms.device) - before + first[token]
        product = (queries.index_select(0, token) * documents.index_select(0, order[place])).sum(-1)
        new = torch.ones_like(token, dtype=torch.bool)
        new[1:] = (token[1:] != token[:-1]) | (groups[place][1:] != groups[place][:-1])
        rival = new.cumsum(0) - 1  # pairs of one query token with one document
        best = product.new_full((len(new),), float("-inf")).scatter_reduce(0, rival, product, "amax")
        winners = ((product == best[rival]) & (product > 0)).nonzero()[:, 0]
        seen = rival[winners]
        winners = winners[torch.cat([seen.new_ones(len(seen[:1])), seen.diff()]).bool()]
        found.append(torch.stack([token[winners], order[place[winners]]]))
    pairs = torch.cat(found, 1) if found else torch.zeros(2, 0, dtype=torch.int64, device=terms.device)
    return pairs[0], pairs[1]


def _blocks(lengths: list[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring query tokens with at most PAIRS_AT_ONCE pairs together, or one token: first, last + 1, pairs."""
    begin = pairs = 0
    for place, length in enumerate(lengths):
        if place > begin and pairs + length > PAIRS_AT_ONCE:
            yield begin, place, pairs
            begin, pairs = place, 0
        pairs += length
    if pairs:
        yield begin, len(lengths), pairs
