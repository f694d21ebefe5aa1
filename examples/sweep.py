"""Train each setting of a grid with several seeds, and choose the best by a measure on development queries.

    python examples/sweep.py examples/sweep.yaml WORK                # trains what is missing, then prints the table
    python examples/sweep.py examples/sweep.yaml WORK --job 3/12     # trains every twelfth, from the fourth on: for job arrays
    python examples/sweep.py examples/sweep.yaml WORK --table        # trains nothing

WORK/SETTING/SEED has the checkpoint, encodings, index and run.trec of a training. Killed and called again, it goes on where it was.
A changed grid.yaml trains what is new; a change of what all trainings share is refused, as the folders have the old values: --force makes
all again.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import moeir
from moeir import console
from moeir.artifacts.shards import Shard
from moeir.errors import DataError, MoeirError
from moeir.evaluation import measures, significance, tables

Setting = tuple[tuple[str, Any], ...]


def list_trainings(sweep: Mapping[str, Any], work: Path) -> dict[Path, tuple[Setting, int]]:
    """The folder of every training: its setting and its seed."""
    settings = itertools.product(*([(name, value) for value in values] for name, values in sweep["grid"].items()))
    return {work / name_setting(setting) / f"seed={seed}": (setting, seed) for setting in settings for seed in sweep["seeds"]}


def name_setting(setting: Setting) -> str:
    return ",".join(f"{name}={Path(str(value)).name}" for name, value in setting)


def train_and_search(folder: Path, setting: Setting, seed: int, sweep: Mapping[str, Any], *, force: bool) -> None:
    """Each stage sees by itself whether it is made already, and continues a training that was killed; unless `force`."""
    dev = sweep["dev"]
    moeir.finetune(**sweep["finetune"] | dict(setting), seed=seed, output=folder / "checkpoint", force=force)
    moeir.encode(model=folder / "checkpoint", corpus=dev["corpus"], output=folder / "encodings", force=force)
    moeir.index(encodings=folder / "encodings", output=folder / "index", force=force)
    moeir.search(index=folder / "index", queries=dev["queries"], depth=dev["depth"], output=folder / "run.trec", force=force)


def describe_interval(sample: list[float]) -> str:
    """The 95 % interval of the mean; none for a single value."""
    return "{:.4f}-{:.4f}".format(*significance.confidence_interval(sample, is_measure=True)) if len(sample) > 1 else "-"


def mean_over_seeds(runs: list[Path], sweep: Mapping[str, Any]) -> tuple[dict[str, float], list[float]]:
    """The value of each query, averaged over the seeds, and the mean of each seed."""
    if missing := [run for run in runs if not run.exists()]:
        raise DataError(f"{missing[0]}: is not made yet; run the sweep without --table, or its --job again")
    qrels, measure = moeir.read_qrels(sweep["dev"]["qrels"]), measures.parse_measure(sweep["dev"]["measure"])
    values = [measures.evaluate_run(moeir.read_run(run), qrels, [measure])[str(measure)] for run in runs]
    return {query: statistics.fmean(one[query] for one in values) for query in qrels}, [statistics.fmean(one.values()) for one in values]


def format_results(sweep: Mapping[str, Any], trainings: Mapping[Path, tuple[Setting, int]]) -> str:
    """The table, best setting first, and what it says of the best."""
    folders: dict[str, list[Path]] = {}
    for folder in trainings:
        folders.setdefault(folder.parent.name, []).append(folder)
    results = {name: mean_over_seeds([folder / "run.trec" for folder in own], sweep) for name, own in folders.items()}
    order = sorted(results, key=lambda name: -statistics.fmean(results[name][1]))
    best, *others = order
    p_values = significance.correct_p_values([significance.paired_t_test(results[best][0], results[name][0]) for name in others], "holm")
    rows = []
    for name, p in zip(order, [None, *p_values], strict=True):
        by_query, by_seed = results[name]
        intervals = [describe_interval(list(sample)) for sample in (by_query.values(), by_seed)]
        rows.append([name, len(by_seed), statistics.fmean(by_seed), *intervals, p])
    header = ["setting", "seeds", sweep["dev"]["measure"], "95 % of queries", "95 % of seeds", "p (Holm)"]
    close = [name for name, p in zip(others, p_values, strict=True) if p >= 0.05]
    lines = [tables.format_table(header, rows), "", f"best: {best}"]
    lines += [f"not told apart from it by these queries (p >= 0.05): {'; '.join(close)}"] if close else []
    lines.append(f"chosen on {sweep['dev']['queries']}, so its value there is too high; no test query was read: evaluate it on them, once")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the grid, as examples/sweep.yaml")
    parser.add_argument("work", type=Path, help="folder of all trainings")
    parser.add_argument("--job", type=Shard.parse, help="I/N: trainings I, I + N, I + 2N …, counted from 0, without the table")
    parser.add_argument("--force", action="store_true", help="make all trainings again, with the values of the grid as it is now")
    parser.add_argument("--table", action="store_true", help="print the table of what is trained")
    options = parser.parse_args()
    console.configure_logging()
    sweep = yaml.safe_load(options.sweep.read_text(encoding="utf-8"))
    trainings = list_trainings(sweep, options.work)
    step = slice(None) if options.job is None else slice(options.job.number, None, options.job.total)
    folder = options.work
    try:
        for folder, (setting, seed) in [] if options.table else list(trainings.items())[step]:
            train_and_search(folder, setting, seed, sweep, force=options.force)
        if options.job is None:
            sys.stdout.write(format_results(sweep, trainings) + "\n")
    except MoeirError as problem:
        sys.exit(f"{folder}: {problem}")


if __name__ == "__main__":
    main()
