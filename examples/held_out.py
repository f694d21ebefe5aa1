"""Hold out a part of the training queries as a dev set; the others become examples without negatives, for in-batch negatives.

    python examples/held_out.py --queries Q --qrels R --corpus C --part 0.05 --seed 42 --output FOLDER

writes train.jsonl, and for the held-out queries dev-queries.jsonl, dev.qrels and dev-corpus.jsonl (their positives).
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
    parser.add_argument("--part", type=float, required=True, help="share of the queries to hold out")
    parser.add_argument("--seed", type=int, default=42, help="seed of the random choice")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    grades_by_query = qrels.read_qrels(arguments.qrels).items()
    positives_by_query = {query: {document: grade for document, grade in grades.items() if grade > 0} for query, grades in grades_by_query}
    queries = [text for text in texts.read_texts(arguments.queries) if positives_by_query.get(text.id)]
    dev_indices = set(random.Random(arguments.seed).sample(range(len(queries)), max(1, round(arguments.part * len(queries)))))
    dev_queries = [text for index, text in enumerate(queries) if index in dev_indices]
    positives = {document for text in dev_queries for document in positives_by_query[text.id]}
    arguments.output.mkdir(parents=True, exist_ok=True)
    texts.write_texts(dev_queries, arguments.output / "dev-queries.jsonl")
    qrels.write_qrels({text.id: positives_by_query[text.id] for text in dev_queries}, arguments.output / "dev.qrels")
    texts.write_texts((text for text in texts.read_texts(arguments.corpus) if text.id in positives), arguments.output / "dev-corpus.jsonl")
    partial = arguments.output / ".train.jsonl"
    train_ids = (text.id for index, text in enumerate(queries) if index not in dev_indices)
    examples.write_examples((examples.Example(query, tuple(positives_by_query[query]), ()) for query in train_ids), partial)
    partial.rename(arguments.output / "train.jsonl")


if __name__ == "__main__":
    main()
