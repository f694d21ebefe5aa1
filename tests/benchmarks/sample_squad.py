"""Questions for a benchmark: seeded samples of training questions and of another part's, without common questions.

    python sample_squad.py FOLDER OUTPUT_FOLDER TRAIN_COUNT PART_COUNT [SEED [PART]]

PART defaults to `dev`. Reads BEIR files (queries.jsonl.gz, qrels/{train,PART}.tsv.gz); writes {train,PART}-queries.jsonl and
{train,PART}.tsv.
"""

import random
import sys
from pathlib import Path

from moeir.records import qrels, texts


def sample_queries(folder: Path, train_count: int, count: int, seed: int, tested: str = "dev") -> dict[str, list[texts.Text]]:
    """Questions of both parts, without training questions that have the words of any question of the tested part."""
    queries = texts.read_texts_by_id(folder / "queries.jsonl.gz")
    judged = {part: qrels.read_qrels(folder / "qrels" / f"{part}.tsv.gz") for part in ("train", tested)}
    tested_texts = {_words(queries[query].text) for query in judged[tested]}
    pools = {
        "train": [query for query in judged["train"] if query not in judged[tested] and _words(queries[query].text) not in tested_texts],
        tested: list(judged[tested]),
    }
    rng = random.Random(seed)
    counts = {"train": train_count, tested: count}
    return {part: [queries[one] for one in rng.sample(pool, min(counts[part], len(pool)))] for part, pool in pools.items()}


def _words(text: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def main(folder: Path, output: Path, train_count: int, count: int, seed: int = 42, tested: str = "dev") -> None:
    """Write the files."""
    output.mkdir(parents=True, exist_ok=True)
    for part, questions in sample_queries(folder, train_count, count, seed, tested).items():
        judged = qrels.read_qrels(folder / "qrels" / f"{part}.tsv.gz")
        texts.write_texts(questions, output / f"{part}-queries.jsonl")
        qrels.write_qrels({question.id: judged[question.id] for question in questions}, output / f"{part}.tsv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]), *sys.argv[6:])
