"""The record of a row that has a training of its own on each collection, as record.py writes that of a row with one training.

    python joint_record.py ROW FOLDER SET=QRELS=CHECKPOINT...

Reads runs/ROW/SET/*.trec below the current folder; CHECKPOINT is - for none. `trainings` has the training of each set, `training` the first
one's with the seconds of all, and the log the metrics of each as SET.METRIC.
"""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import record


def join_logs(logs: dict[str, list[dict[str, float]]]) -> list[dict[str, float]]:
    """A line for each step, with the metrics of each log under its name.

    >>> join_logs({"a": [{"step": 1, "loss": 2.0}], "b": [{"step": 1, "loss": 3.0}]})
    [{'step': 1, 'a.loss': 2.0, 'b.loss': 3.0}]
    """
    joined: dict[float, dict[str, float]] = {}
    for name, lines in logs.items():
        for line in lines:
            metrics = {f"{name}.{metric}": value for metric, value in line.items() if metric != "step"}
            joined.setdefault(line["step"], {"step": line["step"]}).update(metrics)
    return [joined[step] for step in sorted(joined)]


def main(row: str, folder: Path, parts: list[list[str]]) -> None:
    """Write FOLDER/ROW.json, ROW.scores.gz and, with trainings, ROW.log.gz."""
    joint: dict[str, Any] = {
        "row": row,
        "size": os.environ.get("SIZE", "cores"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": record.describe_commit(Path(__file__).parent),
        "machine": record.describe_machine(),
        "sets": {},
    }
    scores = {}
    for name, qrels, _ in parts:
        joint["sets"][name], scores[name] = record.evaluate_set(Path("runs") / row / name, Path(qrels))
    checkpoints = {name: Path(checkpoint) for name, _, checkpoint in parts if checkpoint != "-"}
    if checkpoints:
        joint["trainings"] = {name: record.describe_training(checkpoint) for name, checkpoint in checkpoints.items()}
        seconds = sum(training["seconds"] for training in joint["trainings"].values())
        joint["training"] = next(iter(joint["trainings"].values())) | {"seconds": seconds}
        logs = {
            name: [json.loads(line) for line in (checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
            for name, checkpoint in checkpoints.items()
        }
        record.write_gzip(folder / f"{row}.log.gz", "".join(json.dumps(line) + "\n" for line in join_logs(logs)))
    record.write_gzip(folder / f"{row}.scores.gz", json.dumps(scores))
    partial = folder / f".{row}.partial"  # last and in one step: its presence says that the row is whole
    partial.write_text(json.dumps(joint, indent=1) + "\n", encoding="utf-8")
    partial.replace(folder / f"{row}.json")


if __name__ == "__main__":
    parts = [one.split("=") for one in sys.argv[3:]]
    if not parts or any(len(part) != 3 for part in parts):
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), parts)
