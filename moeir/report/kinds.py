"""Curves of trainings: which metrics share a plot, and tables of trainings side by side as text."""

import math
from collections.abc import Callable

from moeir.analysis.watching import Watch

Curves = dict[str, tuple[str, float]]  # by label: the metric, and its divisor


def _of_experts(kind: str) -> Callable[[Watch], Curves]:
    return lambda watch: {expert: (f"{kind}.{expert}", 1.0) for expert in watch.experts if f"{kind}.{expert}" in watch}


def _losses(watch: Watch) -> Curves:
    return _of_experts("loss")(watch) | ({"all": ("loss", 1.0)} if "loss" in watch else {})


def _entropies(watch: Watch) -> Curves:
    """Entropies relative to their maximum: 1 for a uniform distribution."""
    experts = sum(f"share.{expert}" in watch for expert in watch.experts)
    shares = {"shares": ("entropy.shares", math.log(max(2, experts)))} if "entropy.shares" in watch else {}
    return shares | {
        router: (f"entropy.{router}", math.log(max(2, len(names))))
        for router, names in watch.routers.items()
        if f"entropy.{router}" in watch
    }


def _usage(watch: Watch) -> Curves:
    """Usage relative to uniform usage of a router: 1 if uniform."""
    return {f"{router} {fact.rpartition('.')[2]}": (fact, 1 / len(names)) for router, names in watch.routers.items() for fact in names}


def _development(watch: Watch) -> Curves:
    return {name.removeprefix("dev."): (name, 1.0) for name in watch.best}


KINDS: dict[str, Callable[[Watch], Curves]] = {
    "share": _of_experts("share"),
    "largest share, of queries": _of_experts("wins"),
    "loss": _losses,
    "accuracy": _of_experts("accuracy"),
    "entropy, of the most": _entropies,
    "usage, of an equal part": _usage,
    "development": _development,
}
