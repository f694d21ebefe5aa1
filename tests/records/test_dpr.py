import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import DataError
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


def test_the_other_negatives_count_where_all_hard_ones_are_positives(tmp_path):
    (example,) = read(tmp_path / "train.json", [entry("who hunts", "owls", [GOLD], [EASY], [GOLD])])
    assert (example.positive_ids, example.negative_ids) == (("17",), ("5",))


def test_an_array_of_other_records_is_read_as_well(tmp_path):
    (example,) = read(tmp_path / "train.json", [{"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b"]}])
    assert (example.query_id, example.positive_ids, example.query) == ("q", ("a",), None)
    (tmp_path / "corpus.json").write_text('[\n {"id": "a", "text": "owl"},\n {"id": "b", "contents": "bat"}\n]\n')
    assert list(texts.read_texts(tmp_path / "corpus.json")) == [Text("a", "owl"), Text("b", "bat")]


plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
arrays = st.lists(st.dictionaries(st.text(max_size=3), values, max_size=3), min_size=1, max_size=4)


@given(arrays, st.sampled_from([None, 0, 2]), st.integers(1, 9))
def test_an_array_is_read_piece_by_piece(objects, indent, letters):
    lines = json.dumps(objects, indent=indent).split("\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpr, "_BLOCK_CHARACTERS", letters)
        entries = list(dpr.read_array("x", ((number, line) for number, line in enumerate(lines, 1))))
    assert [entry for _, entry in entries] == objects


def test_memory_holds_one_entry(monkeypatch):
    monkeypatch.setattr(dpr, "_BLOCK_CHARACTERS", 100)
    lines_read = []

    def lines():
        for number, line in enumerate(json.dumps([{"question": "x" * 30}] * 1000, indent=0).split("\n"), 1):
            lines_read.append(number)
            yield number, line

    where, _ = next(dpr.read_array("x", lines()))
    assert where == "x:2" and len(lines_read) < 20


def test_a_field_of_every_record_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"_id": "q1", "text": "x", "relation": "P17"}\n{"_id": "q2", "text": "y", "relation": 7}\n')
    (tmp_path / "a.tsv").write_text("id\ttext\trelation\nq1\tx\tP17\n")
    assert texts.read_field(tmp_path / "a.jsonl", "relation") == {"q1": "P17", "q2": "7"}
    assert texts.read_field(tmp_path / "a.tsv", "relation") == {"q1": "P17"}
    with pytest.raises(DataError, match=r"a\.jsonl:1: field 'set' of 'q1' is not a printable string or a whole number: null"):
        texts.read_field(tmp_path / "a.jsonl", "set")
    (tmp_path / "a.jsonl").write_text(json.dumps({"_id": "q1", "text": "x", "kind": "\x1b[31mred"}) + "\n")
    with pytest.raises(DataError, match="is not a printable string") as caught:
        texts.read_field(tmp_path / "a.jsonl", "kind")
    assert str(caught.value).isprintable()
