"""The toy texts in the file formats of real collections: DPR's, EntityQuestions', MS MARCO's, BEIR's."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.records import qrels, texts
from moeir.records.texts import Text
from tests.conftest import TOY

TRAIN_ANSWERS = {"t1": ["mice"], "t2": ["moths", "echo"], "t3": ["hive"], "t4": ["cubs"], "t5": ["straw"], "t6": ["sea"]}
TEST_ANSWERS = {"q1": ["tree"], "q2": ["trail of scent"], "q3": ["sea"], "q4": ["oak"]}
RELATIONS = {"P17": ("q1", "q2"), "P36": ("q3", "q4")}


def write_files(folder: Path, contents: dict[str, str]) -> None:
    """Write these files of text, with the folders that they are in."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


class ToyTexts:
    """The texts and judgements of tests/toy."""

    def __init__(self, folder: Path) -> None:
        self.documents, self.train, self.test = (
            list(texts.read_texts(folder / name)) for name in ("corpus.jsonl", "train-queries.jsonl", "test-queries.tsv")
        )
        self.train_qrels, self.test_qrels = qrels.read_qrels(folder / "train.qrels"), qrels.read_qrels(folder / "test-qrels.tsv")


def write_dpr(toy: ToyTexts, folder: Path, sets: Sequence[str]) -> None:
    """Write the files of DPR's download_data.py: passages, questions with contexts, questions with answers."""
    rows = "".join(f'{text.id}\t"{text.text}"\t{text.title}\n' for text in toy.documents)
    test = [text for text in toy.test if text.id in TEST_ANSWERS]
    train, dev = (json.dumps([_dpr_entry(toy, text, *judged) for text in of_part]) for of_part, judged in (
        (toy.train, (TRAIN_ANSWERS, toy.train_qrels)), (test, (TEST_ANSWERS, toy.test_qrels))))  # fmt: skip
    answers = "".join(f"{text.text}\t{TEST_ANSWERS[text.id]!r}\n" for text in test)
    files = {"wikipedia_split/psgs_w100.tsv": "id\ttext\ttitle\n" + rows}
    for name in sets:
        files |= {f"retriever/{name}-train.json": train, f"retriever/{name}-dev.json": dev}
        files |= {f"retriever/qas/{name}-{part}.csv": answers for part in ("dev", "test")}
    write_files(folder, files)


def write_entity_questions(toy: ToyTexts, folder: Path) -> None:
    """Write one file of questions per relation."""
    folder.mkdir(parents=True)
    questions = {text.id: text.text for text in toy.test}
    for relation, names in RELATIONS.items():
        entries = [{"question": questions[name], "answers": TEST_ANSWERS[name]} for name in names]
        (folder / f"{relation}.test.json").write_text(json.dumps(entries), encoding="utf-8")


def write_msmarco(toy: ToyTexts, folder: Path) -> None:
    """Write MS MARCO's files: passages, titled passages, documents, queries; one training query has no judgements."""
    folder.mkdir(parents=True)
    unjudged = Text("t99", "nobody judged this")
    tsv_files = {"collection.tsv": toy.documents, "queries.train.tsv": [*toy.train, unjudged], "queries.dev.small.tsv": toy.test}
    for year in (2019, 2020):
        tsv_files[f"msmarco-test{year}-queries.tsv"] = toy.test
        qrels.write_qrels({query: dict.fromkeys(grades, 2) for query, grades in toy.test_qrels.items()}, folder / f"{year}qrels-pass.txt")
    for name, split_texts in tsv_files.items():
        (folder / name).write_text("".join(f"{text.id}\t{text.text}\n" for text in split_texts), encoding="utf-8")
    rows = "".join(f"{text.id}\t{text.title}\t{text.text}\n" for text in toy.documents)
    (folder / "titled.tsv").write_text("id\ttitle\ttext\n" + rows, encoding="utf-8")
    rows = "".join(f"D{text.id}\thttp://{text.id}\t{text.title}\t{text.text}\n" for text in toy.documents)
    (folder / "msmarco-docs.tsv").write_text("id\turl\ttitle\ttext\n" + rows, encoding="utf-8")
    pairs = [(query, positive) for query, grades in toy.train_qrels.items() for positive in grades]
    rows = "".join(f"{query}\t{positive}\t{text.id}\r\n" for query, positive in pairs for text in toy.documents if text.id != positive)
    (folder / "qidpidtriples.train.full.2.tsv").write_text(rows + "t99\towl\tbat\r\n", encoding="utf-8")
    qrels.write_qrels(toy.train_qrels, folder / "qrels.train.tsv")
    qrels.write_qrels(toy.test_qrels, folder / "qrels.dev.small.tsv")
    for part, queries, judged in (("train", toy.train, toy.train_qrels), ("dev", toy.test, toy.test_qrels)):
        _write_documents(toy, folder, part, queries, judged)


def _write_documents(toy: ToyTexts, folder: Path, part: str, queries: Sequence[Text], grades_by_query: qrels.Qrels) -> None:
    """Write queries, judgements and the official run of the document ranking task."""
    (folder / f"msmarco-doc{part}-queries.tsv").write_text("".join(f"{text.id}\t{text.text}\n" for text in queries), encoding="utf-8")
    prefixed = {query: {f"D{document}": grade for document, grade in grades.items()} for query, grades in grades_by_query.items()}
    qrels.write_qrels(prefixed, folder / f"msmarco-doc{part}-qrels.tsv")
    lines = (f"{text.id} Q0 D{found.id} {rank} {-rank} Indri\n" for text in queries for rank, found in enumerate(toy.documents, 1))
    (folder / f"msmarco-doc{part}-top100").write_text("".join(lines), encoding="utf-8")


def write_nq(toy: ToyTexts, folder: Path) -> None:
    """Write what examples/nq_from_dpr.py makes; a question's answers begin the passages that it is judged on, and no others."""
    folder.mkdir(parents=True)
    texts.write_texts(toy.documents, folder / "corpus.jsonl")
    words = {text.id: " ".join(text.text.split()[:3]) for text in toy.documents}
    parts = {"train": (toy.train, toy.train_qrels), "dev": (toy.test, toy.test_qrels), "test": (toy.test, toy.test_qrels)}
    for name, (questions, judged) in parts.items():
        qrels.write_qrels(judged, folder / f"{name}.qrels")
        answered = (replace(text, answers=tuple(words[one] for one in judged[text.id])) for text in questions if text.id in judged)
        texts.write_texts(answered, folder / f"{name}-queries.jsonl")


def write_beir(toy: ToyTexts, folder: Path) -> None:
    """Write a BEIR data set with training and test queries; each part judges only its own."""
    (folder / "qrels").mkdir(parents=True)
    texts.write_texts(toy.documents, folder / "corpus.jsonl")
    texts.write_texts([*toy.train, *toy.test], folder / "queries.jsonl")
    for name, grades_by_query in {"train": toy.train_qrels, "test": toy.test_qrels}.items():
        rows = [f"{query}\t{document}\t{grade}\n" for query, grades in grades_by_query.items() for document, grade in grades.items()]
        (folder / f"qrels/{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")


def _dpr_entry(toy: ToyTexts, question: Text, answers: dict[str, list[str]], grades_by_query: qrels.Qrels) -> dict[str, Any]:
    """A question of DPR's training files: its positive passages, and all others as negatives."""
    positives = {document for document, grade in grades_by_query.get(question.id, {}).items() if grade > 0}
    sides: dict[str, list[dict[str, str]]] = {"positive_ctxs": [], "negative_ctxs": [], "hard_negative_ctxs": []}
    for index, text in enumerate(toy.documents):
        side = "positive_ctxs" if text.id in positives else ("negative_ctxs", "hard_negative_ctxs")[index % 2]
        sides[side].append({"title": text.title, "text": text.text, "passage_id": text.id})
    return {"question": question.text, "answers": answers[question.id], **sides}


def write_articles(folder: Path, parts: dict[str, list[str]], paragraphs: int = 3, questions: int = 2) -> None:
    """Articles of drawn words in BEIR's layout; `parts` maps a split to its titles."""
    rng = random.Random(0)
    words = " ".join(document.text for document in ToyTexts(TOY).documents).split()
    documents, asked = [], []
    for part, titles in parts.items():
        judged = {}
        for title in titles * paragraphs:
            document = Text(f"{folder.name}-{len(documents)}", " ".join(rng.choices(words, k=12)), title)
            documents.append(document)
            for _ in range(questions):
                own = document.text.split()
                asked.append(Text(f"{folder.name}-q{len(asked)}", " ".join(rng.choices(own, k=5)), answers=(rng.choice(own),)))
                judged[asked[-1].id] = {document.id: 1}
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        qrels.write_qrels(judged, folder / "qrels" / f"{part}.tsv.gz")
    texts.write_texts(documents, folder / "corpus.jsonl.gz")
    texts.write_texts(asked, folder / "queries.jsonl.gz")
