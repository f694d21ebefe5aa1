"""One corpus of several collections to pre-train on, and a query for each of its documents.

    python pretraining_texts.py OUTPUT_FOLDER COLLECTION_FOLDER...

Reads BEIR folders (corpus.jsonl.gz, and where there are training judgements queries.jsonl.gz and qrels/train.tsv.gz). Writes
corpus.jsonl, ids made unique by the name of the collection, and queries.jsonl as `moeir generate-queries` does: a document's training
questions where it has any, otherwise its first sentence. A query names the characters that it was made from, so that `moeir pretrain`
pairs it with their span: those of the first sentence, or of the question's answer, where it occurs in the sentence that shares most words
with the question; MedQuAD's questions name the first character, as an answer says at once what it answers; others belong to the whole
document. No question of a development or test part is written, and no training question with the same words as one. Prints how many
documents have which, and how many queries name characters.
"""

import json
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from sample_questions import normalise_words

from moeir.records import generated_queries, qrels, texts
from moeir.records.sentences import find_sentence_starts

HELD_OUT = ("dev", "test")


def training_questions(folder: Path) -> dict[str, list[texts.Text]]:
    """Document id -> the training questions it answers."""
    if not (folder / "qrels" / "train.tsv.gz").exists():
        return {}
    queries = texts.read_texts_by_id(folder / "queries.jsonl.gz")
    heldout_files = [folder / "qrels" / f"{part}.tsv.gz" for part in HELD_OUT]
    tested = {query for path in heldout_files if path.exists() for query in qrels.read_qrels(path)}
    heldout_texts = {normalise_words(queries[query].text) for query in tested}
    questions_by_document: dict[str, list[texts.Text]] = defaultdict(list)
    for query, grades in qrels.read_qrels(folder / "qrels" / "train.tsv.gz").items():
        if query not in tested and normalise_words(queries[query].text) not in heldout_texts:
            for document, grade in grades.items():
                if grade > 0:
                    questions_by_document[document].append(queries[query])
    return questions_by_document


def split_sentences(text: str) -> list[str]:
    """The sentences of a text; concatenated, they are the text."""
    return [text[begin:end] for begin, end in pairwise([*find_sentence_starts(text), len(text)])]


def answer_characters(content: str, question: texts.Text) -> tuple[int, int] | None:
    """Where the question's answer is in a text, in the sentence with most of the question's words; None if it is nowhere."""
    asked = set(normalise_words(question.text).split())
    sentences, begins = split_sentences(content), find_sentence_starts(content)
    best: tuple[int, int, int] | None = None
    for answer in question.answers:
        for match in re.finditer(re.escape(answer), content):
            sentence = sentences[bisect_right(begins, match.start()) - 1]
            shared = len(asked.intersection(normalise_words(sentence).split()))
            best = max(best or (-1, 0, 0), (shared, match.start(), match.end()), key=lambda one: one[0])
    return None if best is None else best[1:]


def queries_of(document: texts.Text, questions: list[texts.Text], *, at_once: bool) -> tuple[str, dict[str, list[str]]]:
    """The kind of a document's queries, and the queries by the id of the document or of the characters that they were made from."""
    if not questions:
        (sentence,) = split_sentences(document.text)[:1]
        begin = len(document.content) - len(document.text.strip())
        return "first sentence", {generated_queries.format_span_id(document.id, begin, begin + len(sentence.strip())): [sentence]}
    by_id: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        characters = (0, 1) if at_once else answer_characters(document.content, question)
        by_id[document.id if characters is None else generated_queries.format_span_id(document.id, *characters)].append(question.text)
    return "training questions", by_id


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
            questions, kinds, bound = training_questions(folder), Counter[str](), Counter[bool]()
            for document in read_documents(folder):
                own = questions.get(document.id.removeprefix(f"{folder.name}-"), [])
                kind, by_id = queries_of(document, own, at_once=folder.name == "medquad")
                kinds[kind] += 1
                corpus.write(json.dumps(texts.to_record(document), ensure_ascii=False) + "\n")
                for name, queries_of_name in by_id.items():
                    bound[name != document.id] += len(queries_of_name)
                    queries.write(generated_queries.format_line(name, queries_of_name) + "\n")
            counts = [f"{count} with {kind}" for kind, count in sorted(kinds.items())]
            print(folder.name, *counts, f"{bound[True]} of {bound.total()} queries name characters", sep="\t")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
