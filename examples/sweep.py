"""Train each setting of a grid with several seeds, and choose the best by a measure on development queries.

    python examples/sweep.py examples/sweep.yaml WORK                # trains what is missing, then prints the table
    python examples/sweep.py examples/sweep.yaml WORK --job 3/12     # trains every twelfth, from the fourth on: for job arrays
    python examples/sweep.py examples/sweep.yaml WORK --table        # trains nothing

WORK/SETTING/SEED has the checkpoint, encodings, index and run.trec of a training. Killed and called again, it goes on where it was.
A changed grid.yaml trains what is new; a change of what all trainings share is refused, as the folders have the old values: --force makes
all again. Every setting is checked before the first training. A setting that is refused or fails does not stop the others: the table has
those with all their seeds, the rest is named at the end, and the exit code is 1.
"""

import argparse
import itertools
import logging
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import moeir
from moeir import console, data_sources, settings
from moeir.artifacts.shards import Shard
from moeir.errors import DataError, MoeirError, UsageError
from moeir.evaluation import measures, significance, tables
from moeir.stages import base, stage_class

PARTS = {"finetune": dict, "grid": dict, "seeds": list, "dev": dict}
DEV_FILES, DEV_VALUES = ("corpus", "queries", "qrels"), ("measure", "depth")
SET_BY_THE_SWEEP = {"seed", "output"}
Setting = tuple[tuple[str, Any], ...]
log = logging.getLogger("sweep")


def read_sweep(path: Path) -> dict[str, Any]:
    """The grid with what its trainings share; one line for what is missing, repeated or of another form."""
    sweep = settings.read_yaml(path)
    if sweep.keys() != PARTS.keys() or not all(isinstance(sweep[name], kind) and sweep[name] for name, kind in PARTS.items()):
        expected = "mappings finetune, grid and dev, and the list seeds"
        raise DataError(f"{path}: expected the {expected}, each with values, found {', '.join(map(str, sweep))}")
    for name, values in (*sweep["grid"].items(), ("seeds", sweep["seeds"])):
        is_list = isinstance(values, list) and values and all(isinstance(value, str) for value in values)
        if not is_list or len(set(values)) < len(values):
            raise DataError(f"{path}: {name}: expected a list of different values, each a word or a number, found {values}")
    if not all(isinstance(sweep["dev"].get(name), str) for name in (*DEV_FILES, *DEV_VALUES)):
        raise DataError(f"{path}: dev: expected {', '.join((*DEV_FILES, *DEV_VALUES))}, found {', '.join(map(str, sweep['dev']))}")
    if not (sweep["dev"]["depth"].isdecimal() and int(sweep["dev"]["depth"])):
        raise DataError(f"{path}: dev: depth: expected a number from 1 on, found {sweep['dev']['depth']}")
    shared, grid = ({str(name).replace("-", "_"): value for name, value in sweep[part].items()} for part in ("finetune", "grid"))
    if len(grid) < len(sweep["grid"]) or len(shared) < len(sweep["finetune"]):
        raise DataError(f"{path}: a setting is named twice, with - and with _; leave one out")
    if repeated := grid.keys() & (shared.keys() | SET_BY_THE_SWEEP) or shared.keys() & SET_BY_THE_SWEEP:
        place = "set by the sweep itself" if repeated & SET_BY_THE_SWEEP else "in finetune as well as in grid"
        raise DataError(f"{path}: {min(repeated)}: is {place}; leave it out")
    for name in DEV_FILES:
        if not data_sources.is_remote(sweep["dev"][name]) and not Path(sweep["dev"][name]).exists():
            raise DataError(f"{path}: dev: {name}: {sweep['dev'][name]}: no such file")
    measures.parse_measure(sweep["dev"]["measure"])
    moeir.read_qrels(sweep["dev"]["qrels"])
    return sweep | {"finetune": shared, "grid": grid}


def list_trainings(sweep: Mapping[str, Any], work: Path) -> dict[Path, tuple[Setting, str]]:
    """The folder of every training: its setting and its seed."""
    names = [[(name, value, part) for value, part in shorten_values(values).items()] for name, values in sweep["grid"].items()]
    trainings: dict[Path, tuple[Setting, str]] = {}
    for parts in itertools.product(*names):
        folder = work / ",".join(f"{name}={part}" for name, _, part in parts)
        setting = tuple((name, value) for name, value, _ in parts)
        trainings |= {folder / f"seed={seed}": (setting, seed) for seed in sweep["seeds"]}
    return trainings


def shorten_values(values: list[str]) -> dict[str, str]:
    """What stands for each value in the name of a folder: its last path part, or all of it, escaped, if another value ends alike.

    >>> shorten_values(["a/t.jsonl", "b/t.jsonl", "c/u.jsonl", "1e-5"])
    {'a/t.jsonl': 'a%2Ft.jsonl', 'b/t.jsonl': 'b%2Ft.jsonl', 'c/u.jsonl': 'u.jsonl', '1e-5': '1e-5'}
    """
    names = {value: Path(value).name for value in values}
    counts = Counter(names.values())
    whole = {value: value if counts[name] > 1 else name for value, name in names.items()}
    return {value: name.replace("%", "%25").replace("/", "%2F").replace(",", "%2C") for value, name in whole.items()}


def check_training(folder: Path, setting: Setting, seed: str, sweep: Mapping[str, Any]) -> None:
    """What `moeir finetune` refuses before it trains, and files that are missing."""
    values = sweep["finetune"] | dict(setting) | {"seed": seed, "output": folder / "checkpoint"}
    known = {item.name for item in settings.list_settings(stage_class("finetune"))}
    if unknown := values.keys() - known:
        raise UsageError(f"{min(unknown)}: moeir finetune has no such setting")
    stage = settings.build_stage(stage_class("finetune"), values)
    base.check_settings(stage)
    for item, path in stage.sources():
        if item.kind != "checkpoint" and not data_sources.is_remote(path) and not path.exists():
            raise DataError(f"{path}: no such file ({item.flag})")


def train_and_search(folder: Path, setting: Setting, seed: str, sweep: Mapping[str, Any], *, force: bool) -> None:
    """Each stage sees by itself whether it is made already, and continues a training that was killed; unless `force`."""
    dev = sweep["dev"]
    moeir.finetune(**sweep["finetune"] | dict(setting), seed=seed, output=folder / "checkpoint", force=force)
    moeir.encode(model=folder / "checkpoint", corpus=dev["corpus"], output=folder / "encodings", force=force)
    moeir.index(encodings=folder / "encodings", output=folder / "index", force=force)
    moeir.search(index=folder / "index", queries=dev["queries"], depth=dev["depth"], output=folder / "run.trec", force=force)


def train_all(trainings: Mapping[Path, tuple[Setting, str]], sweep: Mapping[str, Any], *, force: bool) -> dict[Path, str]:
    """Check all trainings, then train those that are in order -> what went wrong with the others, by folder."""
    failures: dict[Path, str] = {}
    for action in (check_training, partial(train_and_search, force=force)):
        for folder, (setting, seed) in trainings.items():
            try:
                if folder not in failures:
                    action(folder, setting, seed, sweep)
            except Exception as problem:  # noqa: BLE001 - whatever stops one training, the others go on
                reason = str(problem) if isinstance(problem, MoeirError) else f"{type(problem).__name__}: {' '.join(str(problem).split())}"
                failures[folder] = f"{folder}: {reason}"
                log.error("%s; the others go on", failures[folder])
    return failures


def describe_interval(sample: list[float]) -> str:
    """The 95 % interval of the mean; none for a single value."""
    return "{:.4f}-{:.4f}".format(*significance.confidence_interval(sample)) if len(sample) > 1 else "-"


def mean_over_seeds(runs: list[Path], sweep: Mapping[str, Any]) -> tuple[dict[str, float], list[float]]:
    """The value of each query, averaged over the seeds, and the mean of each seed."""
    qrels, measure = moeir.read_qrels(sweep["dev"]["qrels"]), measures.parse_measure(sweep["dev"]["measure"])
    values = [measures.evaluate_run(moeir.read_run(run), qrels, [measure])[str(measure)] for run in runs]
    return {query: statistics.fmean(one[query] for one in values) for query in qrels}, [statistics.fmean(one.values()) for one in values]


def format_results(sweep: Mapping[str, Any], trainings: Mapping[Path, tuple[Setting, str]]) -> str:
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
    try:
        sweep = read_sweep(options.sweep)
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
    trainings = list_trainings(sweep, options.work)
    step = slice(None) if options.job is None else slice(options.job.number, None, options.job.total)
    failures = train_all({} if options.table else dict(list(trainings.items())[step]), sweep, force=options.force)
    if options.job is None:
        for folder in trainings.keys() - failures.keys():
            if not (folder / "run.trec").exists():
                failures[folder] = f"{folder}/run.trec: is not made yet; run the sweep without --table, or its --job again"
        incomplete = {folder.parent for folder in failures}
        if complete := {folder: training for folder, training in trainings.items() if folder.parent not in incomplete}:
            sys.stdout.write(format_results(sweep, complete) + "\n")
    if failures:
        sys.exit("\n".join(failures[folder] for folder in trainings if folder in failures))


if __name__ == "__main__":
    main()
