"""Part 1: the tests of tests/device, on the available device."""

import importlib.util
import signal
import subprocess
import sys
from xml.etree import ElementTree

from tests.benchmarks.gpu import stages
from tests.benchmarks.gpu.results import ROOT, Context

FOLDER = "tests/device"
THIS = "tests/device/test_gpu_script.py"  # runs the parts at toy size, this one among them
TOY_TESTS = "tests/device/test_fake_cuda.py"
SECONDS_TO_STOP = 20


def run_suite(context: Context) -> None:
    """Run pytest in a process of its own; at the time limit it is interrupted, and the tests run by then count."""
    if importlib.util.find_spec("pytest") is None:
        context.piece.skipped = "pytest is not installed: pip install -e '.[dev]'"
        return
    report, log_path = context.folder / "report.xml", context.results / "gpu" / "1.log"
    chosen = [TOY_TESTS] if context.toy else [FOLDER, f"--ignore={THIS}"]
    command = [sys.executable, "-m", "pytest", *chosen, f"--junitxml={report}", "-p", "no:cacheprovider", "-rs"]
    process = stages.start(command, ROOT)
    try:
        output, _ = process.communicate(timeout=context.seconds_left() - SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
        context.piece.failures.append("the suite was interrupted: the minutes were over")
    log_path.write_text(output, encoding="utf-8")
    if process.returncode not in (0, 1, 2):  # all well, some failed, interrupted
        raise RuntimeError(f"pytest ended with {process.returncode}: {output[-1000:]}")
    report_tests(context, ElementTree.parse(report).getroot())


def report_tests(context: Context, root: ElementTree.Element) -> None:
    """A line for each file of tests, and the failures and the slowest tests by name."""
    cases = list(root.iter("testcase"))
    files: dict[str, list[ElementTree.Element]] = {}
    for case in cases:
        files.setdefault(case.get("classname", ""), []).append(case)
    table = context.table("Tests by file:", "file", "passed", "failed", "skipped", "seconds")
    for name, own in [*sorted(files.items()), ("all", cases)]:
        failed, skipped = (sum(_has(case, *kinds) for case in own) for kinds in (("failure", "error"), ("skipped",)))
        seconds = sum(float(case.get("time", 0)) for case in own)
        table.add(name.rpartition(".")[2], len(own) - failed - skipped, failed, skipped, seconds)
    for case in cases:
        if _has(case, "failure", "error"):
            problem = next(iter(case.findall("failure") + case.findall("error")))
            context.piece.failures.append(f"{case.get('name')}: {' '.join((problem.get('message') or '').split())[:300]}")
    context.require(bool(cases), "no test was run")
    slowest = sorted(cases, key=lambda case: -float(case.get("time", 0)))[:10]
    listed = context.table("The slowest:", "test", "seconds")
    for case in slowest:
        listed.add(case.get("name", ""), float(case.get("time", 0)))


def _has(case: ElementTree.Element, *kinds: str) -> bool:
    return any(case.find(kind) is not None for kind in kinds)
