"""Results: the tables of each part in a JSON file, and the Markdown page of all parts."""

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "tests" / "benchmarks" / "results" / "gpu.md"


class Part(NamedTuple):
    """A part: the module and function that measure it, and its title."""

    module: str
    function: str
    title: str


PARTS = {
    "0": Part("probe", "probe", "Probes: what to change first"),
    "1": Part("suite", "run_suite", "The tests of tests/device on the device"),
    "2": Part("equality", "compare_trainings", "Equal trainings, and a killed and resumed one"),
    "3a": Part("steps", "measure_steps", "A training step of BERT-base beside transformers"),
    "3b": Part("steps", "measure_compiled", "A training step with --compile"),
    "3c": Part("encoding", "measure_encoding", "Encoding with BERT-base"),
    "4": Part("batches", "find_largest_batches", "Batch sizes up to the card's memory"),
    "5a": Part("search", "search_vectors", "Searching a million vectors, and exact-match"),
    "5b": Part("search", "search_token_lists", "Searching a million documents of token vectors"),
    "6": Part("quickstart", "train_longer", "CAME on the quickstart's collection, ten times the steps"),
    "7": Part("equality", "compare_devices", "Two devices beside one"),
}
INTRODUCTION = """# The first hour on a GPU

Command: `tests/benchmarks/gpu.sh [PART ...]`, whose first lines say what it needs. It writes this page from the files in `results/gpu/`.
Seconds of steps are those between their ends on the device's own clock; other work is timed until the host has waited for the device. What
comes before everything is warm is not counted, and a number is the median of several. Ratios are of things measured in turns, in one
process. The peak is that of a product of two bfloat16 matrices of 8,192 rows and columns on the same device.
"""
NOTHING = """
**No GPU has been available to this project yet: nothing of this has been measured on one, and the page holds no numbers.** In CI every part
runs at toy size on the pretended device (`tests/device/test_gpu_script.py`), which says that it runs, and nothing about its speed.
"""


@dataclass
class Table:
    """Rows of text and numbers under column names."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Append a row with formatted numbers; missing cells stay empty."""
        words = [format_number(cell) if isinstance(cell, float) else str(cell) for cell in cells]
        self.rows.append(words + [""] * (len(self.columns) - len(words)))

    def to_markdown(self) -> str:
        """The table as Markdown, its title above it."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return f"{self.title}\n\n" + "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


@dataclass
class Piece:
    """The results of one part and their environment; `failures` are the expectations that did not hold."""

    part: str
    facts: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    minutes: float = 0.0
    skipped: str = ""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Piece":
        """Read a piece from its file."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(**values | {"tables": [Table(**table) for table in values["tables"]]})

    @property
    def done(self) -> bool:
        """Whether it need not be run again."""
        return self.finished and not self.failures

    def to_markdown(self) -> str:
        """The section of the page."""
        lines = [f"## {self.part}. {PARTS[self.part].title}", ""]
        facts = [f"| {name} | {value} |" for name, value in (self.facts | {"minutes": f"{self.minutes:.1f}"}).items()]
        lines += ["| | |", "|---|---|", *facts, ""]
        lines += ["**Interrupted: this is what it had found by then.**", ""] if not self.finished else []
        lines += [f"Skipped: {self.skipped}", ""] if self.skipped else []
        lines += [line for failure in self.failures for line in (f"**Failed: {failure}**", "")]
        lines += [table.to_markdown() for table in self.tables]
        return "\n".join(lines + [f"* {note}" for note in self.notes]).rstrip() + "\n"


@dataclass
class Context:
    """The context of a part: its folders, toy size or not, its time limit, and the piece that it fills."""

    piece: Piece
    work: Path
    results: Path
    toy: bool = False
    pretend: bool = False
    minutes: float = 8.0
    started: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """The part's own folder, empty when it begins."""
        return self.work / f"part-{self.piece.part}"

    def seconds_left(self) -> float:
        """Seconds until the time limit of the part."""
        return self.minutes * 60 - (time.monotonic() - self.started)

    def table(self, title: str, *columns: str) -> Table:
        """A new table of the piece."""
        self.piece.tables.append(Table(title, list(columns)))
        return self.piece.tables[-1]

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Record an error inside the block as a failure and continue, so that all failures are reported, not only the first."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - recorded, and the part is not done
            traceback.print_exc()
            self.piece.failures.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        self.save()

    def require(self, holds: bool, what: str) -> None:
        """Record a failure unless a condition holds."""
        if not holds:
            self.piece.failures.append(what)

    def has_time(self, seconds: float, what: str) -> bool:
        """Whether so many seconds are left; if not, the page notes the omission."""
        if self.seconds_left() < seconds:
            self.piece.notes.append(f"Left out, for the {self.minutes:g} minutes were over: {what}.")
            return False
        return True

    def save(self) -> None:
        """Write the piece as it is now, and the page."""
        self.piece.minutes = (time.monotonic() - self.started) / 60
        write_whole(self.results / "gpu" / f"{self.piece.part}.json", json.dumps(asdict(self.piece), indent=1) + "\n")
        write_whole(self.results / "gpu.md", page(self.results))


def describe_run(command: str) -> dict[str, str]:
    """The command, the commit, the device, versions and the date. Call it on the device that is measured."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    words = f"{torch.cuda.device_count()} × {properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    words += f", capability {properties.major}.{properties.minor}"
    versions = {name: metadata.version(name) for name in ("transformers", "sentence-transformers") if _is_installed(name)}
    return {
        "command": f"`{command}`",
        "commit": commit(),
        "device": f"{words}; {os.cpu_count()} CPU cores",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}",
        "libraries": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": time.strftime("%Y-%m-%d"),
    }


def commit() -> str:
    """The commit of the checkout, and whether files have changed since."""
    if known := os.environ.get("COMMIT"):
        return known
    try:
        ask = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=, with changes", "--exclude=*"]
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def page(results: Path) -> str:
    """The Markdown page of all pieces in a folder of results."""
    pieces = {part: Piece.read(path) for part in PARTS if (path := results / "gpu" / f"{part}.json").exists()}
    overview = Table("The parts:", ["part", "what", "outcome", "minutes"])
    for part, (_, _, title) in PARTS.items():
        piece = pieces.get(part)
        overview.add(part, title, "not run" if piece is None else _outcome(piece), "" if piece is None else f"{piece.minutes:.1f}")
    sections = [INTRODUCTION + ("" if pieces else NOTHING), overview.to_markdown(), *(piece.to_markdown() for piece in pieces.values())]
    return "\n".join(sections)


def _outcome(piece: Piece) -> str:
    if piece.failures:
        return f"**{len(piece.failures)} failed**"
    return "interrupted" if not piece.finished else "skipped" if piece.skipped else "done"


def write_whole(path: Path, content: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".part").write_text(content, encoding="utf-8")
    path.with_suffix(".part").replace(path)


def format_number(number: float) -> str:
    """Three significant digits, thousands apart.

    >>> [format_number(number) for number in (0.01234, 1.5, 23.456, 1234567.0)]
    ['0.0123', '1.50', '23.5', '1,234,567']
    """
    digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2 if abs(number) >= 1 else 4
    return f"{number:,.{digits}f}"


def spread(values: Sequence[float]) -> str:
    """The least and the largest, in parentheses."""
    return f"({format_number(min(values))} to {format_number(max(values))})"


def log(words: Any) -> None:
    """Log a line to stderr."""
    sys.stderr.write(f"== {words}\n")
