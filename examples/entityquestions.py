"""Convert EntityQuestions' files to one file of questions, each with its answers and its relation.

    python examples/entityquestions.py ENTITYQUESTIONS/test data/odqa/entityquestions.jsonl

reads RELATION.test.json for every relation, as Sciavolino et al. 2021 distribute them.
"""

import json
import sys
from pathlib import Path

from moeir.records import lines, texts
from moeir.records.texts import Text


def main(folder: Path, output: Path) -> None:
    files = sorted(folder.glob("*.json"))
    if not files:
        sys.exit(f"{folder}: holds no .json file; expected files such as P17.test.json")
    with lines.open_writer(output) as writer:
        for file in files:
            relation = file.name.split(".")[0]
            for index, entry in enumerate(json.loads(file.read_text(encoding="utf-8"))):
                question = Text(f"{relation}-{index}", entry["question"], answers=tuple(entry["answers"]))
                writer.write(json.dumps(texts.to_record(question) | {"relation": relation}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
