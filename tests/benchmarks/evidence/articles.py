"""A collection of SQuAD's development articles: whole articles train, others develop, others test.

    python articles.py SQUAD_FOLDER OUTPUT_FOLDER [--test 12] [--dev 4] [--others 3000] [--seed 1]

SQUAD_FOLDER is in BEIR's layout with qrels/{train,dev}.tsv.gz. The articles of dev are divided by title; a questions file of the training
articles is divided once more, by question, into `first` and `second`, so that a second training and its mined negatives see only questions
that the first did not read. Questions that have the words of a test question are left out of the others. Writes
{first,second,dev,test}-queries.jsonl with {first,second,dev,test}.tsv, corpus.jsonl (all paragraphs of these articles and OTHERS of the
training part's, whose questions are used nowhere; `--others all` takes them all, and their questions train) and dev-corpus.jsonl (those
of the development articles and a tenth of the others).
"""

import argparse
import random
from collections.abc import Iterable
from pathlib import Path

from moeir.records import qrels, texts


def divide_titles(titles: Iterable[str], test: int, dev: int, rng: random.Random) -> dict[str, str]:
    """The part of each title: test, dev or train."""
    shuffled = sorted(titles)
    rng.shuffle(shuffled)
    return {title: "test" if rank < test else "dev" if rank < test + dev else "train" for rank, title in enumerate(shuffled)}


def divide_questions(
    judged: qrels.Qrels, part_of: dict[str, str], questions: dict[str, texts.Text], rng: random.Random
) -> dict[str, list[str]]:
    """The ids of each part's questions, shuffled; `part_of` maps a paragraph to the part of its article."""
    ids: dict[str, list[str]] = {part: [] for part in ("train", "dev", "test")}
    for question, grades in judged.items():
        ids[part_of[next(iter(grades))]].append(question)
    tested = {words_of(questions[question].text) for question in ids["test"]}
    for part in ("train", "dev"):
        ids[part] = [question for question in ids[part] if words_of(questions[question].text) not in tested]
    for part in ids:
        rng.shuffle(ids[part])
    half = len(ids["train"]) // 2
    return {"first": ids["train"][:half], "second": ids["train"][half:], "dev": ids["dev"], "test": ids["test"]}


def words_of(text: str) -> str:
    """The letters and digits of a text, in lower case."""
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    for name, default in (("test", 12), ("dev", 4), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--others", default="3000", help="a number, or all")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    passages = {text.id: text for text in texts.read_texts(options.folder / "corpus.jsonl.gz", keep_empty=True)}
    questions = texts.read_texts_by_id(options.folder / "queries.jsonl.gz")
    judged = qrels.read_qrels(options.folder / "qrels" / "dev.tsv.gz")
    articles = {passages[document].title for grades in judged.values() for document in grades}
    part_of_title = divide_titles(articles, options.test, options.dev, rng)
    part_of = {text.id: part_of_title[text.title] for text in passages.values() if text.title in part_of_title}
    elsewhere = [text.id for text in passages.values() if text.id not in part_of and text.content]
    if options.others == "all":
        others, more = elsewhere, qrels.read_qrels(options.folder / "qrels" / "train.tsv.gz")
        part_of |= dict.fromkeys(others, "train")
        judged |= more
    else:
        others = rng.sample(elsewhere, min(int(options.others), len(elsewhere)))

    options.output.mkdir(parents=True, exist_ok=True)
    for part, ids in divide_questions(judged, part_of, questions, rng).items():
        texts.write_texts([questions[one] for one in ids], options.output / f"{part}-queries.jsonl")
        qrels.write_qrels({one: judged[one] for one in ids}, options.output / f"{part}.tsv")
    wanted = part_of.keys() | set(others)
    texts.write_texts([text for text in passages.values() if text.id in wanted], options.output / "corpus.jsonl")
    wanted = {document for document, part in part_of.items() if part == "dev"} | set(others[: len(others) // 10])
    texts.write_texts([text for text in passages.values() if text.id in wanted], options.output / "dev-corpus.jsonl")


if __name__ == "__main__":
    main()
