"""Every kind of fault is reported with its line."""

import gc
import gzip
import json
import tracemalloc
from typing import NamedTuple

import pytest

from moeir.data_checks import files
from moeir.data_checks.findings import FAULT_KINDS, FileFindings, Findings

CORPUS = (
    '{"_id": "owl", "text": "An owl hunts mice."}',
    '{"_id": "cat", "text": "A cat sleeps."}',
    '{"_id": "bat", "text": "A bat flies."}',
)
QUERIES = ('{"_id": "q1", "text": "who hunts mice"}', '{"_id": "q2", "text": "who sleeps"}')
QRELS = ("q1 0 owl 1", "q2 0 cat 1")
TRAIN = ('{"query_id": "q1", "positive_ids": ["owl"], "negative_ids": ["cat", "bat"]}',)
RUN = ("q1 Q0 owl 1 3.0 t", "q1 Q0 cat 2 2.0 t", "q2 Q0 cat 1 2.5 t", "q2 Q0 owl 2 0.5 t")
GOOD = {"corpus.jsonl": CORPUS, "queries.jsonl": QUERIES, "dev.qrels": QRELS, "train.jsonl": TRAIN, "dev.trec": RUN}
FLAGS = {"--corpus": "corpus.jsonl", "--queries": "queries.jsonl", "--qrels": "dev.qrels", "--train": "train.jsonl", "--run": "dev.trec"}


class FaultCase(NamedTuple):
    """Lines after the valid ones of a file, the expected kind of the fault on the last of them, and a part of the message."""

    kind: str
    file: str
    lines: tuple[str | bytes, ...]
    words: str
    note: bool = False


def example(query="q2", **fields):
    return json.dumps({"query_id": query, "positive_ids": ["cat"], "negative_ids": ["bat"]} | fields)


OWL, TWIN, COW = ({"docid": name, "text": text} for name, text in (("owl", "An owl."), ("twin", "An owl."), ("cow", "A cow.")))
TWINS = json.dumps({"query_id": "q2", "query": "who", "positive_passages": [OWL], "negative_passages": [TWIN, COW]})
FAULT_CASES = [
    FaultCase("not-utf8", "corpus.jsonl", (b'{"_id": "x", "text": "caf\xe9"}',), "byte 0xe9"),
    FaultCase("control-character", "corpus.jsonl", ('{"_id": "x", "text": "ring\\u0007bell"}',), "'ring\\x07bell' should"),
    FaultCase("mojibake", "corpus.jsonl", ('{"_id": "x", "text": "the worldâ€™s cafÃ©"}',), "should be 'the world’s café'"),
    FaultCase("faulty-line", "corpus.jsonl", ('{"_id": "x", "text": "no end',), "broken JSON at column 22"),
    FaultCase("duplicate", "corpus.jsonl", ('{"_id": "owl", "text": "Another."}',), "'owl' occurs on an earlier line"),
    FaultCase("empty-text", "corpus.jsonl", ('{"_id": "x", "title": " ", "text": ""}',), "'x' has no text"),
    FaultCase("duplicate-text", "corpus.jsonl", ('{"_id": "x", "text": "a  BAT flies."}',), "'x' has the text of", note=True),
    FaultCase("query-in-corpus", "corpus.jsonl", ('{"_id": "x", "text": "who sleeps"}',), "document 'x' is the text of query 'q2'"),
    FaultCase("duplicate", "queries.jsonl", ('{"_id": "q1", "text": "again"}',), "'q1' occurs on an earlier line"),
    FaultCase("faulty-line", "dev.qrels", ("q1 owl",), "found 2"),
    FaultCase("duplicate", "dev.qrels", ("q1 0 bat 1", "q1 0 owl 1"), "query 'q1', document 'owl': judged"),
    FaultCase("grades-disagree", "dev.qrels", ("q1 0 owl 2",), "2 here, 1 on an earlier line"),
    FaultCase("unknown-query", "dev.qrels", ("q9 0 owl 1",), "query 'q9'"),
    FaultCase("unknown-document", "dev.qrels", ("q1 0 yak 1",), "document 'yak' of query 'q1'"),
    FaultCase("not-utf8", "dev.qrels", (b"q1 0 caf\xe9 0",), "byte 0xe9"),
    FaultCase("faulty-line", "train.jsonl", (example(positive_ids=[]),), "'q2' has no positive"),
    FaultCase("positive-among-negatives", "train.jsonl", (TWINS,), "'twin' has the text of a positive"),
    FaultCase("duplicate", "train.jsonl", (example("q1"),), "query 'q1' occurs on an earlier line"),
    FaultCase("unknown-query", "train.jsonl", (example("q9"),), "query 'q9'"),
    FaultCase("unknown-document", "train.jsonl", (example(negative_ids=["yak", "bat", "gnu"]),), "'yak' (and 1 more) of query 'q2'"),
    FaultCase("faulty-line", "dev.trec", ("q2 Q0 bat 3 0.1",), "found 5"),
    FaultCase("faulty-line", "dev.trec", ("q2 Q0 bat third 0.1 t",), "rank is not a whole number: 'third'"),
    FaultCase("rank-order", "dev.trec", ("q2 Q0 bat 2 0.1 t",), "rank 2, score 0.100000001 under rank 2, score 0.5"),
    FaultCase("rank-order", "dev.trec", ("q2 Q0 bat 3 9.0 t",), "rank 3, score 9 under rank 2, score 0.5"),
    FaultCase("duplicate", "dev.trec", ("q2 Q0 cat 3 0.1 t",), "document 'cat' occurs twice in the list of 'q2'"),
    FaultCase("duplicate", "dev.trec", ("q1 Q0 owl 3 0.1 t",), "document 'owl' occurs twice in the list of 'q1'"),
    FaultCase("unknown-query", "dev.trec", ("q9 Q0 bat 1 0.1 t",), "query 'q9'"),
    FaultCase("unknown-document", "dev.trec", ("q2 Q0 yak 3 0.1 t",), "document 'yak' of query 'q2'"),
]


def write_files(folder, **more):
    """Write valid files with additional lines; return the flags that name them."""
    for name, lines in GOOD.items():
        all_lines = [line if isinstance(line, bytes) else line.encode() for line in (*lines, *more.get(name.replace(".", "_"), ()))]
        (folder / name).write_bytes(b"\n".join(all_lines) + b"\n")
    return [word for flag, name in FLAGS.items() for word in (flag, str(folder / name))]


def rows(result):
    """Location, kind, message and advice of each finding."""
    groups = json.loads(result.stdout)["findings"]
    return [[where, group["kind"], message, group["advice"]] for group in groups for where, message in group["lines"]]


def test_good_data_have_no_fault(tmp_path, moeir):
    result = moeir("check", *write_files(tmp_path))
    assert (result.code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"no fault found in {tmp_path}/corpus.jsonl, ")


@pytest.mark.parametrize("faulty", FAULT_CASES, ids=lambda faulty: f"{faulty.file}-{faulty.kind}")
def test_a_fault_is_found_and_named_with_its_line(faulty, tmp_path, moeir):
    flags = write_files(tmp_path, **{faulty.file.replace(".", "_"): faulty.lines})
    result = moeir("check", *flags, "--form", "json")
    assert result.code == (0 if faulty.note else 3), result.stderr
    line = len(GOOD[faulty.file]) + len(faulty.lines)
    matches = [row for row in rows(result) if row[:2] == [f"{tmp_path / faulty.file}:{line}", faulty.kind]]
    assert len(matches) == 1 and faulty.words in matches[0][2] and matches[0][3] == FAULT_KINDS[faulty.kind], result.stdout
    if not faulty.note:
        assert result.stderr.splitlines()[-1].startswith("error: ") and f"{faulty.kind} 1" in result.stderr


def test_a_positive_under_another_id_of_the_corpus_is_a_fault_of_the_example(tmp_path, moeir):
    twin = CORPUS[0].replace('"owl"', '"strix"')
    flags = write_files(tmp_path, corpus_jsonl=[twin], train_jsonl=[example(positive_ids=["strix"], negative_ids=["owl", "cat"])])
    result = moeir("check", *flags)
    assert result.code == 3 and "document 'owl' has the text of a positive of query 'q2'" in result.stdout


def test_examples_of_another_format_are_checked(tmp_path, moeir):
    rows = [
        {"query": "who sleeps", "pos": ["A cat."], "neg": ["a  CAT.", "An owl."]},
        {"query": "who hunts", "pos": ["An owl."], "neg": []},
    ]
    (tmp_path / "bge.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "dev.tsv").write_text("q1\twho hunts\n")
    result = moeir("check", "--train", tmp_path / "bge.jsonl", "--dev-queries", tmp_path / "dev.tsv")
    assert result.code == 3 and "positive-among-negatives, 1" in result.stdout and "leaked-query, 1" in result.stdout
    (tmp_path / "bge.jsonl").write_text('{"query": "who", "pos": 3}\n')
    assert "bge.jsonl:1: pos is not a list of strings" in moeir("check", "--train", tmp_path / "bge.jsonl").stdout
    (tmp_path / "dpr.json").write_text('[\n\n{"question": 3, "positive_ctxs": []}]\n')
    assert f"{tmp_path}/dpr.json:3: no question" in moeir("check", "--train", tmp_path / "dpr.json").stdout, "blank lines count"


def test_a_note_and_an_allowed_kind_are_no_fault(tmp_path, moeir):
    more = {"corpus_jsonl": ['{"_id": "x", "text": "who sleeps"}'], "queries_jsonl": ['{"_id": "q3", "text": "why"}']}
    flags = write_files(tmp_path, **more)
    assert moeir("check", *flags).code == 3
    result = moeir("check", *flags, "--allow", "query-in-corpus")
    assert result.code == 0 and "query-in-corpus, 1 (note)" in result.stdout
    for problem in ("1 of 3 queries have no judgement, such as 'q3'", "1 of 3 queries are not in the run, such as 'q3'"):
        assert problem in result.stdout
    wrong = moeir("check", *flags, "--allow", "query-in-corpse")
    assert wrong.code == 2 and "there is no such kind of fault; did you mean 'query-in-corpus'?" in wrong.stderr


def test_every_fault_is_counted_and_the_first_are_shown(tmp_path, moeir):
    flags = write_files(tmp_path, dev_qrels=[f"q1 0 yak{number} 1" for number in range(9)])
    assert len(rows(moeir("check", *flags, "--form", "json", "--most", 0))) == 9
    facts = json.loads(moeir("check", *flags, "--form", "json", "--most", 2).stdout)
    group = facts["findings"][0]
    assert (facts["faults"], group["kind"], group["count"], group["note"]) == (9, "unknown-document", 9, False)
    problem = "document 'yak{}' of query 'q1' is not in the corpus"
    assert group["lines"] == [[f"{tmp_path}/dev.qrels:{number + 3}", problem.format(number)] for number in (0, 1)]
    shown = moeir("check", *flags, "--most", 1).stdout.splitlines()
    assert shown[0].startswith(f"{tmp_path}/dev.qrels: unknown-document, 9: ") and shown[2] == "    and 8 more"


@pytest.mark.parametrize(
    ("dev", "leak"), [('{"_id": "x1", "text": "Who  SLEEPS"}', "text"), ('{"_id": "q2", "text": "other words"}', "id")]
)
def test_leaked_queries_are_those_of_the_same_id_or_text(dev, leak, tmp_path, moeir):
    (tmp_path / "dev.jsonl").write_text(dev + '\n{"_id": "x2", "text": "else"}\n')
    flags = write_files(tmp_path, train_jsonl=[example("q2")])
    result = moeir("check", *flags, "--dev-queries", tmp_path / "dev.jsonl", "--form", "json")
    message = f"query 'q2' is evaluated: its {leak} is among the dev queries"
    assert [row[:3] for row in rows(result)] == [[f"{tmp_path}/train.jsonl:2", "leaked-query", message]]


def test_other_forms_of_texts_are_checked_too(tmp_path, moeir):
    tsv = tmp_path / "collection.tsv"
    tsv.write_text("pid\ttext\n1\tone\n2\n1\ttwo\n3\tcafÃ©\n")
    result = moeir("check", "--corpus", tsv, "--form", "json")
    assert [row[:2] for row in rows(result)] == [[f"{tsv}:3", "faulty-line"], [f"{tsv}:4", "duplicate"], [f"{tsv}:5", "mojibake"]]
    array = tmp_path / "dev.json"
    array.write_text('[{"question": "who?", "answers": ["she"]},\n {"question": ""},\n {"question": "why"} oops]')
    findings = rows(moeir("check", "--queries", array, "--form", "json"))
    assert [row[:2] for row in findings] == [[f"{array}:2", "empty-text"], [f"{array}:3", "faulty-line"]]
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(CORPUS).encode())[:-9])
    assert rows(moeir("check", "--corpus", packed, "--form", "json"))[0][1] == "faulty-file"
    (tmp_path / "empty.jsonl").write_text("\n\n")
    assert rows(moeir("check", "--corpus", tmp_path / "empty.jsonl", "--form", "json"))[0][1] == "faulty-file"


def test_ids_that_no_writer_takes_are_faults(tmp_path, moeir):
    """A run of such an id could not be written, nor could its judgements."""
    flags = write_files(
        tmp_path,
        corpus_jsonl=['{"_id": "x\\u0007y", "text": "bell"}'],
        dev_qrels=["q1 0 ow\x07l 1", "q\x7f1 0 bat 1"],
        dev_trec=["q2 Q0 b\x07at 3 0.1 t", "q\x7f2 Q0 bat 1 0.1 t", "q3 Q0 bat 1 0.1 t\x9f"],
        train_jsonl=[example(negative_ids=["b\x07at"])],
    )
    found = [row[:2] for row in rows(moeir("check", *flags, "--form", "json")) if row[1] == "faulty-line"]
    assert found == [
        [f"{tmp_path / name}:{line}", "faulty-line"]
        for name, added in (("corpus.jsonl", 1), ("dev.qrels", 2), ("train.jsonl", 1), ("dev.trec", 3))
        for line in range(len(GOOD[name]) + 1, len(GOOD[name]) + 1 + added)
    ]


def test_every_text_of_a_record_is_checked_and_its_id_is_not(tmp_path, moeir):
    """Lucene's contents begin with the title, which is left out of the text."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "cafÃ©", "title": "Bar", "contents": "Bar a cafÃ©", "url": "cafÃ©.fr", "n": 1}\n', encoding="utf-8")
    found = rows(moeir("check", "--corpus", corpus, "--form", "json"))
    assert [row[1:3] for row in found] == [["mojibake", f"'{old}' should be '{new}'"] for old, new in (
        ("Bar a cafÃ©", "Bar a café"), ("cafÃ©.fr", "café.fr"),
    )]  # fmt: skip


def test_a_fault_of_a_row_of_several_lines_is_where_the_row_begins(tmp_path, moeir):
    table = tmp_path / "psgs.tsv"
    table.write_text('id\ttext\ttitle\n1\t"one\nowl"\tA\n1\t"two\nowls"\tB\n2\t"a ""cafÃ©""\nowl"\tC\n3\tfew\n', encoding="utf-8")
    result = moeir("check", "--corpus", table, "--form", "json")
    assert [row[:2] for row in rows(result)] == [[f"{table}:4", "duplicate"], [f"{table}:6", "mojibake"], [f"{table}:8", "faulty-line"]]


def test_memory_holds_ids_and_signs_and_not_the_texts(tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.records.lines.BLOCK_BYTES", 1 << 16)
    path, words = tmp_path / "corpus.jsonl", f"{'word' * 25} " * 20
    path.write_text("".join(f'{{"_id": "d{number}", "text": "{number} {words}"}}\n' for number in range(1500)))
    gc.collect()
    tracemalloc.start()
    seen_texts = files.SeenTexts()
    files.check_texts(FileFindings(Findings(), path), seen_texts)
    assert len(seen_texts.by_id) == 1500
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 3e6 and peak < 1.5e6


def test_ranks_may_begin_at_0_as_terrier_writes_them(moeir, tmp_path):
    (tmp_path / "run.trec").write_text("q Q0 a 0 3.5 t\nq Q0 b 1 2.5 t\n")
    assert moeir("check", "--run", tmp_path / "run.trec").code == 0


def test_a_query_without_text_is_a_fault_though_documents_may_have_none(moeir, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"_id": "a", "text": ""}\n{"_id": "b", "text": "owl"}\n')
    assert [moeir("check", flag, tmp_path / "texts.jsonl", "--keep-empty").code for flag in ("--queries", "--corpus")] == [3, 0]
