"""Evidence of experts for a document, by loops over terms and tokens."""


def shared_terms(query, document):
    """{term: (query's weight, document's, product)} of the shared terms; both are dictionaries of weights.

    >>> shared_terms({"owl": 2.0, "cat": 1.0}, {"owl": 0.5})
    {'owl': (2.0, 0.5, 1.0)}
    """
    return {term: (weight, document[term], weight * document[term]) for term, weight in query.items() if document.get(term)}


def token_alignment(query, document):
    """For each query vector, the index of the document vector with the largest inner product, and the product.

    >>> token_alignment([[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.25], [0.25, 0.75]])
    [(0, 0.5), (1, 0.75)]
    """
    alignment = []
    for token in query:
        products = [sum(a * b for a, b in zip(token, other, strict=True)) for other in document]
        alignment.append((products.index(max(products)), max(products)))
    return alignment


def came_parts(lists, document, depth):
    """Each list's contribution to a document's score: its score there, or that of rank `depth`; 0, or less, in a shorter list."""
    missing = [hits[depth - 1][1] if len(hits) == depth else min([0.0, *dict(hits).values()]) for hits in lists]
    return [dict(hits).get(document, score) for hits, score in zip(lists, missing, strict=True)]


def rrf_parts(lists, document, depth, constant=60):
    """Each list's contribution to a document's score: the reciprocal of its rank."""
    ranks = [[name for name, _ in hits] for hits in lists]
    return [1 / (constant + names.index(document) + 1) if document in names else 0.0 for names in ranks]
