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

from moeir.pretraining.spans import split_sentences
from moeir.records import generated_queries, qrels, texts

HELD_OUT = ("dev", "test")


def normalise_words(text: str) -> str:
    """The words of a question, without case or punctuation."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def training_questions(folder: Path) -> dict[str, list[str]]:
    """Document id -> the training questions it answers."""
    if not (folder / "qrels" / "train.tsv.gz").exists():
        return {}
    queries = texts.read_texts_by_id(folder / "queries.jsonl.gz")
    heldout_files = [folder / "qrels" / f"{part}.tsv.gz" for part in HELD_OUT]
    tested = {query for path in heldout_files if path.exists() for query in qrels.read_qrels(path)}
    heldout_texts = {normalise_words(queries[query].text) for query in tested}
    questions_by_document: dict[str, list[str]] = defaultdict(list)
    for query, grades in qrels.read_qrels(folder / "qrels" / "train.tsv.gz").items():
        if query not in tested and normalise_words(queries[query].text) not in heldout_texts:
            for document, grade in grades.items():
                if grade > 0:
                    questions_by_document[document].append(queries[query].text)
    return questions_by_document


def queries_of(document: texts.Text, questions: list[str]) -> tuple[str, list[str]]:
    """The kind of a document's queries, and the queries."""
    if questions:
        return "training questions", questions
    return "first sentence", split_sentences(document.text)[:1]


def read_documents(folder: Path) -> Iterator[texts.Text]:
    """The documents with a text."""
    for document in texts.read_texts(folder / "corpus.jsonl.gz", keep_empty=True):
        if document.text.strip():
            yield replace(document, id=f"{folder.name}-{document.id}")


def main(output: Path, *folders: Path) -> None:
    """Write both files."""
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "corpus.jsonl", "w", encoding="utf-8") as corpus, open(output / "queries.jsonl", "w", encoding="utf-8") as queries:
        for folder in folders:
            questions, kinds = training_questions(folder), Counter[str]()
            for document in read_documents(folder):
                kind, queries_of_document = queries_of(document, questions.get(document.id.removeprefix(f"{folder.name}-"), []))
                kinds[kind] += 1
                corpus.write(json.dumps(texts.to_record(document), ensure_ascii=False) + "\n")
                queries.write(generated_queries.format_line(document.id, queries_of_document) + "\n")
            print(folder.name, *(f"{count} with {kind}" for kind, count in sorted(kinds.items())), sep="\t")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
