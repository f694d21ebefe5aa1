"""MedQuAD with one answer of each question named: the others are unnamed positives, of which a share stays in the pool of negatives.

    python unnamed.py MEDQUAD_FOLDER OUTPUT_FOLDER [--fewest 2] [--test 400] [--first 160] [--second 640] [--others 4000]
                      [--shares 0 50] [--seed 1]

MEDQUAD_FOLDER is in BEIR's layout with qrels/{train,dev}.tsv.gz. A question is all records with the same words, its answers are theirs;
questions with FEWEST answers or more are used: TEST of them test, judged for all of their answers, FIRST and SECOND train, each with
one answer, drawn. Writes {first,second,test}-queries.jsonl with {first,second,test}.tsv, corpus.jsonl (all answers of these questions and
OTHERS of others), and pool-SHARE.jsonl, from which negatives are mined: the corpus without the answers of test questions and without
the unnamed answers of training questions, but for SHARE per cent of these.
"""

import argparse
import random
from pathlib import Path

from moeir.records import qrels, texts


def group_questions(queries: dict[str, texts.Text], judged: qrels.Qrels) -> dict[str, dict[str, int]]:
    """The answers of each question, by the id of its first record.

    >>> queries = {name: texts.Text(name, text) for name, text in {"a": "What is it?", "b": "what  is it?", "c": "Who?"}.items()}
    >>> group_questions(queries, {"a": {"d1": 1}, "b": {"d2": 1}, "c": {"d1": 1}})
    {'a': {'d1': 1, 'd2': 1}, 'c': {'d1': 1}}
    """
    first: dict[str, str] = {}
    answers: dict[str, dict[str, int]] = {}
    for query, grades in judged.items():
        name = first.setdefault(" ".join(queries[query].text.lower().split()), query)
        answers.setdefault(name, {}).update({document: 1 for document, grade in grades.items() if grade > 0})
    return answers


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("medquad", "output"):
        parser.add_argument(name, type=Path)
    for name, default in (("fewest", 2), ("test", 400), ("first", 160), ("second", 640), ("others", 4000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shares", type=int, nargs="+", default=[0, 50])
    options = parser.parse_args()
    rng, folder = random.Random(options.seed), options.medquad
    queries = texts.read_texts_by_id(folder / "queries.jsonl.gz")
    judged = {query: grades for part in ("train", "dev") for query, grades in qrels.read_qrels(folder / f"qrels/{part}.tsv.gz").items()}
    answers = {name: grades for name, grades in group_questions(queries, judged).items() if len(grades) >= options.fewest}
    names = sorted(answers)
    rng.shuffle(names)
    bounds = (0, options.test, options.test + options.first, options.test + options.first + options.second)
    parts = {part: names[first:last] for part, first, last in zip(("test", "first", "second"), bounds, bounds[1:], strict=False)}
    tested = {document for name in parts["test"] for document in answers[name]}
    named, unnamed = dict[str, str](), set[str]()
    for name in (*parts["first"], *parts["second"]):
        possible = sorted(set(answers[name]) - tested) or sorted(answers[name])
        named[name] = rng.choice(possible)
        unnamed.update(set(answers[name]) - {named[name]})
    unnamed -= set(named.values())
    options.output.mkdir(parents=True, exist_ok=True)
    for part, of_part in parts.items():
        texts.write_texts([queries[name] for name in of_part], options.output / f"{part}-queries.jsonl")
        grades = {name: answers[name] if part == "test" else {named[name]: 1} for name in of_part}
        qrels.write_qrels(grades, options.output / f"{part}.tsv")
    documents = texts.read_texts_by_id(folder / "corpus.jsonl.gz")
    used = {document for of_part in parts.values() for name in of_part for document in answers[name]}
    rest = sorted(set(documents) - used)
    corpus = used | set(rng.sample(rest, min(options.others, len(rest))))
    texts.write_texts([text for name, text in documents.items() if name in corpus], options.output / "corpus.jsonl")
    for share in options.shares:
        dropped = set(rng.sample(sorted(unnamed), round(len(unnamed) * (100 - share) / 100)))
        pool = corpus - dropped - (tested - set(named.values()))
        texts.write_texts([text for name, text in documents.items() if name in pool], options.output / f"pool-{share}.jsonl")


if __name__ == "__main__":
    main()
