"""Write the record of a row: what was run, on which machine, the values of every test question, and the log of its training.

    python record.py ROW FOLDER [--training [NAME=]CHECKPOINT]... [--variable NAME=VALUE]... SET=QRELS=CORPUS...
    python record.py ROW FOLDER --same CHECKPOINT    # fails unless the row was recorded with the weights of CHECKPOINT
    python record.py --commit                        # of the code that runs

Reads runs/ROW/SET/*.trec and fused/ROW/SET/*.trec below the current folder. Writes FOLDER/ROW.json (settings, digests, machine, commit,
means, overlaps), FOLDER/ROW.scores.gz (nDCG@10 of each question in the order of QRELS, and which questions have a relevant document in
common) and, of a training, FOLDER/ROW.log.gz (its metrics.jsonl; of several trainings the metrics as NAME.METRIC). These are small
enough to be committed, and tables.py needs nothing else.
"""

import argparse
import datetime
import gzip
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import moeir
from moeir.analysis.overlap import analyze_overlap
from moeir.artifacts import manifests
from moeir.evaluation import measures
from moeir.records import qrels, runs

SUMS = ("fused", "calibrated", "with-bm25", "bm25")  # runs that are no experts
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


def check_weights(row: str, folder: Path, checkpoint: Path) -> str | None:
    """What is wrong, if a row was recorded with other weights than those of the checkpoint."""
    trainings = json.loads((folder / f"{row}.json").read_text(encoding="utf-8"))["trainings"]
    if digest_weights(manifests.read_manifest(checkpoint)) in [training["weights"] for training in trainings.values()]:
        return None
    return (
        f"{folder / row}.json: recorded with other weights than {checkpoint}: another kind of processor gives others, and rows of both "
        "would be mixed; continue on the kind of processor that the record names, or run the whole experiment again with REPEAT=WORD"
    )


def join_logs(logs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Mapping[str, float]]:
    """A line for each step, with the metrics of each log under its name; the log of a single training without a name as it is.

    >>> join_logs({"a": [{"step": 1, "loss": 2.0}], "b": [{"step": 1, "loss": 3.0}]})
    [{'step': 1, 'a.loss': 2.0, 'b.loss': 3.0}]
    """
    if list(logs) == [""]:
        return list(logs[""])
    joined: dict[float, dict[str, float]] = {}
    for name, lines in logs.items():
        for line in lines:
            metrics = {f"{name}.{metric}": value for metric, value in line.items() if metric != "step"}
            joined.setdefault(line["step"], {"step": line["step"]}).update(metrics)
    return [joined[step] for step in sorted(joined)]


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


def write_gzip(path: Path, text: str) -> None:
    """The same text gives the same bytes."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def write_record(
    row: str, folder: Path, checkpoints: Mapping[str, Path], variables: Mapping[str, str], sets: Sequence[Sequence[str]]
) -> None:
    """Write the files of a row; `sets` has name, judgements and corpus of each test set."""
    record: dict[str, Any] = {
        "row": row,
        "size": os.environ.get("SIZE", "cores"),
        "variables": variables,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": os.environ.get("COMMIT") or describe_commit(),
        "machine": describe_machine(),
        "trainings": {name: describe_training(checkpoint) for name, checkpoint in checkpoints.items()},
        "sets": {},
    }
    if checkpoints:
        lines = {name: (checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines() for name, checkpoint in checkpoints.items()}
        joined = join_logs({name: [json.loads(line) for line in of_one] for name, of_one in lines.items()})
        write_gzip(folder / f"{row}.log.gz", "".join(json.dumps(line) + "\n" for line in joined))
    scores = {}
    for name, judgements, corpus in sets:
        folders = [Path(kind) / row / name for kind in ("runs", "fused")]
        record["sets"][name], scores[name] = evaluate_set(folders, Path(judgements), Path(corpus))
    write_gzip(folder / f"{row}.scores.gz", json.dumps(scores))
    partial = folder / f".{row}.partial"  # last and in one step: its presence says that the row is whole
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / f"{row}.json")


def main() -> None:
    """Write the record, or compare weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", nargs="?")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("sets", nargs="*", metavar="SET=QRELS=CORPUS")
    parser.add_argument("--training", action="append", default=[], metavar="[NAME=]CHECKPOINT")
    parser.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--same", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--commit", action="store_true")
    options = parser.parse_intermixed_args()
    if options.commit:
        print(describe_commit())
    elif options.same:
        sys.exit(check_weights(options.row, options.folder, options.same))
    else:
        named = [one.rpartition("=") for one in options.training]
        variables = dict(one.split("=", 1) for one in options.variable)
        sets = [one.split("=", 2) for one in options.sets]
        write_record(options.row, options.folder, {name: Path(checkpoint) for name, _, checkpoint in named}, variables, sets)


if __name__ == "__main__":
    main()
