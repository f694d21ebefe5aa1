"""Options of a fusion found by trial: the value of a measure is all that is asked, so any measure can be tuned for."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

Means: TypeAlias = Callable[[list[str]], list[float]]  # of several values of an option, the mean of the measure of each

FACTORS = (0.0, 0.125, 0.25, 0.5, 2**-0.5, 2**0.5, 2.0, 4.0, 8.0)  # of one weight, in the first rounds
FINER = (2**-0.25, 2**-0.125, 2**0.125, 2**0.25)  # in the last
MOST_ROUNDS = 10


def best_of(steps: Sequence[str], means: Means) -> tuple[str, dict[str, float]]:
    """The step with the largest mean, the first of equals, and what each gave.

    >>> best_of(["0", "1", "2"], lambda steps: [0.1, 0.3, 0.3])
    ('1', {'0': 0.1, '1': 0.3, '2': 0.3})
    """
    tried = dict(zip(steps, means(list(steps)), strict=True))
    return max(tried, key=lambda step: tried[step]), tried


def coordinates(starts: Sequence[Sequence[float]], means: Means) -> tuple[str, dict[str, float]]:
    """Weights with + between, by coordinate search, and the means of all that were tried.

    From the best of `starts` (the first of equals), one weight after the other is multiplied by FACTORS while any gives more, then by
    FINER: nothing is drawn, and what is found is on these queries no worse than any start. At most MOST_ROUNDS rounds of each.

    >>> coordinates([[1, 1]], lambda steps: [-abs(float(step.split("+")[1]) - 0.25) for step in steps])[0]
    '1+0.25'
    """
    tried: dict[str, float] = {}

    def best(candidates: Sequence[Sequence[float]], held: Sequence[float] | None) -> Sequence[float]:
        new = list(dict.fromkeys(text for one in candidates if (text := written(one)) not in tried))
        tried.update(zip(new, means(new) if new else [], strict=True))
        most = max(candidates, key=lambda one: tried[written(one)])
        return most if held is None or tried[written(most)] > tried[written(held)] else held

    weights = best(starts, None)
    for factors in (FACTORS, FINER):
        for _ in range(MOST_ROUNDS):
            before = weights
            for place in range(len(weights)):
                moved = [[*weights[:place], weights[place] * factor, *weights[place + 1 :]] for factor in factors]
                weights = best([one for one in moved if any(one)], weights)
            if weights == before:
                break
    return written(weights), tried


def written(weights: Sequence[float]) -> str:
    """Weights as `linear:weights` takes them: six significant digits.

    >>> written([1, 0.3333333333])
    '1+0.333333'
    """
    return "+".join(f"{weight:.6g}".replace("e+", "e") for weight in weights)
