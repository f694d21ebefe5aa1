import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import UsageError
from moeir.evaluation import answer_match, measures
from moeir.records.runs import Run
from moeir.records.texts import Text
from tests.oracles import answers as letter_by_letter

letters = st.text(st.sampled_from("aAbéÉe\u0301ßΣσİ1½' .-,\t\n\u00a0\u200b汶川のが😀़ि"), max_size=12)


def is_matched(answer, text, match="string"):
    compiled = answer_match.compile_answers([Text("q", "who?", answers=(answer,))], match, "questions.jsonl")
    return compiled.contains_answer("q", compiled.normalize(text))


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("New York", "He left new york in 1936.", True),
        ("New York", "new, york", False),  # nothing between
        ("York", "Yorkshire", False),  # whole tokens
        ("1,000", "1, 000 men", True),  # punctuation stands alone
        ("O'Hara", "Scarlett O ' HARA", True),
        ("U.S.", "the U.S. Army", True),
        ("US", "the U.S. Army", False),
        ("Čapek", "karel " + unicodedata.normalize("NFD", "čapek"), True),  # composed or not is the same
        ("Capek", "Karel Čapek", False),  # a mark is part of its token
        ("हिन्दी", "वह हिन्दी है", True),
        ("汶川", "汶川大地震", False),  # letters without spaces are one run
        ("「汶川」", "「汶川」大地震", True),  # signs are tokens one by one
        ("İstanbul", "in İSTANBUL", True),  # decomposed first, then lower-cased
        ("straße", "STRASSE", False),
        ("soft\u00adhyphen", "soft hyphen", True),  # characters of control and format separate, and are no tokens
    ],
)
def test_worked_answers(answer, text, expected):
    assert is_matched(answer, text) is expected
    assert letter_by_letter.contains_answer(text, [answer]) is expected


@given(letters, st.lists(letters, min_size=1, max_size=3))
def test_answers_are_found_where_the_slow_way_finds_them(text, wanted):
    compiled = answer_match.compile_answers([Text("q", "who?", answers=tuple(wanted))], "string", "x")
    assert compiled.contains_answer("q", compiled.normalize(text)) == letter_by_letter.contains_answer(text, wanted)
    assert answer_match.tokenize(text).split() == letter_by_letter.tokenize(text)


def test_regular_expressions_are_searched_in_the_text():
    patterns = {"Mass(achusetts)?": "in MASSACHUSETTS", r"19\d\d": "in 1936", r"^owl$": "a\nOwl\nb", r"\bČ": "Čapek"}
    patterns |= {"York": "Yorkshire", "Čapek": unicodedata.normalize("NFD", "karel ČAPEK")}  # no tokens here
    assert all(is_matched(pattern, text, "regex") for pattern, text in patterns.items()) and not is_matched("owl|bat", "cat", "regex")


@pytest.mark.parametrize(
    ("match", "wanted", "words"),
    [("string", ("\u200b ", "owl"), "have no letter, digit or sign"), ("regex", ("(owl", "owl", " "), "are not valid regular expressions")],
)
def test_an_answer_that_cannot_be_looked_for_is_said_and_matches_nothing(match, wanted, words, monkeypatch):
    warnings = []
    monkeypatch.setattr(answer_match.log, "warning", lambda line, *parts: warnings.append(line % parts))
    compiled = answer_match.compile_answers([Text("q7", "who?", answers=wanted)], match, "test.jsonl")
    assert warnings == [f"test.jsonl: {len(wanted) - 1} answers {words} and match nothing; the first: {wanted[0]!r} of question q7"]
    assert not compiled.contains_answer("q7", compiled.normalize("(ow l"))
    assert compiled.contains_answer("q7", compiled.normalize("an owl"))


@pytest.fixture
def corpus(tmp_path):
    """Titles hold every answer, and count nothing; one document is empty."""
    texts = {"a": "owl", "b": "a bat", "c": "no bird", "d": "Owl and bat", "unread": ""}
    lines = [json.dumps({"_id": name, "title": "owl bat cat" if text else "", "text": text}) for name, text in texts.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    return tmp_path / "corpus.jsonl"


QUESTIONS = [Text("q1", "?", answers=("owl", "eel")), Text("q2", "?", answers=("bat",)), Text("q3", "?", answers=("x",))]
ANSWERS = answer_match.compile_answers(QUESTIONS, "string", "questions.jsonl")
RUN = Run.from_hits({"q2": {"a": 3, "b": 2, "d": 1}, "extra": {"nowhere": 1}, "q1": {"d": 1, "c": 2}})


def test_what_was_retrieved_is_judged_by_its_text_an_empty_one_too(corpus):
    other = Run.from_hits({"q1": {"a": 2, "unread": 1}})
    assert answer_match.qrels_from_answers([RUN, other], ANSWERS, corpus) == [
        {"q1": {"c": 0, "d": 1}, "q2": {"a": 0, "b": 1, "d": 1}, "q3": {}},
        {"q1": {"a": 1, "unread": 0}, "q2": {}, "q3": {}},
    ]
    labels, _ = answer_match.hit_labels([RUN, other], ANSWERS, corpus)
    assert labels.tolist() == [False, True, True, False, False, True]
    (qrels,) = answer_match.qrels_from_answers([RUN], ANSWERS, corpus)
    values = measures.evaluate_run(RUN, qrels, [measures.parse_measure("Success@1"), measures.parse_measure("RR")])
    assert values == {"Success@1": dict.fromkeys(("q1", "q2", "q3"), 0.0), "RR": {"q1": 0.5, "q2": 0.5, "q3": 0.0}}


def test_measures_of_ranks_alone_are_taken_and_say_how_deep_they_look():
    for names, depth in {("Success@20", "P@5"): 20, ("RR@10",): 10, ("RR", "P@5"): None}.items():
        assert answer_match.max_cutoff([measures.parse_measure(name) for name in names]) == depth
    for name in ("nDCG@10", "R@100", "AP", "Success(rel=2)@5", "Rprec", "Judged@10"):
        with pytest.raises(UsageError, match="cannot be computed from answers, which judge only what was retrieved"):
            answer_match.max_cutoff([measures.parse_measure("Success@20"), measures.parse_measure(name)])
