import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        "# pool depth 100\nq1 0 d1 2\n\nq1 Q0 d2 0\r\n# another\n#x\n007\t0\té\t-1",
        "q1 0 d1 2\nq1 0 d1 2\nq1 0 d2 +0\n007 0 é -1\n",
    ],
)
def test_forms_of_the_field_read_alike(tmp_path, content):
    (tmp_path / "toy.tsv").write_text(content, encoding="utf-8")
    assert qrels.read_qrels(tmp_path / "toy.tsv") == TOY


def test_the_iteration_of_trec_is_a_number_or_q0_and_between_tabs_anything(tmp_path):
    for line in (*(f"q1 {word} d1 1" for word in ("0", "Q0", "q0", "QO", "1", "4.5", "STANDARD")), "q1\tpool\td1\t1"):
        (tmp_path / "a.qrels").write_text(f"{line}\n")
        assert qrels.read_qrels(tmp_path / "a.qrels") == {"q1": {"d1": 1}}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query-id": None, "corpus-id": "owl", "score": 1}, "row 1, column 'query-id': id is not a string: null"),
        ({"query-id": 12.0, "corpus-id": "owl", "score": 1}, "row 1, column 'query-id': id is not a string: 12.0"),
        ({"query-id": "q", "corpus-id": "an owl", "score": 1}, "row 1, column 'corpus-id': id with white space: 'an owl'"),
        ({"query-id": "q", "corpus-id": "owl", "score": None}, "row 1, column 'score': grade is not a whole number of at most 15 digits"),
        ({"query-id": "q", "corpus-id": "owl", "score": 0.9999999}, "row 1, column 'score': grade is not a whole number"),
    ],
)
def test_faulty_rows_of_judgements_are_refused_by_row_and_column(tmp_path, monkeypatch, row, message):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([row]).save_to_disk(str(tmp_path / "qrels"))
    with pytest.raises(DataError) as caught:
        qrels.read_qrels(f"hf:{tmp_path}/qrels")
    assert str(caught.value).startswith(f"hf:{tmp_path}/qrels: {message}")
    Part = namedtuple("Part", "query_id doc_id relevance")
    stub = SimpleNamespace(qrels_iter=lambda: iter([Part(*row.values())]), has_qrels=lambda: True)
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=lambda name: stub))
    for name, other in zip(row, Part._fields, strict=True):
        message = message.replace(name, other)
    with pytest.raises(DataError) as caught:
        qrels.read_qrels("irds:toy#qrels")
    assert str(caught.value).startswith(f"irds:toy#qrels: {message}")


def test_whole_grades_of_any_size_are_read_from_a_table(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"query-id": 1, "corpus-id": f"d{grade}", "score": float(grade)} for grade in (0, 1, -2, 1234567)]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "qrels"))
    assert qrels.read_qrels(f"hf:{tmp_path}/qrels") == {"1": {"d0": 0, "d1": 1, "d-2": -2, "d1234567": 1234567}}


IDS = st.one_of(st.text(st.characters(codec=None), max_size=3), st.integers(0, 3), st.none(), st.floats(), st.booleans())
GRADES = st.one_of(st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=2))


@given(st.dictionaries(IDS, st.dictionaries(IDS, GRADES, min_size=1, max_size=2), min_size=1, max_size=2))
def test_what_the_writer_accepts_the_reader_reads_back(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("qrels") / "a.qrels"
    try:
        qrels.write_qrels(written, path)
    except DataError:
        assert not path.exists()
        return
    expected = {(str(query), str(document), int(grade)) for query, grades in written.items() for document, grade in grades.items()}
    if len({pair[:2] for pair in expected}) < len(expected):  # such as the ids 1 and "1", with two grades
        with pytest.raises(DataError, match="on an earlier line"):
            qrels.read_qrels(path)
    else:
        judged = qrels.read_qrels(path)
        assert {(query, document, grade) for query, grades in judged.items() for document, grade in grades.items()} == expected


def test_ids_that_the_reader_refuses_are_not_written(tmp_path):
    for query, document, message in (("q", "d\u00a01", "id with white space"), ("#q", "d", "an id that does not begin with #")):
        with pytest.raises(DataError, match=message):  # trec_eval splits at ASCII white space only
            qrels.write_qrels({query: {document: 1}}, tmp_path / "b.qrels")
        assert not (tmp_path / "b.qrels").exists()
