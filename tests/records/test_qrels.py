import pytest

from moeir.errors import DataError
from moeir.records import qrels

TOY = {"q1": {"d1": 2, "d2": 0}, "007": {"é": -1}}


def test_written_judgements_are_read_again(tmp_path):
    qrels.write_qrels(TOY, tmp_path / "toy.qrels")
    assert (tmp_path / "toy.qrels").read_text(encoding="utf-8") == "q1 0 d1 2\nq1 0 d2 0\n007 0 é -1\n"
    assert qrels.read_qrels(tmp_path / "toy.qrels") == TOY


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\n007\té\t-1\n",
        "q1\td1\t2\nq1\td2\t0\n007\té\t-1\n",
        "# a comment\nq1 0 d1 2\n\nq1 Q0 d2 0\r\n# another\n007\t0\té -1",
        "q1 0 d1 2\nq1 0 d1 2\nq1 0 d2 +0\n007 0 é -1\n",
    ],
)
def test_forms_of_the_field_read_alike(tmp_path, content):
    (tmp_path / "toy.tsv").write_text(content, encoding="utf-8")
    assert qrels.read_qrels(tmp_path / "toy.tsv") == TOY


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1 0 d1 1\nq1 0 d2 x\n", ":2: grade is not a number: 'x'"),
        ("q1 0 d1 1.5\n", ":1: grade is not a whole number: '1.5'"),
        ("q1 0 d1 1_0\n", ":1: grade is not a whole number: '1_0'"),
        ("q1 0 d1 1\nq1 d1\n", ":2: expected 4 columns (query 0 document grade) or 3 (query document grade), found 2"),
        ("q1 0 d1 1 5\n", ":1: expected 4 columns (query 0 document grade) or 3 (query document grade), found 5"),
        ("q1 0 d1 1\nq1 0 d1 0\n", ":2: query 'q1', document 'd1': grade 0 here, 1 on an earlier line"),
        ("", ": holds no judgement; expected 4 columns (query 0 document grade) or 3 (query document grade)"),
        ("query-id\tcorpus-id\tscore\n", ": holds no judgement; expected 4 columns (query 0 document grade) or 3 (query document grade)"),
    ],
)
def test_faulty_judgements_are_refused_with_their_line(tmp_path, content, message):
    path = tmp_path / "dev.qrels"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        qrels.read_qrels(path)
    assert str(caught.value) == f"{path}{message}"
