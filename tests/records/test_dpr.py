import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.records import dpr, examples, texts
from moeir.records.texts import Text

GOLD = {"title": "Owl", "text": "Owls hunt.", "score": 1000, "title_score": 1, "passage_id": "17"}
HARD = {"title": "Bat", "text": "Bats hunt.", "score": 9.5, "title_score": 0, "psg_id": 4}
EASY = {"title": "Ice", "text": "Ice floats.", "passage_id": "5"}
NAMELESS = {"title": "Eel", "text": "Eels swim."}


def entry(question, answer, positive, easy, hard):
    return {"question": question, "answers": [answer], "positive_ctxs": positive, "negative_ctxs": easy, "hard_negative_ctxs": hard}


TRAIN = [
    {"dataset": "nq"} | entry("who hunts", "owls", [GOLD], [EASY], [HARD]),
    entry("nothing found", "x", [], [], []),
    entry("who “swims”", "eels", [NAMELESS], [EASY], []),
]
DIGEST = "f5939bd54b1b2e6f"


def read(path, content, **form):
    path.write_text(content if isinstance(content, str) else json.dumps(content, **form))
    return list(examples.read_examples(path))


@pytest.mark.parametrize("form", [{}, {"indent": 4}, {"indent": 0, "ensure_ascii": False}])
def test_training_entries_are_examples_with_their_texts(tmp_path, form):
    first, third = read(tmp_path / "train.json", TRAIN, **form)
    assert (first.query_id, first.positive_ids, first.negative_ids) == ("0", ("17",), ("4",))
    assert first.query == Text("0", "who hunts", answers=("owls",))
    assert first.passages == (Text("17", "Owls hunt.", "Owl"), Text("4", "Bats hunt.", "Bat"))
    assert (third.query_id, third.query, third.negative_ids) == ("2", Text("2", "who “swims”", answers=("eels",)), ("5",))
    assert third.positive_ids == (DIGEST,) and third.passages[0] == Text(DIGEST, "Eels swim.", "Eel")


def test_the_questions_of_the_same_file_have_the_same_ids(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(TRAIN, indent=1))
    assert [(text.id, text.text, text.answers) for text in texts.read_texts(tmp_path / "train.json")] == [
        ("0", "who hunts", ("owls",)), ("1", "nothing found", ("x",)), ("2", "who “swims”", ("eels",)),
    ]  # fmt: skip
    (tmp_path / "named.json").write_text(json.dumps([TRAIN[0] | {"question_id": "nq7"}]))
    assert [text.id for text in texts.read_texts(tmp_path / "named.json")] == ["nq7"]
    assert [example.query_id for example in examples.read_examples(tmp_path / "named.json")] == ["nq7"]


def test_what_stands_twice_counts_once_and_a_positive_is_no_negative(tmp_path):
    other = {"title": "Owl", "text": "Another text.", "passage_id": 4}
    twice = TRAIN[0] | {"positive_ctxs": [GOLD, GOLD], "hard_negative_ctxs": [HARD, GOLD | {"text": "Owls."}, HARD, other, other]}
    (example,) = read(tmp_path / "train.json", [twice])
    assert example.positive_ids == ("17",)
    assert example.negative_ids[0] == "4" and len(example.negative_ids) == 2  # another text of the same name gets one of its own
    assert [text.text for text in example.passages] == ["Owls hunt.", "Bats hunt.", "Another text."]
    without_id = {name: value for name, value in GOLD.items() if name != "passage_id"}
    (example,) = read(tmp_path / "train.json", [twice | {"hard_negative_ctxs": [without_id, HARD]}])
    assert [text.text for text in example.passages] == ["Owls hunt.", "Bats hunt."], "the text of a positive, whatever its id"
    (example,) = read(tmp_path / "train.json", [entry("who hunts", "owls", [GOLD], [EASY], [GOLD])])
    assert (example.positive_ids, example.negative_ids) == (("17",), ("5",)), "the others count where all hard ones are positives"


def test_an_array_of_other_records_is_read_as_well(tmp_path):
    (example,) = read(tmp_path / "train.json", [{"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b"]}])
    assert (example.query_id, example.positive_ids, example.query) == ("q", ("a",), None)
    (tmp_path / "corpus.json").write_text('[\n {"id": "a", "text": "owl"},\n {"id": "b", "contents": "bat"}\n]\n')
    assert list(texts.read_texts(tmp_path / "corpus.json")) == [Text("a", "owl"), Text("b", "bat")]


values = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)


@given(st.lists(objects, min_size=1, max_size=4), st.sampled_from([None, 0, 2]), st.integers(1, 9))
def test_an_array_is_read_piece_by_piece(objects, indent, letters):
    numbered = enumerate(json.dumps(objects, indent=indent).split("\n"), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpr, "_BLOCK_CHARACTERS", letters)
        assert [entry for _, entry in dpr.read_array("x", numbered)] == objects


def test_memory_holds_one_entry(monkeypatch):
    monkeypatch.setattr(dpr, "_BLOCK_CHARACTERS", 100)
    numbered = enumerate(json.dumps([{"question": "x" * 30}] * 1000, indent=0).split("\n"), 1)
    assert next(dpr.read_array("x", numbered))[0] == "x:2" and next(numbered)[0] < 20
