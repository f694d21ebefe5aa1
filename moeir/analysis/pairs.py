"""Random pairs of a query and a relevant document, on which the two sides of an encoder are compared."""

import random
from pathlib import Path

from moeir.errors import DataError
from moeir.records import qrels, texts


def sample_pairs(queries: Path, corpus: Path, judgements: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """Sample `count` pairs of texts at random: a query and its document of the highest grade (the first if several)."""
    grades = {query: {name: grade for name, grade in judged.items() if grade > 0} for query, judged in qrels.read_qrels(judgements).items()}
    query_texts = {text.id: text.content for text in texts.read_texts(queries) if grades.get(text.id)}
    relevant = {document for query in query_texts for document in grades[query]}
    answers = {text.id: text.content for text in texts.read_texts(corpus, keep_empty=True) if text.id in relevant and text.content}
    pairs = []
    for query, content in sorted(query_texts.items()):
        if present := [document for document in grades[query] if document in answers]:
            pairs.append((content, answers[max(present, key=grades[query].__getitem__)]))
    if len(pairs) < count:
        count_note = f"{len(pairs)} queries have a relevant document with both texts in {queries} and {corpus}"
        raise DataError(f"{judgements}: {count_note}; expected {count}, as --pairs says; lower it")
    return random.Random(seed).sample(pairs, count)
