"""Questions for a benchmark: seeded samples of training questions and of another part's, one of each wording, with what is relevant to it.

    python sample_questions.py FOLDER OUTPUT_FOLDER TRAIN_COUNT PART_COUNT [SEED [PART]]

PART defaults to `dev`. Reads BEIR files (queries.jsonl.gz, corpus.jsonl.gz, qrels/{train,PART}.tsv.gz); writes
{train,PART}-queries.jsonl and {train,PART}.tsv.

Some collections ask the same question under several ids, each judged for one of the right documents (MedQuAD: 171 of its 897 development
questions repeat another's words). The first one stays, in the tested part if it is in both, with the judgements of all. To its relevant
documents come those of equal text, if the text names the subject: under one of its titles at least it holds every word of the title.
Otherwise the title alone says what a text is about ("This condition is inherited in an autosomal recessive pattern", 348 times in MedQuAD).
"""

import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from moeir.records import qrels, texts

Samples = dict[str, list[texts.Text]]


def sample_queries(folder: Path, train_count: int, count: int, seed: int, tested: str = "dev") -> tuple[Samples, qrels.Qrels]:
    """Questions of both parts, of which no two have the same words, and the judgements of each."""
    queries = texts.read_texts_by_id(folder / "queries.jsonl.gz")
    repeated = find_repeated_texts(texts.read_texts(folder / "corpus.jsonl.gz", keep_empty=True))
    counts = {tested: count, "train": train_count}
    pools: dict[str, list[str]] = {part: [] for part in counts}
    first_ids: dict[str, str] = {}  # by words; the tested part comes first
    judged: qrels.Qrels = {}
    for part, pool in pools.items():
        for query, grades in qrels.read_qrels(folder / "qrels" / f"{part}.tsv.gz").items():
            first = first_ids.setdefault(normalise_words(queries[query].text), query)
            if first not in judged:
                judged[first] = {}
                pool.append(first)
            for document, grade in grades.items():
                for equal in repeated.get(document, [document]) if grade > 0 else [document]:
                    judged[first][equal] = max(grade, judged[first].get(equal, grade))
    rng = random.Random(seed)
    samples = {part: rng.sample(pools[part], min(counts[part], len(pools[part]))) for part in ("train", tested)}
    return {part: [queries[query] for query in sample] for part, sample in samples.items()}, judged


def find_repeated_texts(corpus: Iterable[texts.Text]) -> dict[str, list[str]]:
    """For each document whose text is also that of others, and names its subject: the ids of all of them."""
    groups = defaultdict(list)
    for document in corpus:
        groups[normalise_words(document.text)].append(document)
    return {
        document.id: [one.id for one in documents]
        for words, documents in groups.items()
        if words and len(documents) > 1 and any(set(normalise_words(one.title).split()) <= set(words.split()) for one in documents)
        for document in documents
    }


def normalise_words(text: str) -> str:
    """The words of a text, without case or punctuation."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def main(folder: Path, output: Path, train_count: int, count: int, seed: int = 42, tested: str = "dev") -> None:
    """Write the files."""
    output.mkdir(parents=True, exist_ok=True)
    samples, judged = sample_queries(folder, train_count, count, seed, tested)
    for part, questions in samples.items():
        texts.write_texts(questions, output / f"{part}-queries.jsonl")
        qrels.write_qrels({question.id: judged[question.id] for question in questions}, output / f"{part}.tsv")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:6]), *sys.argv[6:])
