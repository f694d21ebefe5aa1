"""Grid search for alpha of a fusion method on judged queries. Only values of the measure are used, so any measure can be tuned for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from moeir import variants
from moeir.errors import UsageError

DEFAULT_GRIDS = {"hybrid": "0.5:2.0:0.1", "interpolation": "0:1:0.05"}  # of the methods that have an alpha
MAX_GRID_VALUES = 1000
MeanScorer: TypeAlias = Callable[[list[str]], list[float]]  # option values -> mean of the measure for each


@dataclass(frozen=True)
class TunedMethod:
    """The best alpha of a method, the method with it, and the mean of every value of the grid."""

    alpha: str
    method: str
    means: dict[str, float]


def tune_method(method: str, grid: str | None, means: MeanScorer) -> TunedMethod:
    """Find the best alpha of a method; `means` scores methods."""
    spec = variants.parse_spec(method)
    default = DEFAULT_GRIDS[variants.find_variant("fusion", spec.name).name]

    def complete(value: str) -> str:
        return str(variants.Spec(spec.name, (*spec.options, ("alpha", value))))

    best, scores = grid_search(parse_grid(grid or default), lambda values: means([complete(value) for value in values]))
    return TunedMethod(best, complete(best), scores)


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


def grid_search(steps: Sequence[str], means: MeanScorer) -> tuple[str, dict[str, float]]:
    """The value with the largest mean (the first of equals), and the mean of every value.

    >>> grid_search(["0", "1", "2"], lambda steps: [0.1, 0.3, 0.3])
    ('1', {'0': 0.1, '1': 0.3, '2': 0.3})
    """
    means_by_step = dict(zip(steps, means(list(steps)), strict=True))
    return max(means_by_step, key=lambda step: means_by_step[step]), means_by_step
