"""Documents cut into passages, against every place to cut; what is lost, doubled or too long; runs of passages collapsed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import DataError
from moeir.records.ids import as_byte_strings
from moeir.records.passages import _split_text, collapse_ids, collapse_run, cut_documents, find_words
from moeir.records.runs import Run
from moeir.records.texts import Text
from tests.oracles.passages import collapse_by_dictionary, cut_by_definition

SENTENCES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def write_sentences(lengths):
    """A text of numbered words, `Aw0 w1 w2. Aw3 …`."""
    words = []
    for length in lengths:
        words += [f"{'A' if number == 0 else ''}w{len(words) + number}{'.' if number == length - 1 else ''}" for number in range(length)]
    return " ".join(words)


def word_range(text):
    numbers = [int(word.strip("Aw.")) for word in text.split()]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    return numbers[0], numbers[-1] + 1


@given(SENTENCES, st.integers(1, 14), st.none() | st.integers(1, 14), st.integers(0, 3))
def test_passages_are_those_of_the_definition(lengths, room, stride, title_words):
    document = Text("a", write_sentences(lengths), title=" ".join(["title"] * title_words), url="u", answers=("x",), extra={"year": 7})
    passages = list(cut_documents([document], room + title_words, stride))
    assert [word_range(one.text) for one in passages] == cut_by_definition(lengths, room, room if stride is None else stride)
    assert [one.id for one in passages] == [f"a#{number}" for number in range(len(passages))]
    assert {(one.title, one.url, one.answers, str(one.extra)) for one in passages} == {(document.title, "u", ("x",), "{'year': 7}")}


@given(st.text(alphabet="aB. \n猫。ก\u0301", max_size=60), st.integers(1, 8), st.data())
def test_any_text_with_any_tokens_loses_no_character(text, room, data):
    offsets = sorted(data.draw(st.lists(st.integers(0, max(0, len(text) - 1)), min_size=1, max_size=30)))  # several may begin at one
    assert "".join(_split_text(text, offsets, room, room)) == text
    passages = list(cut_documents([Text("a", text)], room, None))
    assert "".join("".join(one.text.split()) for one in passages) == "".join(text.split())
    assert all(len(find_words([one.text])[0]) <= room for one in passages)


def test_a_passage_begins_with_whole_sentences_of_the_one_before():
    text = "One two. Three four five. Six. Seven eight nine ten. End."
    cut = [one.text for one in cut_documents([Text("a", text)], 6, 4)]
    assert cut == ["One two. Three four five. Six.", "Six. Seven eight nine ten. End."]
    assert [one.text for one in cut_documents([Text("a", text)], 6)] == ["One two. Three four five. Six.", "Seven eight nine ten. End."]


def test_text_without_spaces_is_cut_between_characters_at_the_ends_of_its_sentences():
    assert [one.text for one in cut_documents([Text("a", "猫头鹰在夜间捕猎。它白天睡觉。" "它不做梦。")], 9)] == [
        "猫头鹰在夜间捕猎。", "它白天睡觉。", "它不做梦。",
    ]  # fmt: skip
    assert [one.text for one in cut_documents([Text("a", "猫头鹰在夜间捕猎")], 3, 2)] == ["猫头鹰", "鹰在夜", "夜间捕", "捕猎"]


def test_a_tokenizer_that_reads_a_beginning_otherwise_gets_shorter_passages():
    def find_tokens(contents):  # the first word of a text is two tokens
        return [[0, *find_words([content])[0]] if content else [] for content in contents]

    passages = list(cut_documents([Text("a", "b c d e f g h i j")], 4, None, find_tokens))
    assert [one.text for one in passages] == ["b c", "d e f", "g h i", "j"]
    assert all(len(tokens) <= 4 for tokens in find_tokens([one.text for one in passages]))


@pytest.mark.parametrize("text", ["", "  ", "\x01"])
def test_a_text_without_tokens_is_one_passage(text):
    document = Text("a", text, title="Owl")
    assert list(cut_documents([document], 5)) == [Text("a#0", text.strip(), title="Owl")]
    assert list(cut_documents([Text("a", text)], 5, None, lambda contents: [[] for _ in contents])) == [Text("a#0", text.strip())]


def test_documents_are_read_one_by_one():
    read = []

    def documents():
        for number in range(1000):
            read.append(number)
            yield Text(str(number), "An owl. A bat.")

    passages = cut_documents(documents(), 2)
    assert [next(passages).id for _ in range(3)] == ["0#0", "0#1", "1#0"] and len(read) == 2


PASSAGES = st.dictionaries(
    st.builds("{}#{}".format, st.sampled_from(["a", "a!", "b", "b#c", "é"]), st.integers(0, 12)), st.sampled_from([-1.5, 0.0, 0.5, 2.0])
)


@given(st.dictionaries(st.sampled_from("pqr"), PASSAGES, min_size=1))
def test_a_collapsed_run_has_each_documents_best_score_in_the_order_of_ranks(hits):
    run = collapse_run(Run.from_hits(hits, tag="t"))
    assert {query: run.hits(query) for query in run.queries} == {query: collapse_by_dictionary(own.items()) for query, own in hits.items()}
    longest = max(map(len, hits.values()), default=0)
    is_cut = {query: len(run.hits(query)) >= depth for query, depth in zip(run.queries, np.broadcast_to(run.list_depth, len(run)))}
    assert is_cut == {query: len(own) >= longest for query, own in hits.items()}, "before passages became documents"
    assert run.tag == "t"


def test_ids_that_are_no_passages_are_refused():
    for name in ("owl", "#3"):
        with pytest.raises(
            DataError, match=f"^idx: '{name}' is no passage; expected ID#NUMBER, as of convert --passages; leave --collapse out"
        ):
            collapse_ids(as_byte_strings([b"a#0", name.encode()]), "idx")
    long = "x" * 100
    ids, codes = collapse_ids(as_byte_strings([f"{long}#1".encode(), b"a#0", f"{long}#0".encode()]), "idx")
    assert list(ids) == ["a", long] and np.array_equal(codes, [1, 0, 1])
