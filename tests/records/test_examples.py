import json

import pytest

from moeir.errors import DataError
from moeir.records import examples
from moeir.records.examples import Example, Found
from moeir.records.texts import Text

PROVENANCE = ((Found("bm25", 1, 9.5), Found("came.dense", 12, 0.5)), (Found("bm25", 3, 2.0),))
BY_ID = Example("q1", ("d1",), ("d2", "d3"), PROVENANCE)
INLINE = Example("q2", ("d1",), ("d2",), (), Text("q2", "what?"), (Text("d1", "this", title="A"), Text("d2", "that")))


def test_written_examples_are_read_again(tmp_path):
    examples.write([BY_ID, INLINE, Example("q3", ("d1",), ())], tmp_path / "train.jsonl.gz")
    assert list(examples.read(tmp_path / "train.jsonl.gz")) == [BY_ID, INLINE, Example("q3", ("d1",), ())]


def test_an_example_by_id_is_a_line_of_ids_with_provenance(tmp_path):
    examples.write([BY_ID], tmp_path / "train.jsonl")
    assert json.loads((tmp_path / "train.jsonl").read_text()) == {
        "query_id": "q1",
        "positive_ids": ["d1"],
        "negative_ids": ["d2", "d3"],
        "negative_provenance": [
            [{"run": "bm25", "rank": 1, "score": 9.5}, {"run": "came.dense", "rank": 12, "score": 0.5}],
            [{"run": "bm25", "rank": 3, "score": 2.0}],
        ],
    }


def test_tevatrons_ids_are_understood(tmp_path):
    line = '{"query_id": 7, "query_text": "x", "positive_document_ids": [1], "negative_document_ids": ["02"]}'
    (tmp_path / "a.jsonl").write_text(f"{line}\n\n")
    assert list(examples.read(tmp_path / "a.jsonl")) == [Example("7", ("1",), ("02",))]


FAULTY = [
    ({"positive_ids": ["a"], "negative_ids": []}, ":1: no query_id"),
    ({"query_id": "q", "negative_ids": []}, ":1: no positives; one of positive_ids, positive_document_ids, positive_passages was expected"),
    (
        {"query_id": "q", "positive_ids": ["a"]},
        ":1: no negatives; one of negative_ids, negative_document_ids, negative_passages was expected",
    ),
    ({"query_id": "q", "positive_ids": [], "negative_ids": ["a"]}, ":1: query 'q' has no positive"),
    ({"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b", "a"]}, ":1: document 'a' is a positive and a negative of query 'q'"),
    ({"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b", "b"]}, ":1: document 'b' stands twice in negative_ids"),
    ({"query_id": "q", "positive_ids": "a", "negative_ids": []}, ":1: positive_ids is not a list"),
    ({"query_id": "q", "positive_ids": ["a", ""], "negative_ids": []}, ":1: id is blank"),
    (
        {"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b"], "negative_provenance": []},
        ":1: 1 negatives, but negative_provenance has 0 entries",
    ),
    (
        {"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b"], "negative_provenance": [[{"run": "x"}]]},
        ':1: negative_provenance is not a list of lists of {"run", "rank", "score"}',
    ),
    (
        {"query_id": "q", "positive_passages": [{"docid": "a", "text": "x"}], "negative_passages": []},
        ":1: no query text beside the passages: the field query is missing or not a string",
    ),
    ({"query_id": "q", "query": "x", "positive_passages": [{"docid": "a", "text": "x"}]}, ":1: no negative_passages"),
    (
        {"query_id": "q", "query": "x", "positive_passages": [{"docid": "a", "text": 1}], "negative_passages": []},
        ":1: positive_passages: text is not a string: 1",
    ),
    ([], ":1: a JSON object was expected"),
]


@pytest.mark.parametrize(("record", "message"), FAULTY)
def test_faulty_examples_are_refused_with_their_line(tmp_path, record, message):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError) as caught:
        list(examples.read(path))
    assert str(caught.value) == f"{path}{message}"


def test_a_query_has_one_line(tmp_path):
    examples.write([BY_ID, BY_ID], tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"train\.jsonl:2: query 'q1' stands on an earlier line too; one line per query was expected"):
        list(examples.read(tmp_path / "train.jsonl"))


def test_a_file_without_examples_is_refused(tmp_path):
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"train\.jsonl: holds no example"):
        list(examples.read(tmp_path / "train.jsonl"))
