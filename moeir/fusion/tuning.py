"""Search for fusion options on judged queries. Only values of the measure are used, so any measure can be tuned for."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

MeanScorer: TypeAlias = Callable[[list[str]], list[float]]  # option values -> mean of the measure for each

COARSE_FACTORS = (0.0, 0.125, 0.25, 0.5, 2**-0.5, 2**0.5, 2.0, 4.0, 8.0)  # for one weight, in the first rounds
FINE_FACTORS = (2**-0.25, 2**-0.125, 2**0.125, 2**0.25)  # in the last rounds
MAX_ROUNDS = 10


def grid_search(steps: Sequence[str], means: MeanScorer) -> tuple[str, dict[str, float]]:
    """The value with the largest mean (the first of equals), and the mean of every value.

    >>> grid_search(["0", "1", "2"], lambda steps: [0.1, 0.3, 0.3])
    ('1', {'0': 0.1, '1': 0.3, '2': 0.3})
    """
    means_by_step = dict(zip(steps, means(list(steps)), strict=True))
    return max(means_by_step, key=lambda step: means_by_step[step]), means_by_step


def coordinate_search(starts: Sequence[Sequence[float]], means: MeanScorer) -> tuple[str, dict[str, float]]:
    """The best weights, joined by +, of a coordinate search, and the mean of every candidate.

    Starting at the best of `starts` (the first of equals), each weight in turn is multiplied by COARSE_FACTORS while the mean grows, then
    by FINE_FACTORS, at most MAX_ROUNDS rounds of each. The search is deterministic and its result is no worse than any start.

    >>> coordinate_search([[1, 1]], lambda steps: [-abs(float(step.split("+")[1]) - 0.25) for step in steps])[0]
    '1+0.25'
    """
    means_by_weights: dict[str, float] = {}

    def best(candidates: Sequence[Sequence[float]], current: Sequence[float] | None) -> Sequence[float]:
        new = list(dict.fromkeys(text for one in candidates if (text := format_weights(one)) not in means_by_weights))
        means_by_weights.update(zip(new, means(new) if new else [], strict=True))
        best_candidate = max(candidates, key=lambda one: means_by_weights[format_weights(one)])
        return (
            best_candidate
            if current is None or means_by_weights[format_weights(best_candidate)] > means_by_weights[format_weights(current)]
            else current
        )

    weights = best(starts, None)
    for factors in (COARSE_FACTORS, FINE_FACTORS):
        for _ in range(MAX_ROUNDS):
            before = weights
            for index in range(len(weights)):
                scaled = [[*weights[:index], weights[index] * factor, *weights[index + 1 :]] for factor in factors]
                weights = best([one for one in scaled if any(one)], weights)
            if weights == before:
                break
    return format_weights(weights), means_by_weights


def format_weights(weights: Sequence[float]) -> str:
    """Weights in the syntax of `linear:weights`, with six significant digits.

    >>> format_weights([1, 0.3333333333])
    '1+0.333333'
    """
    return "+".join(f"{weight:.6g}".replace("e+", "e") for weight in weights)
