"""Questions for the SQuAD benchmark: a seeded sample of training questions and of development questions, never the same words in both.

    python sample_squad.py SQUAD_FOLDER OUTPUT_FOLDER TRAIN_COUNT DEV_COUNT [SEED]

Reads BEIR files (queries.jsonl.gz, qrels/{train,dev}.tsv.gz); writes {train,dev}-queries.jsonl and {train,dev}.tsv.
"""

import random
import sys
from pathlib import Path

from moeir.records import qrels, texts


def sampled(folder: Path, train_count: int, dev_count: int, seed: int) -> dict[str, list[texts.Text]]:
    """Questions of each part; a training question with the words of any development question is never drawn."""
    queries = texts.read_all(folder / "queries.jsonl.gz")
    judged = {part: qrels.read(folder / "qrels" / f"{part}.tsv.gz") for part in ("train", "dev")}
    asked = {_words(queries[query].text) for query in judged["dev"]}
    pools = {
        "train": [query for query in judged["train"] if query not in judged["dev"] and _words(queries[query].text) not in asked],
        "dev": list(judged["dev"]),
    }
    dice = random.Random(seed)
    counts = {"train": train_count, "dev": dev_count}
    return {part: [queries[one] for one in dice.sample(pool, min(counts[part], len(pool)))] for part, pool in pools.items()}


def _words(text: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def main(folder: Path, output: Path, train_count: int, dev_count: int, seed: int = 42) -> None:
    """Write the files."""
    output.mkdir(parents=True, exist_ok=True)
    for part, questions in sampled(folder, train_count, dev_count, seed).items():
        judged = qrels.read(folder / "qrels" / f"{part}.tsv.gz")
        texts.write(questions, output / f"{part}-queries.jsonl")
        qrels.write({question.id: judged[question.id] for question in questions}, output / f"{part}.tsv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
