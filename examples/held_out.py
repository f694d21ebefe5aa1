"""Hold out a part of the training queries; what is left becomes examples of positives alone, for training with in-batch negatives.

    python examples/held_out.py --queries Q --qrels R --corpus C --part 0.05 --seed 42 --output FOLDER

writes train.jsonl, and of the queries held out dev-queries.jsonl, dev.qrels and dev-corpus.jsonl, their positives.
"""

import argparse
import random
from pathlib import Path

from moeir.records import examples, qrels, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=Path, required=True, help="training queries")
    parser.add_argument("--qrels", type=Path, required=True, help="their judgements")
    parser.add_argument("--corpus", type=Path, required=True, help="documents")
    parser.add_argument("--part", type=float, required=True, help="of the queries, to hold out")
    parser.add_argument("--seed", type=int, default=42, help="of the draw")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    given = parser.parse_args()
    read = qrels.read(given.qrels).items()
    judged = {query: {document: grade for document, grade in grades.items() if grade > 0} for query, grades in read}
    asked = [text for text in texts.read(given.queries) if judged.get(text.id)]
    chosen = set(random.Random(given.seed).sample(range(len(asked)), max(1, round(given.part * len(asked)))))
    held = [text for place, text in enumerate(asked) if place in chosen]
    positives = {document for text in held for document in judged[text.id]}
    given.output.mkdir(parents=True, exist_ok=True)
    texts.write(held, given.output / "dev-queries.jsonl")
    qrels.write({text.id: judged[text.id] for text in held}, given.output / "dev.qrels")
    texts.write((text for text in texts.read(given.corpus) if text.id in positives), given.output / "dev-corpus.jsonl")
    beside = given.output / ".train.jsonl"
    left = (text.id for place, text in enumerate(asked) if place not in chosen)
    examples.write((examples.Example(query, tuple(judged[query]), ()) for query in left), beside)
    beside.rename(given.output / "train.jsonl")


if __name__ == "__main__":
    main()
