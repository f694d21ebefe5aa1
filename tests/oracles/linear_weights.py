"""The loss of a learned fusion by loops."""

import math


def loss(scores: list[float], targets: list[float]) -> float:
    total = math.log(sum(math.exp(score) for score in scores))
    return -sum(target * (score - total) for score, target in zip(scores, targets, strict=True))
