"""Settings tried on held-out training questions: one line of the records each, and the best of a group.

    python choices.py record RECORDS GROUP SETTING CHECKPOINT
    python choices.py best RECORDS GROUP COUNT

SETTING is SIMILARITY-RATE. `record` adds a line to RECORDS from the training's last development value; `best` prints the setting
with the highest one of a group (of equal ones the first by name), once the group has COUNT records.
"""

import json
import sys
from pathlib import Path

import record

MEASURE = "dev.fused.nDCG@10"


def record_choice(records: Path, group: str, setting: str, checkpoint: Path) -> None:
    """Write the record of a tried setting."""
    lines = [json.loads(line) for line in (checkpoint / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    tenth = max(1, len(losses) // 10)
    similarity, _, rate = setting.partition("-")
    facts = {
        "choice": f"{group}-{setting}",
        "group": group,
        "similarity": similarity,
        "rate": rate,
        "nDCG@10": round(next(line[MEASURE] for line in reversed(lines) if MEASURE in line), 6),
        "loss": [round(sum(part) / len(part), 4) for part in (losses[:tenth], losses[-tenth:])],
        **record.describe_run(),
        "training": record.describe_training(checkpoint),
    }
    record.append_line(records, facts)


def best_choice(records: Path, group: str, count: int) -> str:
    """The setting of a group with the highest value."""
    lines = [line for line in record.read_lines(records) if line.get("group") == group]
    tried = sorted(lines, key=lambda line: line["choice"])
    if len(tried) != count:
        sys.exit(f"{records}: found {len(tried)} tried settings of {group}, expected {count}")
    best = max(tried, key=lambda facts: facts["nDCG@10"])
    return f"{best['similarity']}-{best['rate']}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", records, group, setting, checkpoint]:
            record_choice(Path(records), group, setting, Path(checkpoint))
        case ["best", records, group, count]:
            print(best_choice(Path(records), group, int(count)))
        case _:
            sys.exit(__doc__)
