"""Representations by slow, obvious loops, in Python numbers."""

import math

import torch
from torch.nn.utils.rnn import pad_sequence


def dense(query, document):
    """The inner product of two lists of numbers."""
    return math.fsum(a * b for a, b in zip(query, document, strict=True))


def sparse(query, document):
    """The inner product of two dictionaries term -> weight."""
    return math.fsum(weight * document.get(term, 0.0) for term, weight in query.items())


def late_interaction(query, document):
    """For every query token its best document token, added up."""
    return math.fsum(max(dense(token, other) for other in document) for token in query)


def lexical(logits):
    """term -> log(1 + relu(its largest logit over positions)), where that is positive; logits is a list of rows."""
    best = {term: max(row[term] for row in logits) for term in range(len(logits[0]))}
    return {term: math.log1p(value) for term, value in best.items() if value > 0}


def mean(rows):
    """The mean of lists of numbers."""
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def attention(query, key, value, mask):
    """Softmax of scaled dot products over the tokens where `mask` is true, for one head of one text; all are lists of rows."""
    mixed = []
    for row in query:
        weights = [math.exp(dense(row, other) / math.sqrt(len(row))) if visible else 0.0 for other, visible in zip(key, mask, strict=True)]
        total = math.fsum(weights)
        mixed.append([math.fsum(w * v for w, v in zip(weights, column, strict=True)) / total for column in zip(*value, strict=True)])
    return mixed


def exact_match(query, document):
    """For every query token its best document token of the same term, at least 0, added up; both are lists of (term, vector)."""
    return math.fsum(max([0.0, *(dense(token, other) for name, other in document if name == term)]) for term, token in query)


def prune_terms(text, most, least):
    """The heaviest terms of a text, term -> weight: at most `most`, each at least `least`, sorted by term."""
    order = sorted((term for term in text if least is None or text[term] >= least), key=lambda term: (-text[term], term))
    return {term: text[term] for term in sorted(order[:most])}


def ward_clusters(points, count):
    """Clusters merged two at a time, the pair that adds least to the squared distances from the means (Ward 1963)."""
    groups = [[index] for index in range(len(points))]

    def spread(group):
        mean = points[group].mean(0)
        return float(((points[group] - mean) ** 2).sum())

    while len(groups) > count:
        pairs = [(left, right) for index, left in enumerate(groups) for right in groups[index + 1 :]]
        left, right = min(pairs, key=lambda pair: spread(pair[0] + pair[1]) - spread(pair[0]) - spread(pair[1]))
        groups = [group for group in groups if group not in (left, right)] + [left + right]
    ordered = sorted(map(sorted, groups))
    return [next(number for number, group in enumerate(ordered) if index in group) for index in range(len(points))]


def pad(texts):
    """The vectors [B, L, D] of a `MultiVector`, padded with zeros, and the mask [B, L] of real tokens."""
    parts = texts.vectors.float().split(texts.starts.diff().tolist())
    masks = [torch.ones(len(part), dtype=torch.bool) for part in parts]
    return pad_sequence(parts, batch_first=True), pad_sequence(masks, batch_first=True)


def maxsim(queries, query_mask, documents, document_mask):
    """queries [Q, L, D], documents [N, M, D], masks true on real tokens -> [Q, N] (Khattab and Zaharia 2020, eq. 3)."""
    similarity = torch.einsum("qld,nmd->qnlm", queries, documents)
    similarity = similarity.masked_fill(~document_mask[None, :, None], float("-inf"))  # padding never wins
    return similarity.amax(dim=-1).masked_fill(~query_mask[:, None], 0.0).sum(dim=-1)
