"""Usage of the experts of a router, accumulated over batches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from scipy.special import entr

from moeir.analysis.result import AnalysisResult

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class RouterUsage:
    """Decisions of one router over `texts` texts: decisions per expert `counts` [I], and sums of probabilities `probability_sum` [I].

    A decision selects the `top_k` largest of its probabilities, without noise, as at inference; the first if several are equal.
    """

    counts: Array
    probability_sum: Array
    texts: int
    top_k: int = 1

    @classmethod
    def from_probabilities(cls, probabilities: Array, texts: int, top_k: int = 1) -> Self:
        """Count one batch: probabilities [n, I], one decision per row.

        >>> RouterUsage.from_probabilities(np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), texts=3).counts
        array([2, 1])
        """
        chosen = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k].ravel()
        return cls(np.bincount(chosen, minlength=probabilities.shape[1]), probabilities.sum(0, dtype=np.float64), texts, top_k)

    def __add__(self, other: Self) -> Self:
        texts, chances = self.texts + other.texts, self.probability_sum + other.probability_sum
        return type(self)(self.counts + other.counts, chances, texts, self.top_k)

    def rows(self) -> Iterator[list[object]]:
        """Rows (unit, expert, count, share of what is selected, mean probability, -s ln s of the share s), and their sum `all`.

        The sum of the last column is the entropy of usage in nats, ln I for uniform usage, 0 for a single expert.

        >>> [row[1:] for row in RouterUsage(np.array([5, 5, 0]), np.array([6.0, 3.0, 1.0]), 10).rows()][-1]
        ['all', 10, 1.0, 1.0, 0.6931]
        """
        decisions, shares = int(self.counts.sum()) // self.top_k, self.counts / self.counts.sum()
        unit = "texts" if decisions == self.texts else "tokens"
        columns = (self.counts, shares, self.probability_sum / decisions, entr(shares) + 0.0)  # turns -0.0, of a share of 1, into 0.0
        for expert in range(len(self.counts)):
            yield [unit, str(expert), *(column[expert].item() for column in columns)]
        yield [unit, "all", *(column.sum().item() for column in columns)]


def analyze_usage(usage_by_side: Mapping[str, Mapping[str, RouterUsage]]) -> AnalysisResult:
    """Expert usage of each router, by side of the texts."""
    rows: list[list[Any]] = []
    for side, routers in usage_by_side.items():
        rows += [[side, router, *row] for router, usage in routers.items() for row in usage.rows()]
    return AnalysisResult(["side", "router", "of", "expert", "chosen", "share", "probability", "entropy"], rows)
