"""Convert DPR's five question answering sets to moeir's files; each file is read entry by entry.

    python examples/taser_sets.py downloads/data data/odqa                # nq trivia webq curatedtrec squad1
    python examples/taser_sets.py downloads/data data/odqa nq             # some of them

reads the files that DPR's download_data.py writes to downloads/data: wikipedia_split/psgs_w100.tsv, retriever/SET-{train,dev}.json and
retriever/qas/SET-{dev,test}.csv; writes corpus.jsonl and for every SET a folder with train-queries.jsonl, train.qrels and
test-queries.jsonl, and for nq and trivia, the dev sets of training, dev-queries.jsonl, dev.qrels, dev-corpus.jsonl (the passages that
DPR's file names for them: a positive, 30 hard and 30 other negatives) and dev-answers.jsonl (all development questions, each with the
name of its set).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nq_from_dpr import passages, tests

from moeir.records import dpr, lines, qrels, texts
from moeir.records.texts import Text

SETS = ("nq", "trivia", "webq", "curatedtrec", "squad1")
WITH_DEV_SET = ("nq", "trivia")
POOL = 30  # negatives of each kind that DPR's validation ranks with the positive


def entries(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The questions that have a positive passage, with their positions in the file."""
    with lines.open_lines(path) as numbered:
        for index, (_, entry) in enumerate(dpr.read_array(str(path), numbered)):
            if entry["positive_ctxs"]:
                yield index, entry


def passage(context: dict[str, Any]) -> Text:
    """A context of DPR's files as a passage, with its id in the corpus."""
    return Text(str(context.get("passage_id") or context["psg_id"]), context["text"], title=context["title"])


def write_training_set(source: Path, name: str, folder: Path) -> None:
    """Write train-queries.jsonl and train.qrels, the positive passages in DPR's order: its training takes the first."""
    queries, positives_by_query = [], {}
    for index, entry in entries(source / "retriever" / f"{name}-train.json"):
        queries.append(Text(f"{name}-train{index}", entry["question"], answers=tuple(entry["answers"])))
        positives_by_query[queries[-1].id] = {passage(context).id: 1 for context in entry["positive_ctxs"]}
    texts.write_texts(queries, folder / "train-queries.jsonl")
    qrels.write_qrels(positives_by_query, folder / "train.qrels")


def write_dev_set(source: Path, name: str, folder: Path) -> None:
    """Write dev-queries.jsonl, dev.qrels, dev-corpus.jsonl and dev-answers.jsonl; as DPR, validate on the first positive passage only."""
    queries, positives_by_query, pool = [], {}, {}
    for index, entry in entries(source / "retriever" / f"{name}-dev.json"):
        queries.append(Text(f"{name}-dev{index}", entry["question"], answers=tuple(entry["answers"])))
        positives_by_query[queries[-1].id] = {passage(entry["positive_ctxs"][0]).id: 1}
        contexts = [entry["positive_ctxs"][0], *entry.get("hard_negative_ctxs", [])[:POOL], *entry.get("negative_ctxs", [])[:POOL]]
        pool |= {text.id: text for text in map(passage, contexts)}
    texts.write_texts(queries, folder / "dev-queries.jsonl")
    qrels.write_qrels(positives_by_query, folder / "dev.qrels")
    texts.write_texts(pool.values(), folder / "dev-corpus.jsonl")
    with lines.open_writer(folder / "dev-answers.jsonl") as output:
        for question in tests(source / "retriever" / "qas" / f"{name}-dev.csv"):
            record = texts.to_record(question) | {"_id": f"{name}-{question.id.replace('test', 'answers')}", "set": name}
            output.write(json.dumps(record, ensure_ascii=False) + "\n")


def main(source: Path, folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_training_set(source, name, folder / name)
        texts.write_texts(tests(source / "retriever" / "qas" / f"{name}-test.csv"), folder / name / "test-queries.jsonl")
        if name in WITH_DEV_SET:
            write_dev_set(source, name, folder / name)
    texts.write_texts(passages(source / "wikipedia_split" / "psgs_w100.tsv"), folder / "corpus.jsonl")


if __name__ == "__main__":
    if len(sys.argv) < 3 or set(sys.argv[3:]) - set(SETS):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or list(SETS))
