"""Usage of a router, decision by decision."""

import math


def count_usage(probabilities: list[list[float]]) -> tuple[list[int], list[float], float]:
    """Each expert's number of wins (largest probability) and its mean probability; the entropy of usage in nats."""
    experts = range(len(probabilities[0]))
    counts = [0 for _ in experts]
    for row in probabilities:
        counts[row.index(max(row))] += 1
    means = [sum(row[expert] for row in probabilities) / len(probabilities) for expert in experts]
    shares = [count / len(probabilities) for count in counts]
    return counts, means, -sum(share * math.log(share) for share in shares if share > 0)
