import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import DataError
from moeir.records import lines, runs
from tests.oracles import rank_order

words = st.text(st.characters(blacklist_categories=["Z", "C"]), min_size=1, max_size=5)
scores = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-9, 0.1, float(np.float32(0.1)), 2.0, 1e-40, -3.5]),
    st.floats(-1e30, 1e30, width=64),
)
hits = st.dictionaries(words, scores, max_size=12)


@given(hits, st.integers(0, 14))
def test_hits_stand_as_pythons_sort_puts_them_and_a_depth_cuts_that_order(found, depth):
    ids, values = list(found), list(found.values())
    best = runs.rank_order(np.array(values), runs.id_ranks(ids))
    assert [ids[index] for index in best] == rank_order.rank_order(found)
    assert runs.rank_order(values, runs.id_ranks(ids), depth).tolist() == best[:depth].tolist()


@given(st.dictionaries(words, st.dictionaries(words, scores, min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_written_run_is_read_again(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("runs") / "toy.trec"
    run = runs.Run.from_hits(found)
    runs.write_run(run, path, tag="toy")
    again = runs.read_run(path)
    assert again.tag == "toy"
    assert {query: again.hits(query) for query in again.queries} == {query: run.hits(query) for query in run.queries}
    assert (again.queries, again.document_ids) == (run.queries, run.document_ids)


def test_a_run_shows_nine_digits_and_ranks_from_one(tmp_path):
    runs.write_run(runs.Run.from_hits({}), tmp_path / "a.trec")
    assert (tmp_path / "a.trec").read_bytes() == b""
    runs.write_run(runs.Run.from_hits({"q1": {"a": 0.1, "b": 10, "c": 1 / 3e7}}, tag="t"), tmp_path / "a.trec")
    assert (tmp_path / "a.trec").read_text() == "q1 Q0 b 1 10 t\nq1 Q0 a 2 0.100000001 t\nq1 Q0 c 3 3.33333325e-08 t\n"


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_a_tag_of_several_words_between_tabs_is_one_and_can_be_written(tmp_path, monkeypatch, size):
    monkeypatch.setattr(lines, "BLOCK_BYTES", size)
    path = tmp_path / "a.trec"
    path.write_text("\nq\tQ0\td1\t1\t2.5\tmy  own run\nq\tQ0\td2\t2\t1.5\tmy  own run\n")
    run = runs.read_run(path)
    assert (run.hits("q"), run.tag) == ([("d1", 2.5), ("d2", 1.5)], "my_own_run")
    assert runs.parse_hit(path.read_text().splitlines()[1], "a.trec:2")[-1] == "my_own_run"
    runs.write_run(run, tmp_path / "b.trec")
    assert runs.read_run(tmp_path / "b.trec").tag == "my_own_run"


def test_long_ids_are_ids(tmp_path):
    hits_by_query = {"q": {"x" * 500: 1.0, "é" * 40: 1.0, "a": 1.0}, "u" * 100: {"a": 2.0}}
    run = runs.Run.from_hits(hits_by_query)
    runs.write_run(run, tmp_path / "a.trec")
    again = runs.read_run(tmp_path / "a.trec")
    assert again.documents_of("q") == run.documents_of("q") == ["é" * 40, "x" * 500, "a"]
    assert again.queries == run.queries


def test_columns_in_any_order_make_the_same_run_and_scores_that_are_equal_as_float32_tie():
    assert runs.Run.from_hits({"q": {"a": 1.0, "b": 1.0 + 1e-9, "c": 0.0, "d": -0.0}}).documents_of("q") == ["b", "a", "d", "c"]
    run = runs.Run.from_columns(["q2", "q1"], [1, 0, 1], ["b", "a"], [0, 1, 1], [1.0, 2.0, 1.0])
    assert run.document_ids == ["a", "b"]
    assert (run.hits("q1"), run.hits("q2")) == ([("b", 1.0), ("a", 1.0)], [("a", 2.0)])


def test_the_top_of_a_run_is_the_head_of_every_list():
    run = runs.Run.from_hits({"q1": {"a": 1, "b": 2, "c": 3}, "q2": {"a": 1}, "q3": {}})
    top = run.top(2)
    assert [top.documents_of(query) for query in top.queries] == [["c", "b"], ["a"], []]
    assert run.top(0).documents_of("q1") == []
    assert len(run.top(99).documents) == 4


def test_the_rank_of_a_line_is_a_whole_number():
    assert runs.parse_hit(f"q Q0 d {'9' * 18} 1 t", "a.trec:1") == ("q", "d", int("9" * 18), 1.0, "t")
    for rank in ("9" * 19, "-1", "1.0"):
        with pytest.raises(DataError, match=r"a\.trec:1: rank is not a whole number: '"):
            runs.parse_hit(f"q Q0 d {rank} 1 t", "a.trec:1")


@pytest.mark.parametrize(
    ("query", "document", "tag", "message"),
    [
        ("q 1", "d", "t", "id with white space: 'q 1'; expected one word, as in a run"),
        ("q", "d", "my tag", "id with white space: 'my tag'"),
        ("q", "d\ud800", "t", "id with a control character"),
    ],
)
def test_what_would_break_a_line_is_not_written(tmp_path, query, document, tag, message):
    """Neither from Python's values nor from columns."""
    with pytest.raises(DataError, match=message):
        runs.write_run(runs.Run.from_hits({query: {document: 1.0}}, tag=tag), tmp_path / "a.trec")
    run = runs.Run([query], np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32), [document], tag)
    with pytest.raises(DataError, match=rf"a\.trec: {message}"):
        runs.write_run(run, tmp_path / "a.trec")
    assert not (tmp_path / "a.trec").exists()


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e39])
def test_scores_that_no_run_holds_are_not_written(tmp_path, score):
    with pytest.raises(DataError, match="score of document 'd' is not a finite float32 number"):
        runs.Run.from_hits({"q": {"d": score}})
    run = runs.Run(["q"], np.array([0, 1]), np.zeros(1, np.int32), np.array([score], np.float32), ["d"])
    with pytest.raises(DataError, match=r"a\.trec: a score is not a finite float32 number"):
        runs.write_run(run, tmp_path / "a.trec")
    assert not (tmp_path / "a.trec").exists()
