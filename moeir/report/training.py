"""Trainings beside one another, as text: how far, what was lost, who won, whom the routers took, and what went wrong."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir import console
from moeir.analysis import watching
from moeir.analysis.watching import WINDOW, Watch
from moeir.artifacts import making
from moeir.errors import UsageError
from moeir.evaluation import tables

COURSE = 24  # signs of a sparkline
Row = list[object]


@dataclass(frozen=True)
class Training:
    """A training by name: all that it has said so far, and whether it has ended."""

    name: str
    watch: Watch
    finished: bool


def opened(places: Sequence[Path]) -> list[Training]:
    """Trainings by their folders' names, or their paths where those are the same."""
    names = [place.name if place.name not in ("", "..", watching.METRICS) else str(place) for place in places]
    names = names if len(set(names)) == len(names) else [str(place) for place in places]
    if len(set(names)) < len(names):
        raise UsageError("--training: the same training is given twice")
    found = []
    for name, place in zip(names, places, strict=True):
        file = watching.metrics_of(place)
        found.append(Training(name, watching.rebuilt(watching.read(file)), making.place_of(file.parent) == file.parent))
    return found


def text(trainings: Sequence[Training]) -> str:
    """Tables of all trainings, and their alarms."""
    parts = [_table(_overview(trainings)), _table(_experts(trainings)), _table(_routers(trainings)), "\n".join(_alarms(trainings))]
    means = f"Numbers are means of the last {WINDOW} steps, or of as many as there were; ↗ ↘ say where the last tenth of those goes."
    return "\n\n".join([*filter(None, parts), means]) + "\n"


def rows(trainings: Sequence[Training]) -> Iterator[Row]:
    """For files: of each training and fact the means over at most 128 stretches of it, each with its last step."""
    for one in trainings:
        for fact, course in one.watch.courses.items():
            yield from ([one.name, fact, step, mean] for step, mean in course.points())


NAMES = ("training", "fact", "step", "mean")


def _table(found: list[dict[str, object]]) -> str:
    """Rows of named cells; what no row has is no column, and what a row lacks is a dash."""
    header = list(dict.fromkeys(name for row in found for name in row))
    return tables.text(header, [[row.get(name, "-") for name in header] for row in found]) if found else ""


def _overview(trainings: Sequence[Training]) -> list[dict[str, object]]:
    found = []
    for one in trainings:
        watch = one.watch
        row: dict[str, object] = {"training": one.name, "steps": f"{watch.step:,}", "": "" if one.finished else "unfinished"}
        row |= _course(watch, "loss", "loss", COURSE)
        if (speed := watch.tokens_per_second) is not None:
            row |= {"tokens/s": f"{speed:,.0f}", "time": console.clock(watch["seconds"].whole)}
        for name, (best, step) in watch.best.items():
            if name == next(iter(watch.best)):
                row |= {name: f"{watch.facts[name]:.4f}", "best": f"{best:.4f}", "after step": f"{step:,}"}
        found.append(row)
    return found if any(row[""] for row in found) else [{name: cell for name, cell in row.items() if name} for row in found]


def _experts(trainings: Sequence[Training]) -> list[dict[str, object]]:
    """A row for each expert and training, the same expert of all trainings together."""
    found = []
    for expert in dict.fromkeys(expert for one in trainings for expert in one.watch.experts):
        for one in (one for one in trainings if expert in one.watch.experts):
            watch, row = one.watch, dict[str, object]({"expert": expert})
            if len(trainings) > 1:
                row["training"] = one.name
            row |= _course(watch, f"share.{expert}", "share", COURSE, 0.0, 1.0)
            if f"wins.{expert}" in watch:
                row |= {"largest": f"{watch[f'wins.{expert}'].mean:.1%}"}
            for name in ("rank", "accuracy"):
                if f"{name}.{expert}" in watch:
                    row[name] = f"{watch[f'{name}.{expert}'].mean:.3f}"
            found.append(row | _course(watch, f"loss.{expert}", "loss", COURSE))
    for one in (one for one in trainings if "entropy.shares" in one.watch):
        count = sum(f"share.{expert}" in one.watch for expert in one.watch.experts)
        row = {"expert": "entropy of shares"}
        if len(trainings) > 1:
            row["training"] = one.name
        found.append(row | _course(one.watch, "entropy.shares", "share", COURSE, 0.0, math.log(max(2, count))))
    return found


def _routers(trainings: Sequence[Training]) -> list[dict[str, object]]:
    """A row for each router and training: entropy, and of each expert's usage a bar, half as high where it is an equal part."""
    found = []
    for router in dict.fromkeys(router for one in trainings for router in one.watch.routers):
        for one in (one for one in trainings if router in one.watch.routers):
            used = [one.watch[fact].mean for fact in one.watch.routers[router]]
            row: dict[str, object] = {"router": router}
            if len(trainings) > 1:
                row["training"] = one.name
            row |= _course(one.watch, f"entropy.{router}", "entropy", COURSE, 0.0, math.log(max(2, len(used))))
            row["usage of experts"] = console.sparkline([share * len(used) for share in used], len(used), 0.0, 2.0)
            found.append(row | {"least": f"{min(used):.1%}", "most": f"{max(used):.1%}", "equal": f"{1 / len(used):.1%}"})
    return found


def _alarms(trainings: Sequence[Training]) -> Iterator[str]:
    for one in trainings:
        for alarm in one.watch.alarms:
            passed = "" if alarm in one.watch.lasting else " (has passed)"
            yield (f"{one.name}: " if len(trainings) > 1 else "") + f"{alarm}{passed}"
    if not any(one.watch.alarms for one in trainings):
        yield "No alarm."


def _course(watch: Watch, fact: str, name: str, width: int, low: float | None = None, high: float | None = None) -> dict[str, object]:
    """A mean, and a sparkline of the whole with an arrow; nothing for a fact that is not there."""
    if fact not in watch:
        return {}
    course = watch[fact]
    line = console.sparkline([value for _, value in course.points()], width, low, high)
    arrow = "" if course.trend is None else console.ARROWS[course.trend]
    return {name: f"{course.mean:.3f}", f"{name} in its course": f"{line} {arrow}".rstrip()}
