"""Faulty files: the reader's error names file and line, what was found and what was expected."""

import json

import pytest

from moeir.errors import DataError
from moeir.records import examples, generated_queries, lines, qrels, runs, texts

READERS = {  # by the suffix of the file; of any other: texts
    "qrels": qrels.read_qrels,
    "trec": runs.read_run,
    "examples": lambda path: list(examples.read_examples(path)),
    "generated": lambda path: list(generated_queries.read_generated_queries(path)),
}
COLUMNS = "expected 4 columns (query 0 document grade) or 3 (query document grade)"
HITS = "expected 6 columns (query Q0 document rank score tag)"
TABS = "columns are between tabs here"
LOOKS_LIKE = ":1: the first line looks like a header, "
HEADERS = (
    *("docno\ttext", "docno\tanything", "doc-id\tpassage", "passage_id\tsentence", "number\ttitle", '"docno"\t"text"', "id\tabstract"),
    *("ID\tlang\tAbstract", "title\ttext", "topic\tquery", "id\ttext\ttext", "corpus-id\tcontents"),
)
NO_COMMENTS = ("#q2 0 d2 1", "#q2\td2\t1", "#\t0\td2\t1", "#q2 Q0 doc 1")
CASES = [  # suffix, content, message
    *(("tsv", f"{header}\n1\tAn owl.\n", LOOKS_LIKE + ", ".join(header.replace('"', "").lower().split("\t"))) for header in HEADERS),
    ("tsv", "docno\ttext\n", LOOKS_LIKE + "docno, text; expected one of _id, id, docid, query_id, qid, doc_id, pid and one of text, "),
    ("tsv", 'id\ttext\n2\t"never closed\n3\tthree\n', ':2: a column begins with " and is not closed before line 3, a row of its own'),
    ("tsv", 'id\ttext\ttitle\n1\tone\tOne\n3\t"never closed\n\n', ":3: not a table: unexpected end of data; a column that begins with"),
    ("tsv", 'id\ttext\ttitle\n2\t"Heroes" is a song\tTwo\n', ":2: not a table: '\\t' expected after '\"'; a column that begins with"),
    ("tsv", 'id\ttext\n2\t"two\nlines"\n3\n', ":4: expected 2 tab-separated columns (id, text), found 1"),
    ("tsv", 'id\ttext\n2\t"two\nlines"\na b\tthree\n', ":4: id with white space: 'a b'; expected one word"),
    ("csv", "id,text\n1,An owl.\n", ":1: expected 2 tab-separated columns (id, text), found columns between commas: write them between"),
    ("txt", "<top>\n<num> Number: 301\n", ":1: expected 2 tab-separated columns (id, text), found TREC topics: write a line with number"),
    ("xml", '<?xml version="1.0"?>\n<topics>', ":1: expected 2 tab-separated columns (id, text), found XML: "),
    ("txt", "<DOC>\n<DOCNO>1</DOCNO>\n", ":1: expected 2 tab-separated columns (id, text), found TREC documents: write JSON lines"),
    ("txt", '{"_id": "1", "text": "x"}\n', ":1: expected 2 tab-separated columns (id, text), found JSON: a file of texts is called .jsonl"),
    ("jsonl", '{"q1": {"d1": 1}}\n', ":1: expected a text, found judgements or a run as JSON, {query: {document: …}}"),
    ("jsonl", '{"_id": "1", "text": "\x01"', ":1: broken JSON at column 23: Invalid control character"),
    ("jsonl", "[" * 100_000, ":1: broken JSON"),
    ("jsonl", '{"_id": "1", "text": "x"}\n{"text": "y"}', ":2: no id; expected one of _id, id, docid, query_id, qid, doc_id, pid among"),
    ("jsonl", '{"_id": "1", "title": "x"}', ":1: no text; expected one of text, contents, content, query, question, query_text, "),
    ("jsonl", '{"_id": " ", "text": "x"}\n', ":1: id is blank"),
    ("jsonl", '{"_id": "a b%s", "text": "x"}\n' % ("c" * 99), f":1: id with white space: 'a b{'c' * 53}...; expected one word"),
    ("jsonl", '{"_id": "1", "text": "x"}\n{"_id": 1, "text": "y"}\n', ":2: duplicate id '1'; ids must be unique"),
    ("jsonl", '{"_id": "1", "text": ""}\n', ":1: the text of '1' is empty; moeir check lists such texts"),
    ("jsonl", '{"_id": "1", "text": ["x"]}\n', ':1: text is not a string: ["x"]'),
    ("jsonl", '{"_id": "1", "text": "x", "title": 3}\n', ":1: title is not a string: 3"),
    ("jsonl", '{"_id": "1", "text": "x", "answers": "y"}\n', ':1: answers is not a list of strings: "y"'),
    ("jsonl", '{"_id": "1", "text": "x"}\n\n["1"]\n', ':3: expected a JSON object, found ["1"]'),
    ("jsonl", '{"_id": "1", "text": "\\ud800"}\n', ":1: broken JSON: an escape is half a character (a lone surrogate)"),
    ("jsonl", '{"_id": "1", "text": "x"}\n{"_id": "2"\n', ":2: broken JSON at column 12: Expecting ',' delimiter; expected one object"),
    ("jsonl", "\n \n", ": holds no text"),
    ("tsv", "1\tx\n2\n", ":2: expected 2 tab-separated columns (id, text), found 1"),
    ("tsv", "id\ttitle\ttext\n1\tx\n", ":2: expected 3 tab-separated columns (id, title, text), found 2"),
    ("tsv", "who sings\t['Reba']\nhow many\tseven\n", ":1: id with white space: 'who sings'"),
    ("json", '[{"question": "a b"},\n {"question": "c d",}]', ":2: broken JSON: "),
    ("json", '[\n{"question": "a b"\n "answers": []}]', ":3: broken JSON: Expecting ',' delimiter; expected an array of objects"),
    ("json", '[\n{"question": "a b"}\n', ":2: broken JSON: Expecting value; expected an array of objects"),
    ("json", '[{"question": "a b"},\n\n7]', ":3: expected an object in the array, found 7"),
    ("json", '[{"question": "a b"}]\n{}', ":1: expected nothing more behind the array"),
    ("json", '[{"question": "a \\ud800"}]', ":1: broken JSON: an escape is half a character (a lone surrogate)"),
    ("json", '[{"question": ' + "9" * 5000 + "}]", ":1: broken JSON: Exceeds the limit"),
    ("json", '[\n{"text": "a b"}]', ":2: no id; expected one of _id,"),
    ("json", "[\n]", ": holds no text"),
    ("qrels", "q1 0 d1 1\nq1 0 d2 x\n", ":2: grade is not a whole number of at most 15 digits: 'x'"),
    ("qrels", "q1 0 d1 1_0\n", ":1: grade is not a whole number of at most 15 digits: '1_0'"),
    ("qrels", "q1 d1\n", f":1: {COLUMNS}, found 2"),
    ("qrels", "q1 0 d1 1 5\n", f":1: {COLUMNS}, found 5"),
    ("qrels", "q1 0 d1 1\nq1 d1 1\n", ":2: expected 4 columns, as in the lines above, found 3"),
    ("qrels", "query-id\tcorpus-id\tscore\nq1\tdoc 17\t1\n", f":2: document is not one word: 'doc 17'; {TABS}"),
    ("qrels", "who is\td1\t1\n", f":1: query is not one word: 'who is'; {TABS}"),
    ("qrels", "q1\t0\td1\t1\n007\t0\té -1\n", ":2: expected 4 columns, as in the lines above, found 3 between tabs"),
    ("qrels", "q1 doc 17 1\n", ":1: the second of 4 columns is 'doc', expected Q0 or a number; separate columns by tabs, and leave no "),
    ("qrels", "q1 0 d1 1\nq1 0 d1 0\n", ":2: query 'q1', document 'd1': grade 0 here, 1 on an earlier line"),
    ("qrels", "query-id\tcorpus-id\tscore\n", f": holds no judgement; {COLUMNS}"),
    *(("qrels", content, ":1: a column is in quotation marks: ") for content in ('q1\t"d1"\t1\n', '"query-id"\t"corpus-id"\t"score"\n')),
    ("qrels", "corpus-id\tquery-id\tscore\n7\t8\t1\n", ":1: the columns are corpus-id query-id score; expected query, document, grade"),
    ("qrels", "docid\tqid\tlabel\n7\t8\t1\n", ":1: the columns are docid qid label; expected query, document, grade"),
    *(("qrels", f"q1 0 d1 1\n{line}\n", ":2: a comment, or the judgement of a query whose id begins with #") for line in NO_COMMENTS),
    ("qrels", '{\n "q1": {"d1": 1}\n}', f":1: {COLUMNS}, found JSON: a file of texts is called .jsonl; a run "),
    ("qrels", "query-id,corpus-id,score\nq1,owl,1\n", f":1: {COLUMNS}, found columns between commas: write them between tabs"),
    ("qrels", "<top>\n<num> Number: 301\n", f":1: {COLUMNS}, found TREC topics: write a line with number, tab and title for each"),
    ("qrels", b"PAR1\x15\x04\x00", ": expected text, found a parquet file; hf:FOLDER reads the parquet files of a folder"),
    ("qrels", b"\x1f\x8b\x08\x00\x00", ": expected text, found compressed by gzip; its name should end with .gz"),
    ("trec", "q Q0 d 1 x t\n", ":1: score is not a number: 'x'"),
    ("trec", "q Q0 d 1 1 t\nq Q0 e 2 nan t\n", ":2: score is not finite: 'nan'"),
    ("trec", "q Q0 d 1 1e39 t\n", ":1: score is not finite: '1e39'"),
    ("trec", "q Q0 d 1 1_0 t\n", ":1: score is not a number: '1_0'"),
    ("trec", "q Q0 d 1 1\n", f":1: {HITS}, found 5"),
    ("trec", "q Q0 d 1 1 t\n\nq Q0 e 2 0 a tag\n", f":3: {HITS}, found 7"),
    ("trec", "q\tQ0\td\t1\t1\t\n", f":1: tag is empty: ''; {TABS}"),
    ("trec", "q\td\t1\n", f":1: {HITS}, found 3 between tabs"),
    ("trec", "q Q0 d 1 1 t\nq\tQ0\td 17\t1\t1\tt\n", f":2: document is not one word: 'd 17'; {TABS}"),
    ("trec", "q Q0 d 1 1 t\n Q0 e 2 0 t\n", f":2: {HITS}, found 5"),
    ("trec", "q\tQ0\td\t1\t1\tt\n\tQ0\te\t2\t0\tt\n", f":2: query is empty: ''; {TABS}"),
    ("trec", "\nq doc 17 1 3.0 t\n", ":2: the second of 6 columns is 'doc', expected Q0 or a number; separate columns by tabs, and leave"),
    ("trec", "\nq Q0 d 1 2 t\np Q0 d 1 2 t\n\nq Q0 e 2 1 t\nq Q0 d 3 1 t\n", ": document 'd' is listed twice for query 'q'"),
    ("trec", "\n\n", f": holds no line; {HITS}"),
    ("examples", "\n", ": holds no example"),
    ("generated", "", ": holds no record"),
    ("generated", '{"_id": "a"}', ":1: expected _id, and queries as a list of strings, as generate-queries writes them"),
    ("generated", '{"_id": "a", "queries": [1]}', ":1: expected _id, and queries as a list of strings"),
    ("generated", "[1]", ":1: expected a JSON object, found [1]"),
    ("generated", '\n{"_id": "a", "queries": []}\n{"_id": "a", "queries": []}', ":3: duplicate id 'a'"),
]
SCORED = {"query_id": "q", "positive_ids": ["a"], "negative_ids": ["b", "c"]}
INLINE = {"query_id": "q", "query": "x", "positive_passages": [{"docid": "a", "text": "x"}], "negative_passages": []}
SIDES = "expected one of negative_ids, negative_document_ids, negative_passages"
GOLD = {"title": "Owl", "text": "Owls hunt.", "passage_id": "17"}
DPR = {"question": "who hunts", "answers": ["owls"], "positive_ctxs": [GOLD], "negative_ctxs": [], "hard_negative_ctxs": []}
RECORDS = [  # an example and the message
    ({"positive_ids": ["a"]}, ":1: no query_id, found positive_ids; moeir convert --to examples reads other formats"),
    ({"query_id": "q", "positive_ids": ["a"]}, f":1: no negatives; {SIDES}"),
    (SCORED | {"positive_ids": []}, ":1: query 'q' has no positive"),
    (SCORED | {"negative_ids": ["b", "a"]}, ":1: document 'a' is a positive and a negative of query 'q'"),
    (SCORED | {"negative_ids": ["b", "b"]}, ":1: document 'b' is listed twice in negative_ids"),
    (SCORED | {"positive_ids": "a"}, ":1: positive_ids is not a list"),
    (SCORED | {"positive_ids": ["a", ""]}, ":1: id is blank"),
    (SCORED | {"negative_provenance": []}, ":1: 2 negatives, but negative_provenance has 0 entries"),
    (SCORED | {"positive_scores": [1]}, ":1: no negative_scores"),
    (SCORED | {"positive_scores": [1], "negative_scores": [1]}, ":1: 2 negatives, but negative_scores has 1 entries"),
    (SCORED | {"positive_scores": ["1"], "negative_scores": [1, 2]}, ":1: positive_scores: expected finite numbers, found '1'"),
    (SCORED | {"positive_scores": [10**400], "negative_scores": [1, 2]}, ":1: positive_scores: expected finite numbers, found 1000"),
    (INLINE | {"query": None}, ":1: query is not a string: null"),
    ({name: INLINE[name] for name in ("query_id", "query", "positive_passages")}, f":1: no negatives; {SIDES}"),
    (INLINE | {"negative_passages": [{"docid": "a", "text": "y"}]}, ":1: passage 'a' has two texts"),
    (INLINE | {"positive_passages": [{"docid": "a", "text": 1}]}, ":1: positive_passages: text is not a string: 1"),
    (INLINE | {"negative_passages": -1}, ":1: negative_passages is not a list"),
    ([DPR | {"negative_ctxs": "x"}], ":1: negative_ctxs is not a list"),
    ([DPR | {"question": None}], ":1: no question; expected a string"),
    ([DPR | {"positive_ctxs": {}}], ":1: positive_ctxs is not a list"),
    ([DPR | {"positive_ctxs": ["17"]}], ":1: positive_ctxs: expected contexts with a text and a title, both strings"),
    ([DPR | {"hard_negative_ctxs": [{"title": 1, "text": "x"}]}], ":1: hard_negative_ctxs: expected contexts with a text"),
    ([DPR | {"positive_ctxs": [GOLD | {"passage_id": [1]}]}], ":1: positive_ctxs: id of a context is not a string: [1]"),
    ([DPR | {"question_id": True}], ":1: id is not a string: true"),
    ([DPR | {"positive_ctxs": []}], ": holds no example"),
]
CASES += [("examples", json.dumps(record), message) for record, message in RECORDS]


@pytest.mark.parametrize(("reader", "content", "message"), CASES)
def test_a_faulty_file_is_refused_with_its_line(tmp_path, monkeypatch, reader, content, message):
    path = tmp_path / f"dev.{reader}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for block in (5, lines.BLOCK_BYTES):
        monkeypatch.setattr(lines, "BLOCK_BYTES", block)
        with pytest.raises(DataError) as caught:
            READERS.get(reader, lambda path: list(texts.read_texts(path)))(path)
        assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("content", ["docno\ttext\n1\tAn owl.\n", 'id\ttext\n2\t"never closed\n3\tthree\n', "<top>\n<num> Number: 301\n"])
def test_check_reports_what_the_reader_refuses(tmp_path, moeir, content):
    (tmp_path / "a.tsv").write_text(content)
    with pytest.raises(DataError) as caught:
        list(texts.read_texts(tmp_path / "a.tsv"))
    result = moeir("check", "--corpus", tmp_path / "a.tsv")
    assert result.code == 3 and str(caught.value).split("; ")[0] in result.stdout
