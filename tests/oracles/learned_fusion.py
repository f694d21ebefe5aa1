"""A learned fusion by dictionaries and loops: features of one query's lists, its score, its loss."""

import math


def hit_features(hits: dict[int, float], document: int) -> list[float]:
    if document not in hits:
        return [0.0] * 4
    low, high = min(hits.values()), max(hits.values())
    rank = list(hits).index(document) + 1
    return [(hits[document] - low) / (high - low) if high > low else 0.0, 61 / (60 + rank), 1 / rank, 1.0]


def document_features(lists: list[dict[int, float]], document: int) -> list[float]:
    each = [hit_features(hits, document) for hits in lists]
    levels = [one[0] for one in each]
    return [value for one in each for value in one] + [min(levels), max(levels), float(all(document in hits for hits in lists))]


def list_features(hits: dict[int, float]) -> list[float]:
    if not hits:
        return [0.0] * 5
    scores = list(hits.values())
    best = scores[:100]
    levels = [(score - best[-1]) / (best[0] - best[-1]) if best[0] > best[-1] else 0.0 for score in best]
    shares = [level / sum(levels) if sum(levels) else 0.0 for level in levels]
    entropy = -sum(share * math.log(share) for share in shares if share > 0) / math.log(max(len(best), 2))
    return [scores[0], scores[0] - scores[:2][-1], scores[0] - scores[:10][-1], scores[0] - scores[-1], entropy]


def list_pair_features(first: dict[int, float], second: dict[int, float]) -> list[float]:
    def common(depth: int) -> int:
        return len({*list(first)[:depth]} & {*list(second)[:depth]})

    overlap = sum(0.1 * 0.9 ** (depth - 1) * common(depth) / depth for depth in range(1, 101))
    return [common(10) / 10, common(100) / 100, overlap]


def loss(scores: list[float], targets: list[float]) -> float:
    total = math.log(sum(math.exp(score) for score in scores))
    return -sum(target * (score - total) for score, target in zip(scores, targets, strict=True))
