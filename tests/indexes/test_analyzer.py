"""Terms of Lucene's EnglishAnalyzer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.indexes.analyzer import ASCII_WORD_PATTERN, WORD_PATTERN, Analyzer, read_stop_words


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("can't stop, won't", ["can't", "stop", "won't"]),
        ("1,000.5 and 3.14.", ["1,000.5", "and", "3.14"]),
        ("U.S.A. e-mail", ["U.S.A", "e", "mail"]),
        ("foo_bar __ _x", ["foo_bar", "_x"]),
        ("a1b2 B2B 4x4", ["a1b2", "B2B", "4x4"]),
        ("naïve café déjà", ["naïve", "café", "déjà"]),
        ("cafe\u0301s", ["cafe\u0301s"]),
        ("我是中国人", ["我", "是", "中", "国", "人"]),
        ("カタカナ と 한국어", ["カタカナ", "と", "한국어"]),
        ("α-helix β2", ["α", "helix", "β2"]),
        ("http://x.org/a?b=c", ["http", "x.org", "a", "b", "c"]),
        ("!!! -- ...", []),
    ],
)
def test_tokens_end_where_unicode_says(text, tokens):
    assert WORD_PATTERN.findall(text) == tokens


def test_possessives_go_before_case_and_stop_words():
    assert Analyzer(stemmer="none").terms("Cat's DOG'S it's mother’s James'") == ["cat", "dog", "mother", "james"]


def test_there_are_33_stop_words():
    words = " ".join(read_stop_words("english", "lucene"))
    assert len(words.split()) == 33 and Analyzer().terms(words) == []
    assert len(Analyzer(stop_words="none").terms(words)) == 33


def test_stems_are_porters():
    words = "relational conditional happiness cities running flies"
    assert Analyzer().terms(words) == ["relat", "condit", "happi", "citi", "run", "fli"]


def test_overlong_tokens_are_cut_at_255():
    assert [len(term) for term in Analyzer(stemmer="none").terms("x" * 600)] == [255, 255, 90]


@pytest.mark.parametrize("text", ["_" * 10**6, "é" + "_" * 10**5, "_\u0301" * 10**5, "é " + "a_" * 10**5, "a" + "_" * 10**5 + "b"])
def test_long_runs_of_underscores_take_no_longer_than_other_characters(text):
    assert len(Analyzer().terms(text)) < 1000  # hours, when each underscore began a search to the end of the run


@given(st.text(alphabet="ab1 _.,;:'-\"\n2Z%\t", max_size=30) | st.text(alphabet=st.characters(max_codepoint=127)))
def test_texts_of_ascii_alone_have_the_same_tokens(text):
    assert ASCII_WORD_PATTERN.findall(text) == WORD_PATTERN.findall(text)
