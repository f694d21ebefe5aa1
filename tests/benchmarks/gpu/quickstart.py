"""Part 6: the quickstart on the card with ten times the steps, compared with the CPU's results in results/quickstart.md."""

import platform
import re
import time
from contextlib import chdir
from pathlib import Path

from moeir.records import texts as records
from tests.benchmarks.gpu import stages, texts
from tests.benchmarks.gpu.results import ROOT, Context, log

PUBLISHED = ROOT / "tests" / "benchmarks" / "results" / "quickstart.md"
NAMES = {"bm25": "BM25", "untrained": "MiniLM, untrained", "fused+bm25": "fused + BM25 (rrf)"}
MEASURE = "nDCG@10"


def train_longer(context: Context) -> None:
    """Every command of the quickstart but the page, in this process, and nDCG@10 of its lists."""
    steps = 3 if context.toy else 1200
    quickstart = texts.prepare_quickstart(context, context.folder / "quickstart", steps=steps)
    if quickstart is None:
        return
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    for command in quickstart.run("finetune", "report"):
        log(f"{command[0]}: {time.perf_counter() - began:.0f} s")
        seconds[command[0]] = seconds.get(command[0], 0.0) + time.perf_counter() - began
        began = time.perf_counter()
    with chdir(quickstart.folder):
        stages.run_stage(*quickstart.first("evaluate"), "--form", "tsv", "--output", "evaluation.tsv")
    values, published = read_values(quickstart.folder / "evaluation.tsv"), read_published(PUBLISHED)
    title = f"{MEASURE} of the test queries, after twice {steps:,} steps here and twice 150 on the CPU:"
    table = context.table(title, "run", "here", "CPU, 150 steps")
    for name, value in values.items():
        table.add(NAMES.get(name, name), f"{value:.4f}", published.get(NAMES.get(name, name), ""))
    times = context.table("Seconds of the stages, both trainings together:", "stage", "seconds")
    for name, spent in seconds.items():
        times.add(name, spent)
    files = {"corpus": "passages", "train-queries": "training queries", "test-queries": "test queries"}
    counts = {name: sum(1 for _ in records.read_texts(quickstart.folder / "data" / f"{name}.jsonl")) for name in files}
    known = ", ".join(f"{counts[name]:,} {words}" for name, words in files.items())
    context.piece.notes += [
        f"Python {platform.python_version()}'s standard library: {known}. The CPU's are of Python 3.11.7; where BM25's value is "
        "the same, so is the collection. Precision, device and dropout are the defaults.",
        f"Each of the two trainings goes {steps * 8 / max(1, counts['train-queries']):.1f} times over the training queries.",
    ]
    whole = len(values) == 8 and all(0.0 <= value <= 1.0 for value in values.values())
    context.require(whole, f"eight lists were expected, found {values}")


def read_values(path: Path) -> dict[str, float]:
    """The measure of each run, by its name."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return {line[0]: float(line[-1]) for line in lines if MEASURE in line and "all" in line}


def read_published(path: Path) -> dict[str, str]:
    """The measure of each run in the table of results/quickstart.md."""
    matches = re.findall(r"^\| ([^|]+?) \| (0\.\d{4}) \|", path.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(matches)
