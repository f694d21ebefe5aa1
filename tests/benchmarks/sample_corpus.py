"""A small collection around the development questions: every passage they are judged on, and a seeded sample of the others.

    python sample_corpus.py CORPUS QRELS OUTPUT COUNT [SEED]

QRELS are those of the questions that will be searched; COUNT is how many passages OUTPUT holds in all.
"""

import random
import sys
from pathlib import Path

from moeir.records import qrels, texts


def main(corpus: Path, judged: Path, output: Path, count: int, seed: int = 42) -> None:
    """Write the passages in the order of the corpus."""
    judged_ids = {document for grades in qrels.read_qrels(judged).values() for document in grades}
    every = list(texts.read_texts(corpus, keep_empty=True))
    others = [text.id for text in every if text.id not in judged_ids and text.content]
    kept_ids = judged_ids | set(random.Random(seed).sample(others, max(0, min(count - len(judged_ids), len(others)))))
    texts.write_texts([text for text in every if text.id in kept_ids], output)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *map(int, sys.argv[4:]))
