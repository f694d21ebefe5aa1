"""Files of generated queries are read as written; other files are refused with one line."""

import pytest

from moeir.errors import DataError
from moeir.records import generated_queries
from moeir.records.generated_queries import GeneratedQueries


def test_what_is_written_is_read(tmp_path):
    records = [GeneratedQueries("a", ("what do ötters eat", 'a "b"\u2028c')), GeneratedQueries("7", ())]
    path = tmp_path / "generated.jsonl"
    path.write_text("".join(f"{generated_queries.format_line(record.id, record.queries)}\n" for record in records), encoding="utf-8")
    assert list(generated_queries.read_generated_queries(path)) == records
    assert "ötters" in path.read_text(encoding="utf-8")


BAD = [
    ("", "generated.jsonl: holds no record"),
    ('{"_id": "a"}', "generated.jsonl:1: expected _id, and queries as a list"),
    ('{"queries": []}', "generated.jsonl:1: expected _id, and queries as a list"),
    ("[1]", "generated.jsonl:1: expected a JSON object"),
    ('{"_id": "a", "queries": "b"}', "generated.jsonl:1: expected _id, and queries as a list"),
    ('{"_id": "a", "queries": [1]}', "generated.jsonl:1: expected _id, and queries as a list"),
    ('{"_id": "a b", "queries": []}', "generated.jsonl:1: id with white space"),
    ('\n{"_id": "a", "queries": []}\n{"_id": "a", "queries": []}', "generated.jsonl:3: duplicate id 'a'"),
    ("{", "generated.jsonl:1: broken JSON"),
]


@pytest.mark.parametrize(("content", "words"), BAD)
def test_another_file_is_refused(content, words, tmp_path):
    (tmp_path / "generated.jsonl").write_text(content)
    with pytest.raises(DataError) as caught:
        list(generated_queries.read_generated_queries(tmp_path / "generated.jsonl"))
    assert words in str(caught.value)


def test_a_part_of_several_may_be_empty(tmp_path):
    (tmp_path / "part.jsonl").write_text("", encoding="utf-8")
    assert list(generated_queries.read_generated_queries(tmp_path / "part.jsonl", allow_empty=True)) == []
