"""The benchmarks never train on a question that they test, and know every relevant document of a question."""

from collections.abc import Mapping
from pathlib import Path

from moeir.records import qrels, texts
from moeir.records.texts import Text
from tests.benchmarks import sample_questions


def write_collection(folder: Path, questions: dict[str, str], judged: Mapping[str, qrels.Qrels], documents: dict[str, str]) -> None:
    """Documents are a title, a line break and a text."""
    texts.write_texts([Text(name, words) for name, words in questions.items()], folder / "queries.jsonl.gz")
    titled = {name: document.partition("\n") for name, document in documents.items()}
    texts.write_texts([Text(name, words, title) for name, (title, _, words) in titled.items()], folder / "corpus.jsonl.gz")
    (folder / "qrels").mkdir()
    for part, of_part in judged.items():
        qrels.write_qrels(of_part, folder / "qrels" / f"{part}.tsv.gz")


def test_a_question_with_the_words_of_a_tested_one_is_never_drawn_for_training(tmp_path: Path) -> None:
    questions = {"t1": "Who built it?", "t2": "Where?", "t3": "WHEN, then", "d1": "who built  it", "d2": "when then?"}
    judged = {"train": {name: {"p": 1} for name in ("t1", "t2", "t3")}, "dev": {name: {"p": 1} for name in ("d1", "d2")}}
    write_collection(tmp_path, questions, judged, {"p": "\nwords"})
    samples, _ = sample_questions.sample_queries(tmp_path, 10, 10, seed=1)
    assert [question.id for question in samples["train"]] == ["t2"]
    assert {question.id for question in samples["dev"]} == {"d1", "d2"}


def test_one_question_of_each_wording_stays_with_the_judgements_of_all(tmp_path: Path) -> None:
    questions = {"t1": "What is flu ?", "t2": "What is gout ?", "t3": "what is Gout", "d1": "What is flu?", "d2": "what is FLU"}
    judged = {"train": {"t1": {"a": 1}, "t2": {"b": 1}, "t3": {"c": 2}}, "dev": {"d1": {"d": 1}, "d2": {"e": 1, "a": 0}}}
    write_collection(tmp_path, questions, judged, {name: f"title {name}\ntext {name}" for name in "abcde"})
    sample_questions.main(tmp_path, tmp_path / "out", 10, 10)
    assert qrels.read_qrels(tmp_path / "out" / "dev.tsv") == {"d1": {"d": 1, "e": 1, "a": 1}}, "the higher of two grades"
    assert qrels.read_qrels(tmp_path / "out" / "train.tsv") == {"t2": {"b": 1, "c": 2}}
    assert texts.read_texts_by_id(tmp_path / "out" / "train-queries.jsonl").keys() == {"t2"}


def test_documents_of_equal_text_are_relevant_together_if_the_text_names_the_subject(tmp_path: Path) -> None:
    documents = {
        **{"n": "Noonan syndrome\nNoonan syndrome is rare.", "n1": "Noonan syndrome 1\nNoonan syndrome  is rare"},
        **{"x": "Barth syndrome\nThis condition is inherited.", "y": "Danon disease\nThis condition is inherited."},
        **dict.fromkeys("ef", "\nA text without a title."),
    }
    judged = {"train": {"t1": {"e": 1}, "t2": {"n": 0}}, "dev": {"d1": {"n1": 1}, "d2": {"x": 1}}}
    write_collection(tmp_path, {"t1": "e", "t2": "n", "d1": "one", "d2": "two"}, judged, documents)
    _, merged = sample_questions.sample_queries(tmp_path, 10, 10, seed=1)
    assert merged == {"t1": {"e": 1, "f": 1}, "t2": {"n": 0}, "d1": {"n": 1, "n1": 1}, "d2": {"x": 1}}
