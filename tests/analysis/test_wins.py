import pytest
from hypothesis import given
from hypothesis import strategies as some

from moeir.analysis import wins
from tests.oracles import analysis

VALUES = some.integers(1, 4).flatmap(
    lambda count: some.fixed_dictionaries(
        {name: some.fixed_dictionaries({query: some.sampled_from([0.0, 0.5, 1.0]) for query in "pqrs"[:count]}) for name in ("a", "b", "c")}
    )
)


@given(VALUES)
def test_every_query_is_won_once_or_tied(values):
    rows = wins.analyze_wins(values, "RR", {"question": {query: "none" for query in values["a"]}}).rows
    assert [row[0] for row in rows] == ["all"] * 4 + ["question"] * 4
    for part in (rows[:4], rows[4:]):
        assert sum(row[4] for row in part) == part[0][2] == len(values["a"]) and sum(row[5] for row in part) == pytest.approx(1.0)
        for _, _, _, run, count, _, mean in part[:-1]:
            assert count == analysis.count_wins(values, list(values["a"]), run)
            assert mean == pytest.approx(sum(values[run].values()) / len(values["a"]))
        assert part[-1][3] == "tied" and part[-1][6] is None


def test_classes_come_from_little_to_much_and_only_those_that_are():
    values = {"a": {"p": 1.0, "q": 0.0, "r": 0.5}, "b": {"p": 0.5, "q": 1.0, "r": 0.5}}
    groups = {"length": {"p": "10", "q": wins.length_class("one two three four"), "r": wins.length_class("one")}}
    rows = wins.analyze_wins(values, "RR", groups | {"field": {"p": "z", "q": "y", "r": "z"}}).rows
    assert [tuple(row[1:5]) for row in rows if row[0] == "length"] == [
        ("1-3 words", 1, "a", 0), ("1-3 words", 1, "b", 0), ("1-3 words", 1, "tied", 1),
        ("4-6 words", 1, "a", 0), ("4-6 words", 1, "b", 1), ("4-6 words", 1, "tied", 0),
    ]  # fmt: skip
    assert [row[1] for row in rows if row[0] == "field"] == ["y"] * 3 + ["z"] * 3


@pytest.mark.parametrize(
    ("query", "length", "question"),
    [
        ("", "1-3 words", "none"),
        ("Who swims?", "1-3 words", "who"),
        ("in WHAT sea do eels swim and why", "7-10 words", "what"),
        ("is it what it was", "4-6 words", "yes or no"),
        ("a " * 16, "16 words or more", "none"),
        ("a " * 15, "11-15 words", "none"),
    ],
)
def test_a_query_belongs_to_one_class_of_each_kind(query, length, question):
    assert (wins.length_class(query), wins.question_class(query)) == (length, question)


def test_the_overlap_is_that_with_the_best_answer_that_is_known():
    queries = {"q": "Owl sleeps by day", "p": "owl", "r": "owl"}
    qrels = {"q": {"x": 1, "y": 2, "z": 0}, "p": {"gone": 1}}
    answers = {"x": "owl, day", "y": "a bat sleeps by DAY", "z": "owl sleeps by day"}
    assert wins.group_queries(queries, qrels, answers)["overlap"] == {"q": "50-75 %"}  # sleeps, by, day of four
    assert [wins.overlap_class("a b c d", [text]) for text in ("a", "a b", "d c b a")] == ["0-25 %", "25-50 %", "75-100 %"]
    assert wins.overlap_class("?", ["a"]) == "0-25 %"
