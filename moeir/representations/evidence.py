"""Evidence of a score: which terms or tokens of a query match a document, and what each match adds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeir.records.runs import format_score

Evidence = dict[str, Any]
Pieces = Sequence[str | None] | None  # the token piece of each vector of a text, None if unknown


@dataclass(frozen=True)
class ExplainedDocuments:
    """What `Representation.explain` may ask about the documents of a query; the numbers are those that the engine stores.

    `score`: every text of a representation with every document, float32 [texts, documents]. `token_vectors`: of each document the
    stored vectors of its tokens, None if the engine has none, and their pieces. `query_pieces`: the pieces of the query's vectors.
    """

    count: int
    score: Callable[[Any], np.ndarray]
    id_to_token: Callable[[int], str]
    query_pieces: Callable[[int], Pieces]
    token_vectors: Iterable[tuple[np.ndarray | None, Pieces]]


def round_score(number: float) -> float:
    """Round a number to nine significant digits, as scores in files."""
    return float(format_score(number))


def shared_terms(names: Sequence[str], weights: np.ndarray, documents: np.ndarray) -> list[Evidence]:
    """For each document the terms with a weight on both sides, by descending product: weights [T] of the query, [T, n] of the documents."""
    products = weights[:, None] * documents.astype(np.float64)
    evidence: list[Evidence] = []
    for column, product in zip(documents.T, products.T, strict=True):
        order = [term for term in np.argsort(-product, kind="stable").tolist() if product[term]]
        numbers = ((term, {"query": weights[term], "document": column[term], "product": product[term]}) for term in order)
        evidence.append(
            {"terms": [{"term": names[term], **{side: round_score(value) for side, value in own.items()}} for term, own in numbers]}
        )
    return evidence
