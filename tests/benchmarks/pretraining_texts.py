"""One corpus of several collections to pre-train on, and a query for each of its documents.

    python pretraining_texts.py OUTPUT_FOLDER COLLECTION_FOLDER...

Reads BEIR folders (corpus.jsonl.gz, and where there are training judgements queries.jsonl.gz and qrels/train.tsv.gz). Writes
corpus.jsonl, ids made unique by the name of the collection, and queries.jsonl as `moeir generate-queries` does: a document's training
questions where it has any, otherwise its first sentence. No question of a development or test part is written, and no training question
with the same words as one. Prints how many documents have which.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from moeir.pretraining.sentences import split
from moeir.records import generated, qrels, texts

HELD_BACK = ("dev", "test")


def words(text: str) -> str:
    """The words of a question, without case or punctuation."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def training_questions(folder: Path) -> dict[str, list[str]]:
    """Document id -> the training questions it answers."""
    if not (folder / "qrels" / "train.tsv.gz").exists():
        return {}
    queries = texts.read_all(folder / "queries.jsonl.gz")
    heldout_files = [folder / "qrels" / f"{part}.tsv.gz" for part in HELD_BACK]
    tested = {query for path in heldout_files if path.exists() for query in qrels.read(path)}
    heldout_texts = {words(queries[query].text) for query in tested}
    questions_by_document: dict[str, list[str]] = defaultdict(list)
    for query, grades in qrels.read(folder / "qrels" / "train.tsv.gz").items():
        if query not in tested and words(queries[query].text) not in heldout_texts:
            for document, grade in grades.items():
                if grade > 0:
                    questions_by_document[document].append(queries[query].text)
    return questions_by_document


def asked_of(document: texts.Text, questions: list[str]) -> tuple[str, list[str]]:
    """The kind of a document's queries, and the queries."""
    if questions:
        return "training questions", questions
    return "first sentence", split(document.text)[:1]


def documents(folder: Path) -> Iterator[texts.Text]:
    """The documents with a text."""
    for document in texts.read(folder / "corpus.jsonl.gz", keep_empty=True):
        if document.text.strip():
            yield replace(document, id=f"{folder.name}-{document.id}")


def main(output: Path, *folders: Path) -> None:
    """Write both files."""
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "corpus.jsonl", "w", encoding="utf-8") as corpus, open(output / "queries.jsonl", "w", encoding="utf-8") as queries:
        for folder in folders:
            questions, kinds = training_questions(folder), Counter[str]()
            for document in documents(folder):
                kind, queries_of_document = asked_of(document, questions.get(document.id.removeprefix(f"{folder.name}-"), []))
                kinds[kind] += 1
                corpus.write(json.dumps(texts.record(document), ensure_ascii=False) + "\n")
                queries.write(generated.line(document.id, queries_of_document) + "\n")
            print(folder.name, *(f"{count} with {kind}" for kind, count in sorted(kinds.items())), sep="\t")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
