"""Search for fusion options on judged queries. Only values of the measure are used, so any measure can be tuned for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from moeir import variants
from moeir.errors import UsageError
from moeir.records.runs import Run

TUNABLE_OPTIONS = ("alpha", "weights")
DEFAULT_GRIDS = {"hybrid": "0.5:2.0:0.1", "interpolation": "0:1:0.05"}
MAX_GRID_VALUES = 1000
MeanScorer: TypeAlias = Callable[[list[str]], list[float]]  # option values -> mean of the measure for each

COARSE_FACTORS = (0.0, 0.125, 0.25, 0.5, 2**-0.5, 2**0.5, 2.0, 4.0, 8.0)  # for one weight, in the first rounds
FINE_FACTORS = (2**-0.25, 2**-0.125, 2**0.125, 2**0.25)  # in the last rounds
MAX_ROUNDS = 10


@dataclass(frozen=True)
class TunedMethod:
    """The best value of a method's option, the method with it, the mean of every value tried, and the grid if there is one."""

    option: str
    best: str
    method: str
    means: dict[str, float]
    grid: list[str]


def tune_method(method: str, runs: Sequence[Run], grid: str | None, means: MeanScorer) -> TunedMethod:
    """Find the best alpha, by grid search, or weights, by coordinate search, of a method; `means` scores methods."""
    variant, spec = variants.find_variant("fusion", variants.parse_spec(method).name), variants.parse_spec(method)
    option = find_tunable_option(variant)

    def complete(value: str) -> str:
        return str(variants.Spec(spec.name, (*spec.options, (str(option), value))))

    def means_of_values(values: list[str]) -> list[float]:
        return means([complete(value) for value in values])

    steps = parse_grid(grid or DEFAULT_GRIDS[variant.name]) if option == "alpha" else []
    best, scores = grid_search(steps, means_of_values) if steps else coordinate_search(_initial_weights(runs), means_of_values)
    return TunedMethod(str(option), best, complete(best), scores, steps)


def find_tunable_option(variant: variants.Variant) -> str | None:
    """The option of a fusion method that can be tuned, if it has one."""
    return next((one.name for one in variant.options if one.name in TUNABLE_OPTIONS), None)


def parse_grid(text: str) -> list[str]:
    """The decimal values from FIRST to LAST.

    >>> parse_grid("0.5:0.8:0.1"), parse_grid("1:1:1")
    (['0.5', '0.6', '0.7', '0.8'], ['1'])
    """
    try:
        first, last, step = (Decimal(part) for part in text.split(":"))
        if not (first.is_finite() and last.is_finite() and step.is_finite() and 0 <= first <= last and step > 0):
            raise ValueError
        count = int((last - first) / step) + 1
        if count > MAX_GRID_VALUES:
            raise ValueError
    except (ValueError, ArithmeticError):
        raise UsageError(f"--grid {text}: expected FIRST:LAST:STEP, ascending from 0 or more, at most {MAX_GRID_VALUES} values") from None
    return [format(first + step * number, "f") for number in range(count)]


def _initial_weights(runs: Sequence[Run]) -> list[list[float]]:
    """Starting points: equal weights, as in came-sum, and weights that give all lists the same mean score range."""
    spreads = [float((run.scores[run.starts[:-1]] - run.scores[run.starts[1:] - 1]).mean()) for run in runs]
    return [[1.0] * len(spreads), [1.0 / spread if spread > 0 else 1.0 for spread in spreads]]


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
        return max(candidates if current is None else [current, *candidates], key=lambda one: means_by_weights[format_weights(one)])

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
