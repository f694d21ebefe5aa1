"""Explanations of search results: rank, score and part of each expert, with shared terms or the best document token per query token.

Evidence is scored from what the engine stores, pair by pair of single query terms or tokens with a document, so that the numbers are
those of the search.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.tokens import PackedTokens
from moeir.errors import UsageError
from moeir.heads.tokenwise import TokenVectorHead
from moeir.indexes.base import Index
from moeir.records.runs import format_score
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse

Evidence = dict[str, Any]
Pieces = Sequence[str | None] | None  # the token piece of each vector of a text, None if unknown


def round_score(number: float) -> float:
    """Round a number to nine significant digits, as scores in files."""
    return float(format_score(number))


def shared_terms(engine: Index, query: Sparse, rows: np.ndarray, checkpoint: RetrievalModel) -> list[Evidence]:
    """Terms that each document shares with the query, by descending product: both weights and their product."""
    weights = query.weights.detach().cpu().double().numpy()
    singles = Sparse(torch.arange(len(weights) + 1), query.terms.cpu(), torch.ones(len(weights)), query.vocabulary)
    names = [checkpoint.tokenizer.id_to_token(number) for number in query.terms.tolist()]
    return [{"terms": shared} for shared in _shared_term_rows(names, weights, _score_single_terms(engine, singles, len(weights), rows))]


def shared_words(engine: Index, query: str, rows: np.ndarray) -> list[Evidence]:
    """Words that each document shares with a BM25 query: query weights are counts, document weights are those of BM25."""
    counts: dict[str, int] = {}
    for word in query.split():
        counts[word] = counts.get(word, 0) + 1
    weights = np.array(list(counts.values()), dtype=np.float64)
    return [{"terms": shared} for shared in _shared_term_rows(list(counts), weights, _score_single_terms(engine, list(counts), len(counts), rows))]


def token_alignment(engine: Index, query: MultiVector, rows: np.ndarray, query_pieces: Pieces, document_pieces: Sequence[Pieces]) -> list[Evidence]:
    """For each document and query token the best document token: its position among the vectors, its piece, the similarity.

    `query_pieces` are the pieces of the query, `document_pieces` those of each document. Positions need stored vectors.
    """
    vectors = query.vectors.detach().cpu().double().numpy()
    names = query_pieces if query_pieces is not None else [None] * len(vectors)
    evidence: list[Evidence] = []
    single_scores: np.ndarray | None = None
    for column, (row, pieces) in enumerate(zip(rows.tolist(), document_pieces, strict=True)):
        stored = engine.token_vectors(row)
        if stored is None:
            if single_scores is None:
                singles = MultiVector(query.vectors.cpu(), torch.arange(len(vectors) + 1))
                single_scores = _score_single_terms(engine, singles, len(vectors), rows)
            evidence.append(
                {
                    "tokens": [
                        {"query": name, "similarity": round_score(score)} for name, score in zip(names, single_scores[:, column], strict=True)
                    ]
                }
            )
        else:
            evidence.append({"tokens": _best_tokens(names, vectors, stored.astype(np.float64), pieces)})
    return evidence


def exact_matches(engine: Index, query: ExactMatch, rows: np.ndarray, checkpoint: RetrievalModel) -> list[Evidence]:
    """For each document and query token with an exact match, the best product."""
    names = [checkpoint.tokenizer.id_to_token(number) for number in query.terms.tolist()]
    singles = ExactMatch(query.terms.cpu(), query.vectors.cpu(), torch.arange(len(names) + 1))
    products = _score_single_terms(engine, singles, len(names), rows)
    return [
        {"tokens": [{"query": name, "similarity": round_score(score)} for name, score in zip(names, column, strict=True) if score > 0]}
        for column in products.T.tolist()
    ]


def token_pieces(checkpoint: RetrievalModel, expert: str, text: str, side: str, count: int) -> Pieces:
    """Token piece of each of the `count` vectors of a text; None if the numbers differ (pooled tokens, another text)."""
    ids, silent = checkpoint.token_ids([text], side)
    head = checkpoint.architecture.heads[expert]
    assert isinstance(head, TokenVectorHead)
    mask = head.token_mask(PackedTokens.from_lists(ids, side, silent).to(checkpoint.device)).tolist()
    names: list[str | None] = [checkpoint.tokenizer.id_to_token(number) for number, keep in zip(ids[0], mask, strict=True) if keep]
    if head.padding == "zero" and side != "query":
        names.append(None)
    return names if len(names) == count else None


def _best_tokens(names: Sequence[str | None], query: np.ndarray, document: np.ndarray, pieces: Pieces) -> list[Evidence]:
    """query [L, D], document [M, D]; a document without tokens, which is never retrieved, has none."""
    if not len(document):
        return []
    similarity = query @ document.T
    best = similarity.argmax(axis=1)
    evidence: list[Evidence] = []
    for row, position in enumerate(best.tolist()):
        entry: Evidence = {"query": names[row], "position": position}
        if pieces is not None:
            entry["document"] = pieces[position]
        evidence.append(entry | {"similarity": round_score(similarity[row, position])})
    return evidence


def _shared_term_rows(names: Sequence[str], weights: np.ndarray, documents: np.ndarray) -> list[list[Evidence]]:
    """weights [T] of the query, [T, n] of the documents -> for each document the terms with a weight on both sides."""
    products = weights[:, None] * documents.astype(np.float64)
    evidence: list[list[Evidence]] = []
    for column, product in zip(documents.T, products.T, strict=True):
        order = [term for term in np.argsort(-product, kind="stable").tolist() if product[term]]
        evidence.append(
            [
                {"term": names[term], "query": round_score(weights[term]), "document": round_score(column[term]), "product": round_score(product[term])}
                for term in order
            ]
        )
    return evidence


def _score_single_terms(engine: Index, singles: Any, count: int, rows: np.ndarray) -> np.ndarray:
    """Scores of `count` single-term queries with each document: float32 [count, n]."""
    try:
        scores = engine.score_pairs(singles, np.repeat(np.arange(count), len(rows)), np.tile(rows, count))
    except UsageError as problem:
        raise UsageError(f"an explanation needs an engine that scores chosen documents: {problem}") from None
    return scores.reshape(count, len(rows))
