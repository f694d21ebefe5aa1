"""Training examples for a benchmark of speed: real queries with real passages, every passage in one example only.

Where the collection judges queries, an example has its positive; elsewhere it is drawn, which changes no length.
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
    dice = random.Random(seed)
    corpus = texts.read_all(collection / "corpus.jsonl.gz")
    documents = sorted(corpus)
    dice.shuffle(documents)
    pairs = list(_drawn(asked, documents, dice) if asked is not None else _judged(collection, corpus, dice))[:count]
    positives = {positive for _, positive in pairs}
    others = iter([document for document in documents if document not in positives])
    made = [Example(query.id, (positive,), tuple(next(others) for _ in range(negatives))) for query, positive in pairs]
    if len(made) < count:
        raise SystemExit(f"{collection}: {len(made)} examples of {count}; fewer --steps or --batch")
    used = [document for example in made for document in (*example.positive_ids, *example.negative_ids)]
    texts.write((corpus[document] for document in used), folder / "corpus.jsonl")
    texts.write((query for query, _ in pairs), folder / "queries.jsonl")
    examples.write(made, folder / "train.jsonl")


def _judged(collection: Path, corpus: dict[str, Text], dice: random.Random) -> Iterator[tuple[Text, str]]:
    """A query and a passage judged to answer it, no passage twice."""
    queries, judged = texts.read_all(collection / "queries.jsonl.gz"), qrels.read(collection / "qrels" / "train.tsv.gz")
    known: set[str] = set()
    for query in dice.sample(sorted(judged), len(judged)):
        positive = next((document for document, grade in judged[query].items() if grade > 0 and document not in known), None)
        if positive in corpus and query in queries:
            known.add(positive)
            yield queries[query], positive


def _drawn(asked: Path, documents: list[str], dice: random.Random) -> Iterator[tuple[Text, str]]:
    """A query and any passage, from the end of the list."""
    queries = texts.read_all(asked)
    yield from zip((queries[query] for query in dice.sample(sorted(queries), len(queries))), reversed(documents))
