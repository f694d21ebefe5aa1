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
        "# a comment\nq1 0 d1 2\n\nq1 Q0 d2 0\r\n# another\n007\t0\té\t-1",
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
        ("q1 d1\n", ":1: expected 4 columns (query 0 document grade) or 3 (query document grade), found 2"),
        ("q1 0 d1 1\nq1 d1 1\n", ":2: expected 4 columns, as in the lines above, found 3"),
        ("query-id corpus-id score\nq1 doc 17 1\n", ":2: expected 3 columns, as in the lines above, found 4"),
        ("query-id\tcorpus-id\tscore\nq1\tdoc 17\t1\n", ":2: document is not one word: 'doc 17'; columns are between tabs here"),
        ("who is\td1\t1\n", ":1: query is not one word: 'who is'; columns are between tabs here"),
        ("q1\t0\t\t1\n", ":1: document is empty: ''; columns are between tabs here"),
        ("q1\t0\td1\t1\n007\t0\té -1\n", ":2: expected 4 columns, as in the lines above, found 3 between tabs"),
        (
            "q1 doc 17 1\n",
            ":1: the second of 4 columns is 'doc', expected Q0 or a number; separate columns by tabs, and leave no white space in an id",
        ),
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


@pytest.mark.parametrize("iteration", ["0", "Q0", "q0", "QO", "1", "4.5", "STANDARD"])
def test_the_iteration_of_trec_is_a_number_or_q0_and_between_tabs_anything(tmp_path, iteration):
    (tmp_path / "a.qrels").write_text(f"q1 {iteration} d1 1\n")
    assert qrels.read_qrels(tmp_path / "a.qrels") == {"q1": {"d1": 1}}
    (tmp_path / "a.qrels").write_text("q1\tpool\td1\t1\n")
    assert qrels.read_qrels(tmp_path / "a.qrels") == {"q1": {"d1": 1}}


@pytest.mark.parametrize("line", ["#q2 0 d2 1", "#q2\td2\t1", "#\t0\td2\t1", "#q2 Q0 doc 1"])
def test_what_may_be_a_judgement_is_no_comment(tmp_path, line):
    for content, number in ((f"{line}\n", 1), (f"q1 0 d1 1\n{line}\n", 2)):
        (tmp_path / "a.qrels").write_text(content)
        with pytest.raises(DataError, match=f"a.qrels:{number}: a comment, or the judgement of a query whose id begins with #"):
            qrels.read_qrels(tmp_path / "a.qrels")


def test_a_comment_behind_the_first_judgement_is_logged_once(tmp_path, caplog):
    (tmp_path / "a.qrels").write_text("# pool depth 100\nq1 0 d1 1\n# depth 10\n#x\n")
    with caplog.at_level("INFO", "moeir"):
        assert qrels.read_qrels(tmp_path / "a.qrels") == {"q1": {"d1": 1}}
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}/a.qrels:3: skipped as a comment, as it begins with #"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"q1": {"d1": 1}}', "found JSON: "),
        ('{\n "q1": {"d1": 1}\n}', "judgements {query: {document: grade}} need a line for each: query 0 document grade"),
        ("<top>\n<num> Number: 301\n", "found TREC topics: write a line with number, tab and title for each"),
        (b"PAR1\x15\x04\x00", "expected text, found a parquet file; hf:FOLDER reads the parquet files of a folder"),
        (b"\x1f\x8b\x08\x00\x00", "expected text, found compressed by gzip; its name should end with .gz"),
    ],
)
def test_what_is_no_file_of_judgements_is_named(tmp_path, content, words):
    path = tmp_path / "a.qrels"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        qrels.read_qrels(path)
    assert words in str(caught.value)
