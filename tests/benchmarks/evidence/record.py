"""Write the record of a row: what was run, on which machine, the values of every test question, and the log of its training.

    python record.py ROW RECORDS [--training [NAME=]CHECKPOINT]... [--variable NAME=VALUE]... SET=QRELS=CORPUS...
    python record.py ROW RECORDS --same CHECKPOINT    # fails unless the row was recorded with the weights of CHECKPOINT
    python record.py ROW RECORDS --curve METRIC       # its values, one a line
    python record.py --commit                         # of the code that runs

Reads runs/ROW/SET/*.trec and fused/ROW/SET/*.trec below the current folder. Adds a line to RECORDS, NAME.jsonl.gz: settings, digests,
machine, commit, means, overlaps, nDCG@10 of each question in the order of QRELS and which questions have a relevant document in common,
and the declared curves of its trainings (of several the metrics as NAME.METRIC). It is small enough to be committed, and tables.py needs
nothing else.
"""

import argparse
import datetime
import fcntl
import gzip
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import moeir
from moeir.analysis.overlap import analyze_overlap
from moeir.artifacts import manifests
from moeir.evaluation import measures
from moeir.records import qrels, runs

SUMS = ("fused", "calibrated", "sumrr", "normsum", "with-bm25", "bm25")  # runs that are no experts
MEASURES = ("nDCG@10", "RR@10", "R@100")
PATHS = {"model", "train", "corpus", "queries", "dataset", "dev-queries", "dev-qrels", "dev-corpus", "dev-run", "cache", "config", "output"}


def describe_training(checkpoint: Path) -> dict[str, Any]:
    """Settings, digests of what was read and made, and counts of a training, without paths of this machine."""
    manifest = manifests.read_manifest(checkpoint)
    return {
        "settings": {name: value for name, value in manifest["settings"].items() if name not in PATHS and value not in (None, [], "")},
        "sources": manifest["sources"],
        "weights": digest_weights(manifest),
        "counts": manifest["counts"],
        "seconds": round(manifest["seconds"]),
    }


def digest_weights(manifest: Mapping[str, Any]) -> str:
    """One digest of a checkpoint's files of weights."""
    return manifests.digest_files({name: entry for name, entry in manifest["files"].items() if name.endswith(".safetensors")})


def check_weights(row: str, records: Path, checkpoint: Path) -> str | None:
    """What is wrong, if a row was recorded with other weights than those of the checkpoint."""
    trainings = read_records(records)[row]["trainings"]
    if digest_weights(manifests.read_manifest(checkpoint)) in [training["weights"] for training in trainings.values()]:
        return None
    return (
        f"{records}: {row} was recorded with other weights than {checkpoint}: another kind of processor gives others, and rows of both "
        "would be mixed; continue on the kind of processor that the record names, or run the whole experiment again with REPEAT=WORD"
    )


def declared_curves(records: Path) -> list[str]:
    """The metrics that the declaration of an experiment draws."""
    name = records.name.partition(".")[0].partition("-")[0]
    return list(yaml.safe_load((Path(__file__).parent / "declarations" / f"{name}.yaml").read_text(encoding="utf-8"))["curves"])


def select_curves(logs: Mapping[str, Sequence[Mapping[str, float]]], metrics: Sequence[str]) -> dict[str, list[list[float]]]:
    """Steps and values of each metric that a training has; `logs` has the lines of each by its name, "" if there is one.

    >>> select_curves({"a": [{"step": 1, "loss": 2.0}], "b": [{"step": 1, "loss": 3.0}]}, ["b.loss", "gain"])
    {'b.loss': [[1, 3.0]]}
    """
    named = {f"{name}.{metric}" if name else metric: (name, metric) for name, lines in logs.items() for line in lines for metric in line}
    chosen = {metric: named[metric] for metric in metrics if metric in named}
    return {
        key: [[line["step"], line[metric]] for line in logs[name] if metric in line] for key, (name, metric) in chosen.items()
    }


def describe_machine() -> dict[str, Any]:
    """Processor, its extensions that matter for bfloat16 and int8, and threads."""
    facts = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name")]
    extensions = [name for name in ("avx512_bf16", "avx512_vnni", "amx_bf16") if name in facts]
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    return {"processor": (names or [platform.processor()])[0], "extensions": extensions, "threads": threads}


def describe_commit(folder: Path = Path(moeir.__file__).parent) -> str:
    """Commit of the code that runs, with + if tracked files were changed."""
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--dirty=+", "--abbrev=7"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return completed.stdout.strip() or "unknown"


def describe_run() -> dict[str, Any]:
    """Size, date, commit and machine of what is recorded."""
    return {
        "size": os.environ.get("SIZE", "cores"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": os.environ.get("COMMIT") or describe_commit(),
        "machine": describe_machine(),
    }


def evaluate_set(folders: Sequence[Path], judgements: Path, corpus: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Means and overlaps of a set's runs, and nDCG@10 of every question."""
    judged = qrels.read_qrels(judgements)
    loaded = {path.stem: runs.read_run(path) for folder in folders for path in sorted(folder.glob("*.trec"))}
    wanted = [measures.parse_measure(name) for name in MEASURES]
    values = {name: measures.evaluate_run(run, judged, wanted) for name, run in loaded.items()}
    means = {
        name: {measure: round(mean, 6) for measure, mean in measures.aggregate_values(of_run).items()} for name, of_run in values.items()
    }
    experts = {name: run for name, run in loaded.items() if name not in SUMS}
    pairs = analyze_overlap(experts, "rbo:persistence=0.9").rows if len(experts) > 1 else []
    overlaps = {f"{one}-{other}": round(value, 4) for one, other, _, value in pairs}
    scores = {name: [round(of_run[MEASURES[0]][question], 4) for question in judged] for name, of_run in values.items()}
    scores["documents"] = number_documents(judged)
    digests = {"qrels": manifests.compute_sha256(judgements), "corpus": manifests.compute_sha256(corpus)}
    return {"questions": len(judged), **digests, "means": means, "rbo": overlaps}, scores


def number_documents(judged: qrels.Qrels) -> list[float]:
    """The number of each question's first relevant document: questions about one document are not independent."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(next((name for name, grade in grades.items() if grade > 0), ""), len(numbers)) for grades in judged.values()]


def read_lines(records: Path) -> list[dict[str, Any]]:
    """All lines of a file of records: of rows, and of settings that were tried (choices.py)."""
    return [json.loads(line) for line in gzip.decompress(records.read_bytes()).splitlines()] if records.exists() else []


def read_records(records: Path) -> dict[str, dict[str, Any]]:
    """The records of rows by name."""
    return {line["row"]: line for line in read_lines(records) if "row" in line}


def append_line(records: Path, line: Mapping[str, Any]) -> None:
    """Add a line, in one step, beside other processes that add theirs; a gzip file may have several parts."""
    records.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(records.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        partial = records.with_suffix(".partial")
        earlier = records.read_bytes() if records.exists() else b""
        partial.write_bytes(earlier + gzip.compress((json.dumps(line) + "\n").encode(), mtime=0))
        partial.replace(records)
    finally:
        os.close(folder)


def write_record(
    row: str, records: Path, checkpoints: Mapping[str, Path], variables: Mapping[str, str], sets: Sequence[Sequence[str]]
) -> None:
    """Write the line of a row; `sets` has name, judgements and corpus of each test set."""
    record: dict[str, Any] = {
        "row": row,
        "variables": variables,
        **describe_run(),
        "trainings": {name: describe_training(checkpoint) for name, checkpoint in checkpoints.items()},
        "sets": {},
        "curves": {},
        "scores": {},
    }
    lines = {name: (checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines() for name, checkpoint in checkpoints.items()}
    logs = {name: [json.loads(line) for line in of_one] for name, of_one in lines.items()}
    record["curves"] = select_curves(logs, declared_curves(records))
    for name, judgements, corpus in sets:
        folders = [Path(kind) / row / name for kind in ("runs", "fused")]
        record["sets"][name], record["scores"][name] = evaluate_set(folders, Path(judgements), Path(corpus))
    append_line(records, record)


def main() -> None:
    """Write the record, compare weights, or print a curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", nargs="?")
    parser.add_argument("records", nargs="?", type=Path)
    parser.add_argument("sets", nargs="*", metavar="SET=QRELS=CORPUS")
    parser.add_argument("--training", action="append", default=[], metavar="[NAME=]CHECKPOINT")
    parser.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--same", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--curve", metavar="METRIC")
    parser.add_argument("--commit", action="store_true")
    options = parser.parse_intermixed_args()
    if options.commit:
        print(describe_commit())
    elif options.same:
        sys.exit(check_weights(options.row, options.records, options.same))
    elif options.curve:
        print("\n".join(str(value) for _, value in read_records(options.records)[options.row]["curves"][options.curve]))
    else:
        named = [one.rpartition("=") for one in options.training]
        variables = dict(one.split("=", 1) for one in options.variable)
        sets = [one.split("=", 2) for one in options.sets]
        write_record(options.row, options.records, {name: Path(checkpoint) for name, _, checkpoint in named}, variables, sets)


if __name__ == "__main__":
    main()
