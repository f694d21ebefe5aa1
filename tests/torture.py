"""`make torture`: every programme of faults at full size, by parts; a second run goes on where the first was stopped.

    make torture                             # all parts, hours
    make torture PARTS="power_loss kills"    # some of them
    python -m tests.torture --table          # what has been run at this commit

A part is a file of tests marked `torture`, or `fuzz`, a million mutated inputs in slices. What passed at this commit is not run again. As a
plugin of pytest this module leaves such tests out and records the others.
"""

import argparse
import collections
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".torture.jsonl"
FUZZ, SLICES, CASES_OF_SLICE = "fuzz", 20, 50_000
MARK = re.compile(r"mark\.torture|@each_disk_call")
FIELDS = ("units", "passed", "failed", "not run")


def list_parts() -> dict[str, Path | None]:
    """Parts and their files; None for the mutated inputs, which are no tests."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if MARK.search(path.read_text(encoding="utf-8"))]
    return {path.stem.removeprefix("test_"): path for path in files} | {FUZZ: None}


def describe_commit() -> str:
    """The commit that is checked out, with `-dirty` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_results(commit: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The last result of each unit (part, name) at a commit."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(one["part"], one["unit"]): one for one in map(json.loads, lines) if one["commit"] == commit}


def add_result(part: str, unit: str, outcome: str, seconds: float, counts: Sequence[Any] = (), message: str = "") -> None:
    """Append a unit's result: `passed`, `failed` or `collected`."""
    entry = {"commit": describe_commit(), "part": part, "unit": unit, "outcome": outcome, "seconds": round(seconds, 1), "counts": counts}
    entry |= {"message": message} if message else {}  # of a failure, for a run that is stopped before pytest prints it
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _part_of(node: str) -> str:
    return Path(node.partition("::")[0]).stem.removeprefix("test_")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has passed."""
    done = {unit for (_, unit), result in read_results(describe_commit()).items() if result["outcome"] == "passed"}
    left = [item for item in items if item.nodeid not in done and item.get_closest_marker("torture")]
    if not hasattr(config, "workerinput"):
        for item in left:
            add_result(_part_of(item.nodeid), item.nodeid, "collected", 0)
    config.hook.pytest_deselected(items=[item for item in items if item not in left])
    items[:] = left


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist report to the process that started them, which records."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "torture-recorder")


class Recorder:
    """Records outcomes."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test."""
        if report.when != "call" and report.outcome == "passed":
            return
        counts = [value for name, value in report.user_properties if name == "faults"]
        add_result(_part_of(report.nodeid), report.nodeid, report.outcome, report.duration, counts, report.longreprtext)


def run_tests(path: Path, jobs: int) -> None:
    """Run the tests of a part that have not passed."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.torture", "-m", "torture", f"--numprocesses={jobs}", "--dist=worksteal"]
    subprocess.run([*command, str(path.relative_to(ROOT))], cwd=ROOT, check=False)


def run_fuzz(jobs: int) -> None:
    """Run the slices of mutated inputs that have not passed."""
    done = {unit for (_, unit), result in read_results(describe_commit()).items() if result["outcome"] == "passed"}
    for number in range(SLICES):
        unit, began = f"{CASES_OF_SLICE:,} cases, seed {number}", time.monotonic()
        if unit not in done:
            command = [sys.executable, "-m", "tests.fuzz", f"--cases={CASES_OF_SLICE}", f"--seed={number * 10_000_000}", f"--jobs={jobs}"]
            process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
            rows = [line for line in process.stdout.splitlines() if line.startswith("all\t")]
            add_result(FUZZ, unit, "failed" if process.returncode else "passed", time.monotonic() - began, rows)


def build_table(commit: str, parts: Sequence[str]) -> Iterator[str]:
    """One row a part, in Markdown, and the failures."""
    yield f"| part at {commit} | {' | '.join(FIELDS)} | minutes |"
    yield "|---|" + "---:|" * (len(FIELDS) + 1)
    results = read_results(commit)
    for part in parts:
        own = [result for (name, _), result in results.items() if name == part]
        counts, seconds = collections.Counter(result["outcome"] for result in own), sum(result["seconds"] for result in own)
        units = SLICES if part == FUZZ else len(own)
        failed = counts["failed"]
        row = (units, counts["passed"], failed, units - counts["passed"] - failed - counts["skipped"])
        yield f"| {part} | {' | '.join(map(str, row))} | {seconds / 60:.0f} |"
    yield from (f"* failed: {unit}" for (part, unit), result in results.items() if result["outcome"] == "failed" and part in parts)


def main() -> int:
    """Run parts and print the table; 1 if a unit has failed or was not run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parts = list_parts()
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all unless named: {', '.join(parts)}")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the table of earlier runs, run nothing")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in parts]:
        parser.error(f"there is no part {unknown[0]!r}; parts: {', '.join(parts)}")
    names = options.parts or list(parts)
    for name in () if options.table else names:
        path = parts[name]
        if path is None:
            run_fuzz(options.jobs)
        else:
            run_tests(path, options.jobs)
    table = list(build_table(describe_commit(), names))
    sys.stdout.write("\n".join(table) + "\n")
    return int(any(line.startswith("* failed") for line in table))


if __name__ == "__main__":
    sys.exit(main())
