"""The kinds of facts of a training that are drawn together: a plot for each, a curve for each fact."""

import math
from collections.abc import Callable

from moeir.analysis.watching import Watch

Curves = dict[str, tuple[str, float]]  # by label: the fact, and what it is divided by


def _of_experts(kind: str) -> Callable[[Watch], Curves]:
    return lambda watch: {expert: (f"{kind}.{expert}", 1.0) for expert in watch.experts if f"{kind}.{expert}" in watch}


def _losses(watch: Watch) -> Curves:
    return _of_experts("loss")(watch) | ({"all": ("loss", 1.0)} if "loss" in watch else {})


def _entropies(watch: Watch) -> Curves:
    """As a part of the most there can be: 1 where nothing is decided."""
    experts = sum(f"share.{expert}" in watch for expert in watch.experts)
    shares = {"shares": ("entropy.shares", math.log(max(2, experts)))} if "entropy.shares" in watch else {}
    return shares | {
        router: (f"entropy.{router}", math.log(max(2, len(names))))
        for router, names in watch.routers.items()
        if f"entropy.{router}" in watch
    }


def _usage(watch: Watch) -> Curves:
    """1 where every expert of a router gets an equal part."""
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
