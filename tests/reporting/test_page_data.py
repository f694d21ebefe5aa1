"""Columns of a page against the slow way: ranks of every shown document, explanations, means with intervals."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from moeir.evaluation import measures
from moeir.records import texts
from moeir.records.runs import Run
from moeir.reporting import page_data
from moeir.reporting.explanations import Explanations
from moeir.reporting.page_data import UNJUDGED, QueryPages, shorten
from tests.oracles import reporting

HITS = some.dictionaries(some.sampled_from("abcdefghij"), some.integers(0, 4).map(float))
GRADES = some.dictionaries(some.sampled_from("abcdefghijkl"), some.integers(-1, 2))


@given(some.lists(HITS, min_size=1, max_size=3), GRADES, some.integers(1, 4))
def test_a_case_has_the_ranks_of_every_document_at_a_top_and_of_every_answer(lists, grades, depth):
    runs = {str(number): Run.from_hits({"q": hits, "other": {"z": 1.0}}) for number, hits in enumerate(lists)}
    cases = QueryPages(runs, {"q": grades, "other": {"y": 1}}, depth)
    expected = reporting.query_page_ranks({name: run.hits("q") for name, run in runs.items()}, grades, depth)
    answers = [name for name, grade in grades.items() if grade > 0]
    documents = cases.shown_documents("q")
    assert len(documents) == len(set(documents)) and set(documents) <= set(expected)
    if len(answers) <= depth:
        assert set(documents) == set(expected)
    case = cases.query_page("q", {name: number_in_page for number_in_page, name in enumerate(documents)}, Explanations())
    assert case["d"] == list(range(len(documents)))
    ranks = zip(*case["r"], strict=True)
    assert [[rank or None for rank in row] for row in ranks] == [expected[name] for name in documents]
    assert case["g"] == [grades.get(name, UNJUDGED) for name in documents]
    for run, scores in zip(runs.values(), case["s"], strict=True):
        assert scores == [dict(run.hits("q")).get(name) for name in documents]


def test_a_query_that_a_run_lacks_is_a_case_of_answers():
    cases = QueryPages({"one": Run.from_hits({"other": {"a": 1.0}})}, {"q": {"b": 1, "a": 0}}, 10)
    assert cases.query_page("q", {"b": 0}, Explanations()) == {"d": [0], "r": [[0]], "s": [[None]], "g": [1]}
    assert cases.first_answer_ranks(["q"]) == [[0]]


def test_the_first_answer_has_a_rank_wherever_it_stands():
    run = Run.from_hits({"q": {str(number): -float(number) for number in range(50)}})
    assert QueryPages({"one": run}, {"q": {"40": 1, "44": 2}}, 3).first_answer_ranks(["q", "none"]) == [[41, 0]]


EXPERT_EXPLANATIONS = {
    "lexical": {"part": 1.23456, "terms": [{"term": "owl", "query": 2.0, "document": 0.51234, "product": 1.02}]},
    "local": {"part": None, "tokens": [{"query": "owl", "position": 3, "document": "##owl", "similarity": 0.98765},
                                       {"query": "[SEP]", "similarity": -0.5}]},
}  # fmt: skip


def test_reasons_are_told_in_columns_with_every_word_once():
    lines = [{"query": "q", "document": name, "experts": EXPERT_EXPLANATIONS} for name in ("a", "nobody", "b")]
    explanations = Explanations(lines, lambda query: ["b", "silent", "a"])
    assert explanations.document_count == 2
    assert explanations.for_query("q") == {
        "x": ["lexical", "local"],
        "p": [[1.235, None], None, [1.235, None]],
        "t": {"lexical": [[0, 2, 0.512], [], [0, 2, 0.512]]},
        "k": {"local": [[0, 1, 0.988, 2, -1, -0.5], [], [0, 1, 0.988, 2, -1, -0.5]]},
        "w": ["owl", "##owl", "[SEP]"],
    }
    many = [{"term": f"t{number}", "query": 1.0, "document": 1.0} for number in range(10)] * 2
    tokens = [{"query": f"w{number}", "similarity": 1.0} for number in range(1234)]
    line = {"query": "q", "document": "a", "experts": {"lexical": {"terms": many}, "local": {"tokens": tokens}}}
    page = Explanations([line], lambda query: ["a"]).for_query("q")
    assert len(page["t"]["lexical"][0]) == 30 and page["w"][page["k"]["local"][0][-3]] == "w1233"
    assert explanations.for_query("another") == {} and Explanations().for_query("q") == {}


def test_a_table_has_every_pair_of_runs():
    runs = {"one": Run.from_hits({"a": {"x": 2, "y": 1}, "b": {"x": 1}}), "two": Run.from_hits({"a": {"y": 2, "x": 1}, "b": {"x": 1}})}
    table = page_data.comparison_table(
        {name: measures.evaluate_run(run, {"a": {"y": 1}, "b": {"x": 1}}, [measures.parse_measure("RR@10")]) for name, run in runs.items()},
        ["b", "a"],
    )
    assert table["measures"] == ["RR@10"] and table["values"] == [[[10000, 5000], [10000, 10000]]]
    assert [one[0] for one in table["means"][0]] == [0.75, 1.0]
    assert table["p"] == [[[None, pytest.approx(0.5)], [pytest.approx(0.5), None]]]


def test_texts_are_cut_between_words_and_lists_into_chunks():
    assert shorten("one two three", 7) == "one two …" and shorten("one two", 7) == "one two"
    assert shorten("unbroken" * 4, 8) == "unbroken …"
    assert list(texts.split_chunks("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]] and list(texts.split_chunks("", 2)) == []
