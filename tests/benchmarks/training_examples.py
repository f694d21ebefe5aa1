"""Training examples for a speed benchmark: real queries with real passages, every passage in one example only.

The positive of an example is a judged one, or a random one if the collection has no training judgements.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from moeir.records import examples, qrels, texts
from moeir.records.examples import Example
from moeir.records.texts import Text


def prepared(collection: Path, asked: Path | None, folder: Path, *, count: int, negatives: int, seed: int) -> None:
    """`count` examples into a folder: corpus.jsonl, queries.jsonl, train.jsonl; `asked` are queries where none are judged."""
    if (folder / "train.jsonl").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    corpus = texts.read_texts_by_id(collection / "corpus.jsonl.gz")
    documents = sorted(corpus)
    rng.shuffle(documents)
    pairs = list(_random_pairs(asked, documents, rng) if asked is not None else _judged_pairs(collection, corpus, rng))[:count]
    positives = {positive for _, positive in pairs}
    others = iter([document for document in documents if document not in positives])
    training_examples = [Example(query.id, (positive,), tuple(next(others) for _ in range(negatives))) for query, positive in pairs]
    if len(training_examples) < count:
        raise SystemExit(f"{collection}: {len(training_examples)} examples of {count}; fewer --steps or --batch")
    document_ids = [document for example in training_examples for document in (*example.positive_ids, *example.negative_ids)]
    texts.write_texts((corpus[document] for document in document_ids), folder / "corpus.jsonl")
    texts.write_texts((query for query, _ in pairs), folder / "queries.jsonl")
    examples.write_examples(training_examples, folder / "train.jsonl")


def _judged_pairs(collection: Path, corpus: dict[str, Text], rng: random.Random) -> Iterator[tuple[Text, str]]:
    """A query and a passage judged to answer it, no passage twice."""
    queries, all_qrels = texts.read_texts_by_id(collection / "queries.jsonl.gz"), qrels.read_qrels(collection / "qrels" / "train.tsv.gz")
    used_positives: set[str] = set()
    for query in rng.sample(sorted(all_qrels), len(all_qrels)):
        positive = next((document for document, grade in all_qrels[query].items() if grade > 0 and document not in used_positives), None)
        if positive in corpus and query in queries:
            used_positives.add(positive)
            yield queries[query], positive


def _random_pairs(asked: Path, documents: list[str], rng: random.Random) -> Iterator[tuple[Text, str]]:
    """A query and any passage, from the end of the list."""
    queries = texts.read_texts_by_id(asked)
    yield from zip((queries[query] for query in rng.sample(sorted(queries), len(queries))), reversed(documents))
