"""The benchmarks never train on a question that they test."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from moeir.records import qrels, texts
from moeir.records.texts import Text

ROOT = Path(__file__).parents[1]
SQUAD = ROOT.parent / "shared" / "data" / "squad"


@pytest.fixture(scope="module")
def sampling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_squad", ROOT / "tests" / "benchmarks" / "sample_squad.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_question_with_the_words_of_a_tested_one_is_never_drawn_for_training(sampling: ModuleType, tmp_path: Path) -> None:
    questions = {"t1": "Who built it?", "t2": "Where?", "t3": "WHEN, then", "d1": "who built  it", "d2": "when then?"}
    texts.write_texts([Text(name, words) for name, words in questions.items()], tmp_path / "queries.jsonl.gz")
    (tmp_path / "qrels").mkdir()
    qrels.write_qrels({name: {"p": 1} for name in ("t1", "t2", "t3")}, tmp_path / "qrels" / "train.tsv.gz")
    qrels.write_qrels({name: {"p": 1} for name in ("d1", "d2")}, tmp_path / "qrels" / "dev.tsv.gz")
    samples = sampling.sample_queries(tmp_path, 10, 10, seed=1)
    assert [question.id for question in samples["train"]] == ["t2"]
    assert {question.id for question in samples["dev"]} == {"d1", "d2"}


@pytest.mark.skipif(not SQUAD.is_dir(), reason=f"the SQuAD files are not at {SQUAD}")
def test_on_squad_no_development_question_is_trained_on(sampling: ModuleType) -> None:
    samples = sampling.sample_queries(SQUAD, 90_000, 11_000, seed=42)
    ids = {part: {question.id for question in questions} for part, questions in samples.items()}
    words = {part: {sampling._words(question.text) for question in questions} for part, questions in samples.items()}
    assert len(ids["dev"]) == 10_570 and len(ids["train"]) > 87_000
    assert not ids["train"] & ids["dev"]
    assert not words["train"] & words["dev"]
