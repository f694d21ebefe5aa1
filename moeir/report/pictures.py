"""Trainings beside one another, as a picture: shares, losses, routers and development in the course of each."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeir.analysis.watching import Watch
from moeir.errors import DataError
from moeir.report.training import Training

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito: seen apart by all eyes
PLAIN: Any = {"svg.hashsalt": "moeir", "svg.fonttype": "none", "text.parse_math": False}  # the same bytes; a $ begins no formula
LABELLED = 12  # curves of a plot, at most, that a legend names
WIDTH, HEIGHT = 5.2, 2.4  # inches of a training, and of one of its plots
Curves = dict[str, tuple[str, float]]  # by label: the fact, and what it is divided by


def drawn(trainings: Sequence[Training], file: Path, form: str) -> None:
    """A column for each training, a row for each kind of fact that one of them has; the same trainings give the same bytes."""
    kinds = [(title, of) for title, of in KINDS.items() if any(of(one.watch) for one in trainings)]
    if not kinds:
        raise DataError(f"{trainings[0].name}: its steps hold no loss, share, usage or development value that could be drawn")
    with matplotlib.rc_context(PLAIN):
        figure = Figure(figsize=(WIDTH * len(trainings), HEIGHT * len(kinds) + 0.4), layout="constrained")
        axes = figure.subplots(len(kinds), len(trainings), squeeze=False, sharex="col", sharey="row")
        for column, one in zip(axes.T, trainings, strict=True):
            for place, (title, of) in zip(column, kinds, strict=True):
                _plot(place, one.watch, of(one.watch))
                place.set_ylabel(title if one is trainings[0] else "")
            column[0].set_title(one.name + ("" if one.finished else " (unfinished)"))
            column[-1].set_xlabel("step")
        figure.savefig(file, format=form, dpi=120, metadata={"Date": None} if form == "svg" else {"Software": "moeir"})


def _plot(place: Axes, watch: Watch, curves: Curves) -> None:
    for number, (label, (fact, unit)) in enumerate(curves.items()):
        points = watch[fact].points()
        steps, values = [step for step, _ in points], [value / unit for _, value in points]
        dot = "o" if len(points) == 1 or fact.startswith("dev.") else None
        place.plot(steps, values, color=COLOURS[number % len(COLOURS)], marker=dot, markersize=3, linewidth=1.2, label=label.lstrip("_"))
    for alarm in watch.alarms:
        place.axvline(alarm.step, color="#c00000", linewidth=0.8, linestyle=":")
    place.grid(alpha=0.25)
    if 0 < len(curves) <= LABELLED:
        place.legend(fontsize="x-small", ncols=2)


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
    return {
        f"{router} {fact.rpartition('.')[2]}": (fact, 1 / len(names)) for router, names in watch.routers.items() for fact in names
    }


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
