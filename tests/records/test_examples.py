import pytest

from moeir.errors import DataError
from moeir.records import examples
from moeir.records.examples import Example
from moeir.records.texts import Text

PROVENANCE = (
    [{"run": "bm25", "rank": 1, "score": 9.5}, {"run": "came.dense", "rank": 12, "score": 0.5}],
    [{"run": "bm25", "rank": 3, "score": 2.0}],
)
BY_ID = Example("q1", ("d1",), ("d2", "d3"), PROVENANCE)
INLINE = Example("q2", ("d1",), ("d2",), (), Text("q2", "what?"), (Text("d1", "this", title="A"), Text("d2", "that")))
WITH_TEACHER = Example("q4", ("d1", "d2"), ("d3",), positive_scores=(9.5, 0.25), negative_scores=(-2.0,))


def test_written_examples_are_read_again(tmp_path):
    taught = Example("q5", ("d1",), ("d2",), (), Text("q5", "what?"), INLINE.passages, (1.5,), (0.5,))
    titled = Example("q6", ("d2",), (), query=Text("q6", "do they hunt?", title="Owls"), passages=INLINE.passages[1:])
    written = [BY_ID, INLINE, Example("q3", ("d1",), ()), WITH_TEACHER, taught, titled]
    examples.write_examples(written, tmp_path / "train.jsonl.gz")
    *read, last = examples.read_examples(tmp_path / "train.jsonl.gz")
    assert read == written[:-1] and last.query == Text("q6", "Owls do they hunt?")
    (tmp_path / "ids.jsonl").write_text('{"query_id": 7, "positive_document_ids": [1], "negative_document_ids": ["02"]}\n\n')
    assert list(examples.read_examples(tmp_path / "ids.jsonl")) == [Example("7", ("1",), ("02",))], "Tevatron's"
    assert WITH_TEACHER.teacher_scores == {"d1": 9.5, "d2": 0.25, "d3": -2.0} and BY_ID.teacher_scores == {}
    assert examples.example_to_record(WITH_TEACHER)["positive_scores"] == [9.5, 0.25]
    assert examples.example_to_record(BY_ID) == {
        "query_id": "q1",
        "positive_ids": ["d1"],
        "negative_ids": ["d2", "d3"],
        "negative_provenance": list(PROVENANCE),
    }


def test_files_are_united_by_query_id(caplog):
    first = [Example("a", ("1",), ("2", "3")), Example("b", ("1",), ("4",))]
    second = [Example("c", ("5",), ("6",)), Example("a", ("3", "1"), ("9", "2", "8"))]
    assert examples.merge_examples([first, second], ["x", "y"]) == [
        Example("a", ("1", "3"), ("2", "9", "8")),
        Example("b", ("1",), ("4",)),
        Example("c", ("5",), ("6",)),
    ]
    assert caplog.messages == ["x: 1 negatives are left out, which another file calls positives of their query"]
    assert examples.merge_examples([first], ["x"]) == first


def test_fields_that_one_line_for_a_query_has_no_room_for_are_told():
    mined, lost = Example("q", ("1",), ("2",), provenance=PROVENANCE[1:]), []
    list(examples.group_by_query([("a:1", mined), ("a:2", mined)], lambda *what: lost.append(what)))
    assert lost == [(where, "field 'negative_provenance' of a query of several rows") for where in ("a:2", "a:1")]


def test_texts_are_united_and_must_agree():
    other = Example("q2", ("d3",), ("d2",), (), INLINE.query, (INLINE.passages[1], Text("d3", "it")))
    (merged,) = examples.merge_examples([[INLINE], [other]], ["x", "y"])
    assert merged == Example("q2", ("d1", "d3"), ("d2",), (), INLINE.query, (INLINE.passages[0], Text("d3", "it"), INLINE.passages[1]))
    with pytest.raises(DataError, match="y: 'q2' has another text before; different texts need other ids"):
        examples.merge_examples([[INLINE], [Example("q2", ("d1",), (), (), Text("q2", "who?"))]], ["x", "y"])
    with pytest.raises(DataError, match="y: 'd1' has another text before"):
        examples.merge_examples([[INLINE], [Example("q2", ("d1",), (), (), INLINE.query, (Text("d1", "those"),))]], ["x", "y"])


def test_a_teachers_scores_are_united_where_it_has_scored_everything():
    second = Example("q4", ("d3",), ("d4", "d1"), positive_scores=(7.0,), negative_scores=(1.0, 2.0))
    (merged,) = examples.merge_examples([[WITH_TEACHER], [second]], ["x", "y"])
    assert merged == Example("q4", ("d1", "d2", "d3"), ("d4",), positive_scores=(9.5, 0.25, -2.0), negative_scores=(1.0,))
    (merged,) = examples.merge_examples([[WITH_TEACHER], [Example("q4", ("d3",), ("d4",))]], ["x", "y"])
    assert merged == Example("q4", ("d1", "d2", "d3"), ("d4",))


def test_a_query_has_one_line(tmp_path):
    with pytest.raises(DataError, match=r"two\.jsonl: example 2: duplicate query id 'q1'"):
        examples.write_examples([BY_ID, BY_ID], tmp_path / "two.jsonl")
    assert not (tmp_path / "two.jsonl").exists()
    examples.write_examples([BY_ID], tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_text(2 * (tmp_path / "train.jsonl").read_text())
    with pytest.raises(DataError, match=r"train\.jsonl:2: duplicate query id 'q1'; expected one line per query"):
        list(examples.read_examples(tmp_path / "train.jsonl"))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (Example("q 1", ("a",), ()), "example 1: id with white space: 'q 1'"),
        (Example("q", ("a",), ("b",), positive_scores=(1.0,), negative_scores=(float("nan"),)), "negative_scores: expected finite numbers"),
        (Example("q", ("a",), (), query=Text("q", "who"), passages=(Text("b", "x"),)), "query 'q': has no text of document 'a'"),
        (Example("q", ("a",), (), query=Text("q", None), passages=(Text("a", "x"),)), "query is not a string"),
        (Example("q", ("a",), (), query=Text("q", "who"), passages=(Text("a", "\ud800"),)), "half a character"),
    ],
)
def test_what_the_reader_refuses_is_not_written(tmp_path, example, message):
    with pytest.raises(DataError, match=message):
        examples.write_examples([example], tmp_path / "train.jsonl")
    assert not (tmp_path / "train.jsonl").exists()
