"""Settings tried on held-out training questions: one small record each, and the best of a group.

    python choices.py record FOLDER GROUP SETTING CHECKPOINT
    python choices.py best FOLDER GROUP COUNT

SETTING is SIMILARITY-RATE. `record` writes FOLDER/GROUP-SETTING.json from the training's last development value; `best` prints the setting
with the highest one of a group (of equal ones the first by name), once the group has COUNT records.
"""

import datetime
import json
import os
import sys
from pathlib import Path

MEASURE = "dev.fused.nDCG@10"


def record_choice(folder: Path, group: str, setting: str, checkpoint: Path) -> None:
    """Write the record of a tried setting."""
    import record  # takes seconds, which `best` need not wait for

    lines = [json.loads(line) for line in (checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    tenth = max(1, len(losses) // 10)
    similarity, _, rate = setting.partition("-")
    facts = {
        "group": group,
        "similarity": similarity,
        "rate": rate,
        "nDCG@10": round(next(line[MEASURE] for line in reversed(lines) if MEASURE in line), 6),
        "loss": [round(sum(part) / len(part), 4) for part in (losses[:tenth], losses[-tenth:])],
        "size": os.environ.get("SIZE", "cores"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": os.environ.get("COMMIT") or record.describe_commit(),
        "machine": record.describe_machine(),
        "training": record.describe_training(checkpoint),
    }
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{group}-{setting}.partial"
    partial.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    partial.replace(folder / f"{group}-{setting}.json")


def best_choice(folder: Path, group: str, count: int) -> str:
    """The setting of a group with the highest value."""
    tried = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{group}-*.json"))]
    if len(tried) != count:
        sys.exit(f"{folder}: found {len(tried)} tried settings of {group}, expected {count}")
    best = max(tried, key=lambda facts: facts["nDCG@10"])
    return f"{best['similarity']}-{best['rate']}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", folder, group, setting, checkpoint]:
            record_choice(Path(folder), group, setting, Path(checkpoint))
        case ["best", folder, group, count]:
            print(best_choice(Path(folder), group, int(count)))
        case _:
            sys.exit(__doc__)
