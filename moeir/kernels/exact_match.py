"""The best document token of the same term for each query token (COIL), without [Q, N, L, M]: only pairs of equal terms are multiplied."""

import torch
from torch import Tensor

from moeir.kernels.token_budget import split_by_tokens

PAIRS_AT_ONCE = 2**16


@torch.no_grad()
def find_best_matches(
    queries: Tensor, query_terms: Tensor, documents: Tensor, document_terms: Tensor, document_rows: Tensor
) -> tuple[Tensor, Tensor]:
    """The pairs (query token, document token) that score: for each query token and document, the best token of the same term, if positive.

    queries [T, D], query_terms [T], documents [U, D], document_terms [U], document_rows [U] (the document of each token,
    ascending) -> query tokens and document tokens, each [pairs]. Ties go to the first token.
    """
    order = document_terms.argsort(stable=True)  # by term, then document, then position
    terms = document_terms[order].contiguous()
    first, last = (torch.searchsorted(terms, query_terms, right=right) for right in (False, True))
    opens_group = torch.ones_like(terms, dtype=torch.bool)
    opens_group[1:] = (terms[1:] != terms[:-1]) | (document_rows[order][1:] != document_rows[order][:-1])
    groups = opens_group.cumsum(0) - 1  # tokens of one term in one document
    matches, pair_counts = [torch.zeros(2, 0, dtype=torch.int64, device=terms.device)], (last - first).tolist()
    for begin, end in split_by_tokens(pair_counts, PAIRS_AT_ONCE):
        lengths, total = (last - first)[begin:end], sum(pair_counts[begin:end])
        query_rows = torch.repeat_interleave(torch.arange(begin, end, device=terms.device), lengths, output_size=total)
        offsets = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths, output_size=total)
        positions = torch.arange(len(query_rows), device=terms.device) - offsets + first[query_rows]
        products = (queries.index_select(0, query_rows) * documents.index_select(0, order[positions])).sum(-1)
        opens_pair = torch.ones_like(query_rows, dtype=torch.bool)
        opens_pair[1:] = (query_rows[1:] != query_rows[:-1]) | (groups[positions][1:] != groups[positions][:-1])
        pair_groups = opens_pair.cumsum(0) - 1  # pairs of one query token with one document
        best = products.new_full((len(opens_pair),), float("-inf")).scatter_reduce(0, pair_groups, products, "amax")
        winners = (((products == best[pair_groups]) & (products > 0)) | products.isnan()).nonzero()[:, 0]
        winner_groups = pair_groups[winners]
        winners = winners[torch.cat([winner_groups.new_ones(len(winner_groups[:1])), winner_groups.diff()]).bool()]
        matches.append(torch.stack([query_rows[winners], order[positions[winners]]]))
    pairs = torch.cat(matches, 1)
    return pairs[0], pairs[1]
