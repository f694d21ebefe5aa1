"""MedQuAD divided by subject: the documents and questions of a subject (a document's title) all train, all develop, or all test.

    python subjects.py CORPUS QUESTIONS_FOLDER OUTPUT_FOLDER
        [--test 4000] [--dev 800] [--first 480] [--second 1600] [--others 500] [--seed 1]

QUESTIONS_FOLDER has {train,dev}-queries.jsonl with {train,dev}.tsv, of which no two questions have the same words (sample_questions.py).
Subjects that share a question or differ in capitals alone are one. Subjects are drawn until their questions are TEST, then DEV; of the
questions of the others FIRST and SECOND train, one part each. Writes {first,second,dev,test}-queries.jsonl with
{first,second,dev,test}.tsv, corpus.jsonl (all documents of the subjects that test or develop, those that the training questions are
judged on, and OTHERS) and dev-corpus.jsonl (the documents of the subjects that develop, and half of the OTHERS).
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from moeir.records import qrels, texts


def group_documents(titles: Mapping[str, str], judged: Iterable[Sequence[str]]) -> list[list[str]]:
    """The documents of each subject: those of equal title, and those that one question is judged on.

    >>> group_documents({"a": "Flu", "b": "flu", "c": "Asthma", "d": "Wheezing"}, [["c", "d"]])
    [['a', 'b'], ['c', 'd']]
    """
    first_of = {document: document for document in titles}

    def find_first(document: str) -> str:
        while first_of[document] != document:
            document = first_of[document]
        return document

    by_title: dict[str, list[str]] = defaultdict(list)
    for document, title in titles.items():
        by_title[" ".join(title.lower().split())].append(document)
    for together in (*by_title.values(), *judged):
        for document in together:
            one, other = find_first(together[0]), find_first(document)
            first_of[max(one, other)] = min(one, other)
    groups: dict[str, list[str]] = defaultdict(list)
    for document in titles:
        groups[find_first(document)].append(document)
    return list(groups.values())


def divide_subjects(
    subjects: Iterable[Sequence[str]], questions_of: Mapping[str, Sequence[str]], counts: Mapping[str, int], rng: random.Random
) -> dict[str, str]:
    """The part of each document: `counts` says how many questions each part but `train` has at least."""
    shuffled = list(subjects)
    rng.shuffle(shuffled)
    parts, filled, part_of = list(counts), dict.fromkeys(counts, 0), {}
    for subject in shuffled:
        part = next((part for part in parts if filled[part] < counts[part]), "train")
        part_of |= dict.fromkeys(subject, part)
        if part in filled:
            filled[part] += len({question for document in subject for question in questions_of.get(document, ())})
    return part_of


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("corpus", "questions", "output"):
        parser.add_argument(name, type=Path)
    for name, default in (("test", 4000), ("dev", 800), ("first", 480), ("second", 1600), ("others", 500), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    documents = [text for text in texts.read_texts(options.corpus, keep_empty=True) if text.content]
    titles = {text.id: text.title for text in documents}
    questions, judged = {}, {}
    for part in ("train", "dev"):
        questions |= texts.read_texts_by_id(options.questions / f"{part}-queries.jsonl")
        for question, grades in qrels.read_qrels(options.questions / f"{part}.tsv").items():
            if known := {document: grade for document, grade in grades.items() if document in titles and grade > 0}:
                judged[question] = known
    questions_of = defaultdict(list)
    for question, grades in judged.items():
        for document in grades:
            questions_of[document].append(question)
    subjects = group_documents(titles, [list(grades) for grades in judged.values()])
    part_of = divide_subjects(subjects, questions_of, {"test": options.test, "dev": options.dev}, rng)

    ids: dict[str, list[str]] = {part: [] for part in ("train", "dev", "test")}
    for question, grades in judged.items():
        ids[part_of[next(iter(grades))]].append(question)
    for part in ids:
        rng.shuffle(ids[part])
    trained = ids.pop("train")
    ids |= {"first": trained[: options.first], "second": trained[options.first : options.first + options.second]}
    options.output.mkdir(parents=True, exist_ok=True)
    for part, of_part in ids.items():
        texts.write_texts([questions[one] for one in of_part], options.output / f"{part}-queries.jsonl")
        qrels.write_qrels({one: judged[one] for one in of_part}, options.output / f"{part}.tsv")
    trained_on = {document for part in ("first", "second") for question in ids[part] for document in judged[question]}
    rest = [document for document in titles if part_of[document] == "train" and document not in trained_on]
    others = rng.sample(rest, min(options.others, len(rest)))
    wanted = {document for document in titles if part_of[document] != "train"} | trained_on | set(others)
    texts.write_texts([text for text in documents if text.id in wanted], options.output / "corpus.jsonl")
    wanted = {document for document in titles if part_of[document] == "dev"} | set(others[: len(others) // 2])
    texts.write_texts([text for text in documents if text.id in wanted], options.output / "dev-corpus.jsonl")


if __name__ == "__main__":
    main()
