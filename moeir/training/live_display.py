"""Live terminal display of a training: progress, share and loss of each expert, router usage, alarms."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from moeir import console
from moeir.analysis.training_monitor import MetricHistory, TrainingMonitor
from moeir.console import ProgressMeter, StyledLine, sparkline

NAME_WIDTH, MAX_SPARKLINE = 14, 20  # columns of a name, and of a sparkline
MIN_SPARKLINE = 4
COLUMNS = {  # of an expert: heading, width, form of the mean
    **{"share": ("share", 8, "{:5.3f}"), "wins": ("largest", 8, "{:6.1%}")},
    **{"loss": ("loss", 9, "{:6.3f}"), "accuracy": ("accuracy", 9, "{:5.3f}")},
}
SPARKLINE_LIMITS: dict[str, tuple[float, ...]] = {"share": (0.0, 1.0), "loss": ()}  # of the columns that have a sparkline
Cell = tuple[str, str]  # text and style


def show_training(title: str, steps: int, done: int, monitor: TrainingMonitor) -> AbstractContextManager[ProgressMeter]:
    """Progress meter of `steps` steps that draws a `monitor` on the terminal."""
    return console.panel(title, steps, partial(render_lines, monitor), done=done)


def render_lines(monitor: TrainingMonitor, meter: ProgressMeter, width: int, height: int) -> list[StyledLine]:
    """The lines of the display for a terminal of `width` columns and `height` rows."""
    rendered = [
        *_progress_lines(monitor, meter, width),
        *_expert_lines(monitor, width),
        *_router_lines(monitor, width),
        *_event_lines(monitor, width),
    ]
    hidden = len(rendered) - (height - 1)
    if hidden > 0:
        rendered = [*rendered[: max(1, height - 2)], [(f"… {hidden + 1} more lines on a higher terminal", "dim")]]
    return [_truncate_line(line, width) for line in rendered]


def _progress_lines(monitor: TrainingMonitor, meter: ProgressMeter, width: int) -> Iterator[StyledLine]:
    total = meter.total or 1
    counts = f" {meter.done:,} of {total:,}" + (f", {meter.remaining_time}" if meter.remaining_time else "")
    room = max(0, min(60, width - len(meter.label) - len(counts) - 1))
    filled = meter.done * room // total
    yield [(f"{meter.label} ", "bold"), ("━" * filled, "green"), ("─" * (room - filled), "dim"), (counts, "")]
    tokens = monitor.tokens_per_second
    speed = [f"{meter.rate:,.2f} steps/s"] + ([] if tokens is None else [f"{tokens:,.0f} tokens/s"])
    stage = [("competition" if monitor.latest["competing"] else "all experts learn equally")] if "competing" in monitor else []
    yield [(", ".join(speed + stage), "dim")]
    if "loss" not in monitor:
        return
    sparkline_width = max(0, min(MAX_SPARKLINE, width - 44))
    parts = [("loss ", ""), *_value_cells(monitor["loss"], "{:.3f}", sparkline_width)]
    if "gradient_norm" in monitor:
        parts.append((f"  gradient {monitor['gradient_norm'].mean:.3g}", "dim"))
    if "learning_rate" in monitor:
        parts.append((f"  rate {monitor.latest['learning_rate']:.2e}", "dim"))
    yield parts


def _expert_lines(monitor: TrainingMonitor, width: int) -> Iterator[StyledLine]:
    """A row for each expert: share, how often it is the largest, loss; in pre-training the loss and accuracy of each part."""
    if not monitor.experts:
        return
    columns = {kind: column for kind, column in COLUMNS.items() if any(f"{kind}.{name}" in monitor for name in monitor.experts)}
    name = min(NAME_WIDTH, max(map(len, [*monitor.experts, "expert"])))
    free_width = width - name - sum(2 + column_width for _, column_width, _ in columns.values())
    sparkline_width = min(MAX_SPARKLINE, free_width // max(1, len(SPARKLINE_LIMITS.keys() & columns)))
    sparkline_width = sparkline_width if sparkline_width >= MIN_SPARKLINE else 0
    widths = {kind: columns[kind][1] + sparkline_width * (kind in SPARKLINE_LIMITS) for kind in columns}
    yield [(f"{'expert':{name}}", "dim")] + [(f"  {columns[kind][0]:<{widths[kind]}}", "dim") for kind in columns]
    for expert in monitor.experts:
        row: list[Cell] = [(f"{_shorten(expert, name):{name}}", "bold")]
        for kind, (_, _, form) in columns.items():
            cells = [("-", "dim")]
            if f"{kind}.{expert}" in monitor:
                limits = SPARKLINE_LIMITS.get(kind, ())
                cells = _value_cells(monitor[f"{kind}.{expert}"], form, sparkline_width * (kind in SPARKLINE_LIMITS), *limits)
                cells = cells[:1] if kind == "wins" else cells
            row += [("  ", ""), *cells, (" " * (widths[kind] - sum(len(text) for text, _ in cells)), "")]
        yield row
    if "entropy.shares" in monitor:
        max_entropy = math.log(max(2, sum(f"share.{expert}" in monitor for expert in monitor.experts)))
        yield [
            ("entropy of shares ", ""),
            *_value_cells(monitor["entropy.shares"], "{:.2f}", sparkline_width, 0.0, max_entropy),
            (f"  of {max_entropy:.2f}", "dim"),
        ]


def _router_lines(monitor: TrainingMonitor, width: int) -> Iterator[StyledLine]:
    """A row for each router: its entropy, and a bar for each expert, at half height for uniform usage."""
    if not monitor.routers:
        return
    name = min(NAME_WIDTH, max(map(len, [*monitor.routers, "router"])))
    yield [(f"{'router':{name}}  entropy        usage of experts, ▄▅ an equal part", "dim")]
    for router, names in monitor.routers.items():
        row: list[Cell] = [(f"{_shorten(router, name):{name}}  ", "bold")]
        max_entropy = math.log(max(2, len(names)))
        entropy: list[Cell] = []
        if f"entropy.{router}" in monitor:
            entropy = [*_value_cells(monitor[f"entropy.{router}"], "{:.2f}", 0), (f" of {max_entropy:.2f}", "dim")]
        row += [*entropy, (" " * (15 - sum(len(text) for text, _ in entropy)), "")]
        for fact in names:
            bar = sparkline([monitor[fact].mean * len(names)], 1, 0.0, 2.0)
            row.append((bar, "bold red" if monitor.is_starved(fact) else "cyan"))
        least = min(monitor[fact].mean for fact in names)
        yield [*row, (f"  least {least:.1%}", "dim")]


def _event_lines(monitor: TrainingMonitor, width: int) -> Iterator[StyledLine]:
    """The value on the development set, and the current alarms."""
    dev_metric = next((name for name in monitor.latest if name.startswith("dev.")), None)
    if dev_metric is not None:
        best, step = monitor.best[dev_metric]
        yield [(f"{dev_metric} {monitor.latest[dev_metric]:.4f}, best {best:.4f} after step {step:,}", "")]
    for alarm in monitor.active_alarms:
        yield from ([(text, "bold red")] for text in textwrap.wrap(str(alarm), max(1, width)))


def _value_cells(course: MetricHistory, form: str, width: int, low: float | None = None, high: float | None = None) -> list[Cell]:
    """A mean, the arrow of its trend, and a sparkline."""
    arrow = " " if course.trend is None else console.ARROWS[course.trend]
    line = sparkline([value for _, value in course.points()], width, low, high) if width else ""
    return [(form.format(course.mean), ""), (f" {arrow}", "bold"), (f" {line:{width}}" if width else "", "cyan")]


def _shorten(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _truncate_line(line: StyledLine, width: int) -> Sequence[Cell]:
    """A line cut to `width` columns."""
    cells: list[Cell] = []
    for text, style in line:
        room = width - sum(len(before) for before, _ in cells)
        if len(text) > room:
            return [*cells, (_shorten(text, room), style)] if room > 0 else cells
        cells.append((text, style))
    return cells
