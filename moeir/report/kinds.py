"""Curves of trainings: which metrics share a plot, and tables of trainings side by side as text."""

import math
from collections.abc import Callable

from moeir.analysis.watching import TrainingMonitor

Curves = dict[str, tuple[str, float]]  # by label: the metric, and its divisor


def _expert_curves(kind: str) -> Callable[[TrainingMonitor], Curves]:
    return lambda watch: {expert: (f"{kind}.{expert}", 1.0) for expert in watch.experts if f"{kind}.{expert}" in watch}


def _loss_curves(watch: TrainingMonitor) -> Curves:
    return _expert_curves("loss")(watch) | ({"all": ("loss", 1.0)} if "loss" in watch else {})


def _entropy_curves(watch: TrainingMonitor) -> Curves:
    """Entropies relative to their maximum: 1 for a uniform distribution."""
    experts = sum(f"share.{expert}" in watch for expert in watch.experts)
    shares = {"shares": ("entropy.shares", math.log(max(2, experts)))} if "entropy.shares" in watch else {}
    return shares | {
        router: (f"entropy.{router}", math.log(max(2, len(names))))
        for router, names in watch.routers.items()
        if f"entropy.{router}" in watch
    }


def _usage_curves(watch: TrainingMonitor) -> Curves:
    """Usage relative to uniform usage of a router: 1 if uniform."""
    return {f"{router} {fact.rpartition('.')[2]}": (fact, 1 / len(names)) for router, names in watch.routers.items() for fact in names}


def _dev_curves(watch: TrainingMonitor) -> Curves:
    return {name.removeprefix("dev."): (name, 1.0) for name in watch.best}


CURVE_KINDS: dict[str, Callable[[TrainingMonitor], Curves]] = {
    "share": _expert_curves("share"),
    "largest share, of queries": _expert_curves("wins"),
    "loss": _loss_curves,
    "accuracy": _expert_curves("accuracy"),
    "entropy, of the most": _entropy_curves,
    "usage, of an equal part": _usage_curves,
    "development": _dev_curves,
}
