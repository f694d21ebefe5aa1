"""Files of generated queries are read as written; other files are refused with one line."""

from moeir.records import generated_queries
from moeir.records.generated_queries import GeneratedQueries


def test_what_is_written_is_read(tmp_path):
    records = [GeneratedQueries("a", ("what do ötters eat", 'a "b"\u2028c')), GeneratedQueries("7", ())]
    path = tmp_path / "generated.jsonl"
    path.write_text("".join(f"{generated_queries.format_line(record.id, record.queries)}\n" for record in records), encoding="utf-8")
    assert list(generated_queries.read_generated_queries(path)) == records
    assert "ötters" in path.read_text(encoding="utf-8")


def test_a_part_of_several_may_be_empty(tmp_path):
    (tmp_path / "part.jsonl").write_text("", encoding="utf-8")
    assert list(generated_queries.read_generated_queries(tmp_path / "part.jsonl", allow_empty=True)) == []
