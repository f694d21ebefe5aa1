"""Convert DPR's Natural Questions to moeir's files. The largest file is one JSON value and takes 25 GB of memory.

    python examples/nq_from_dpr.py downloads/data data/nq

reads the files that DPR's download_data.py writes to downloads/data: wikipedia_split/psgs_w100.tsv, retriever/nq-train.json,
retriever/nq-dev.json, retriever/qas/nq-test.csv; writes corpus.jsonl, {train,dev}-queries.jsonl, {train,dev}.qrels and, without
judgements, test-queries.jsonl. The judgements of a question are in the order of DPR's list: the first is the positive that DPR trains on,
`moeir finetune --positives first`.
"""

import ast
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from moeir.records import qrels, texts
from moeir.records.texts import Text


def passages(path: Path) -> Iterator[Text]:
    """Passages from tab-separated id, text and title, quoted as in CSV."""
    with open(path, encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            yield Text(row["id"], row["text"], title=row["title"])


def questions(path: Path, name: str) -> tuple[list[Text], qrels.Qrels]:
    """The questions that have a positive passage, numbered by their position in the file, and those passages."""
    queries, positives_by_query = [], {}
    for number, entry in enumerate(json.loads(path.read_text(encoding="utf-8"))):
        positives = [str(context.get("passage_id") or context["psg_id"]) for context in entry["positive_ctxs"]]
        if positives:
            queries.append(Text(f"{name}{number}", entry["question"], answers=tuple(entry["answers"])))
            positives_by_query[f"{name}{number}"] = dict.fromkeys(positives, 1)
    return queries, positives_by_query


def tests(path: Path) -> Iterator[Text]:
    """Test questions, one per line with a Python list of its answers."""
    with open(path, encoding="utf-8", newline="") as lines:
        for number, (question, answers) in enumerate(csv.reader(lines, delimiter="\t")):
            yield Text(f"test{number}", question, answers=tuple(ast.literal_eval(answers)))


def main(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev"):
        queries, positives_by_query = questions(source / "retriever" / f"nq-{name}.json", name)
        texts.write_texts(queries, folder / f"{name}-queries.jsonl")
        qrels.write_qrels(positives_by_query, folder / f"{name}.qrels")
    texts.write_texts(tests(source / "retriever" / "qas" / "nq-test.csv"), folder / "test-queries.jsonl")
    texts.write_texts(passages(source / "wikipedia_split" / "psgs_w100.tsv"), folder / "corpus.jsonl")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
