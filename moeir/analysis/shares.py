"""Metrics of each expert in the course of a training, from `metrics.jsonl`."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from moeir.records import lines, texts

EXPERT_METRICS = ("share", "wins", "rank", "loss", "usage", "entropy")


def read_expert_means(path: Path, rows: int) -> tuple[list[str], list[list[float | None]]]:
    """Means of every expert's metrics in `metrics.jsonl`, one line per step, over `rows` intervals of the training."""
    return expert_means(_read_steps(path), sum(1 for _ in _read_steps(path)), rows)


def _read_steps(path: Path) -> Iterator[dict[str, float]]:
    with lines.open_lines(path) as numbered:
        yield from (texts.parse_json(line, f"{path}:{number}") for number, line in numbered if line)


def expert_means(steps: Iterable[Mapping[str, float]], total: int, rows: int) -> tuple[list[str], list[list[float | None]]]:
    """Means of every expert's metrics over `rows` intervals of a training of `total` steps; their lengths differ by at most one step.

    Columns are `step`, the last of an interval, and the metrics (`share.lexical`, …); a metric that an interval lacks is None.

    >>> expert_means([{"step": 1, "share.a": 0.5}, {"step": 2, "share.a": 1.0}, {"step": 3, "loss": 7.0}], total=3, rows=2)
    (['step', 'share.a'], [[2, 0.75], [3, None]])
    """
    rows = min(rows, total)
    last: list[float | None] = [None] * rows
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    for number, facts in enumerate(steps):
        row = number * rows // total
        last[row] = facts["step"]
        for name in filter(_is_expert_metric, facts):
            sums.setdefault(name, [0.0] * rows)[row] += facts[name]
            counts.setdefault(name, [0] * rows)[row] += 1
    names = sorted(sums, key=lambda name: EXPERT_METRICS.index(name.split(".")[0]))
    averages = {name: [total / count if count else None for total, count in zip(sums[name], counts[name], strict=True)] for name in names}
    return ["step", *names], [[step, *(averages[name][row] for name in names)] for row, step in enumerate(last)]


def _is_expert_metric(name: str) -> bool:
    kind, dot, _ = name.partition(".")
    return bool(dot) and kind in EXPERT_METRICS
