"""Write the record of a row: what was run, on which machine, the values of every test question, and the log of its training.

    python record.py ROW FOLDER --training CHECKPOINT SET=QRELS...

Reads runs/ROW/SET/*.trec and fused/ROW/SET/*.trec below the current folder. Writes FOLDER/ROW.json (settings, machine, commit, means,
overlaps), FOLDER/ROW.scores.gz (nDCG@10 of each question, in the order of QRELS) and, of a training, FOLDER/ROW.log.gz (its
metrics.jsonl). These are small enough to be committed, and tables.py needs nothing else.
"""

import argparse
import datetime
import gzip
import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moeir.analysis.overlap import analyze_overlap
from moeir.artifacts import manifests
from moeir.evaluation import measures
from moeir.records import qrels, runs
from moeir.retrieval.latency import _processor_name

SUMS = ("fused", "calibrated", "with-bm25", "bm25")  # runs that are no experts
MEASURES = ("nDCG@10", "RR@10", "R@100")
PATHS = {"model", "train", "corpus", "queries", "dataset", "dev-queries", "dev-qrels", "dev-corpus", "dev-run", "cache", "config", "output"}


def describe_training(checkpoint: Path) -> dict[str, Any]:
    """Settings, start and counts of a training, without paths of this machine."""
    manifest = manifests.read_manifest(checkpoint)
    settings = {name: value for name, value in manifest["settings"].items() if name not in PATHS and value not in (None, [], "")}
    start, counts, seconds = manifest["sources"]["model"], manifest["counts"], round(manifest["seconds"])
    return {"settings": settings, "start": start, "counts": counts, "seconds": seconds}


def describe_machine() -> dict[str, Any]:
    """Processor, its extensions that matter for bfloat16 and int8, and threads."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    extensions = [name for name in ("avx512_bf16", "avx512_vnni", "amx_bf16") if name in flags]
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    return {"processor": _processor_name(), "extensions": extensions, "threads": threads}


def describe_commit(folder: Path) -> str:
    """Commit of the code, with + if tracked files were changed."""
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--dirty=+", "--abbrev=7"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    return completed.stdout.strip() or "unknown"


def evaluate_set(folders: Sequence[Path], judgements: Path) -> tuple[dict[str, Any], dict[str, Any]]:
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
    digest = hashlib.sha256("\n".join(judged).encode()).hexdigest()[:16]
    scores = {name: [round(of_run[MEASURES[0]][question], 4) for question in judged] for name, of_run in values.items()}
    return {"questions": len(judged), "digest": digest, "means": means, "rbo": overlaps}, scores


def write_gzip(path: Path, text: str) -> None:
    """The same text gives the same bytes."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row")
    parser.add_argument("folder", type=Path)
    parser.add_argument("sets", nargs="*", metavar="SET=QRELS")
    parser.add_argument("--training", required=True, help="checkpoint, or - for a row without a training")
    options = parser.parse_intermixed_args()
    record: dict[str, Any] = {
        "row": options.row,
        "size": os.environ.get("SIZE", "cores"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": describe_commit(Path(__file__).parent),
        "machine": describe_machine(),
        "sets": {},
    }
    if options.training != "-":
        checkpoint = Path(options.training)
        record["training"] = describe_training(checkpoint)
        write_gzip(options.folder / f"{options.row}.log.gz", (checkpoint / "metrics.jsonl").read_text(encoding="utf-8"))
    scores = {}
    for name, _, path in (one.partition("=") for one in options.sets):
        record["sets"][name], scores[name] = evaluate_set([Path(kind) / options.row / name for kind in ("runs", "fused")], Path(path))
    write_gzip(options.folder / f"{options.row}.scores.gz", json.dumps(scores))
    partial = options.folder / f".{options.row}.partial"  # last and in one step: its presence says that the row is whole
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(options.folder / f"{options.row}.json")


if __name__ == "__main__":
    main()
