"""Formats that `convert` detects, conversions it refuses, and the losses it reports."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeir import variants
from moeir.errors import DataError, UsageError
from moeir.formats.base import Conversion, Format
from moeir.formats.detection import detect_format
from moeir.records.examples import Example
from moeir.records.texts import Text
from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
FULL_EXAMPLE = Example(
    "q1",
    ("owl", "cat"),
    ("bat",),
    ([{"run": "bm25", "rank": 3, "score": 1.5}],),
    Text("q1", "who hunts mice", answers=("an owl",)),
    (Text("owl", "An owl hunts.", "Owl", "owl.org"), Text("cat", "A cat waits.", "Cat"), Text("bat", "A bat flies.", "Bat")),
    (2.0, 1.5),
    (0.25,),
)

HEADS = [  # format or problem, file, first lines
    ("run", "x", "q1 Q0 d1 1 2.5 bm25"),
    ("qrels", "x", "q1\t0\td1\t1"),
    ("beir-qrels", "x.tsv", "query-id\tcorpus-id\tscore"),
    ("tsv", "x.tsv", "1\tAn owl."),
    ("beir-qrels", "x.tsv", "1\td1\t2\n1\td2\t0"),
    ("dpr", "x.json", '[{"question": "who?", "positive_ctxs": []}]'),
    ("flagembedding", "x.json", '[\n {\n  "query": "who?",\n  "pos": [' + ",\n".join(['"x"'] * 99) + "]\n }\n]"),
    ("texts", "x.json", '[{"id": 1, "text": "An owl."}]'),
    ("texts", "x.jsonl", '{"_id": "a", "text": "An owl."}'),
    ("tevatron-texts", "x.jsonl", '{"docid": "a", "text": "An owl."}'),
    ("examples", "x.jsonl", '{"query_id": "a", "positive_ids": ["b"], "negative_ids": []}'),
    ("tevatron", "x.jsonl", '{"query_id": "a", "query": "who?", "positive_passages": [], "negative_passages": []}'),
    ("tevatron-ids", "x.jsonl", '{"query_id": "a", "query_text": "who?", "positive_document_ids": []}'),
    ("flagembedding", "x.jsonl", '{"query": "a", "pos": [], "neg": []}'),
    ("triplets", "x.csv", "anchor,positive,negative"),
    ("triplets", "x.tsv", "anchor\tpositive\tnegative_1\tnegative_2"),
    ("pairs", "x.jsonl", '{"anchor": "a", "positive": "b"}'),
    ("labelled", "x.csv", "sentence1,sentence2,label"),
    ("qrels", "x.tsv", "7\t0\t1\t25"),
    ("format not recognised", "x.json", '{"q1": {"d1": 1}}'),
    ("tsv", "x.tsv", 'id\ttext\ttitle\n1\t"The ""Bond"" films"\tTheme'),
    ("format not recognised", "x.tsv", "one\ttwo\tthree"),
    ("format not recognised", "x.jsonl", '{"words": "a"}'),
    ("format not recognised", "x.txt", "words"),
    ("format not recognised: columns between commas: write them between tabs", "x.csv", "id,text"),
    *(("qrels", "x.txt", head) for head in ("# a comment\nq1 0 d1 1", "qid 0 docid label\nq1 0 d1 1")),
    ("beir-qrels", "x.txt", "qid\tdocid\trelevance\nq1\td1\t1"),
]


@pytest.mark.parametrize(("name", "file", "head"), HEADS)
def test_a_format_is_known_where_it_is_sure_and_asked_for_elsewhere(name: str, file: str, head: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(f"{head}\n")
    if not name.startswith("format"):
        assert detect_format(tmp_path / file) == name
    else:
        with pytest.raises(UsageError, match=name):
            detect_format(tmp_path / file)
    with pytest.raises(UsageError, match="format not recognised"):
        detect_format(tmp_path)


def write_example(spec: str, example: Example, folder: Path, *, lossy: bool = False) -> Conversion:
    conversion = Conversion("examples", spec, lossy=lossy)
    format_: Format = variants.bind_variant("formats", spec)()
    path = folder / "out"
    if format_.is_folder:
        path.mkdir(exist_ok=True)
    format_.write(iter([example]), path, conversion)
    return conversion


TEXTS_ONLY = ["field 'negative_provenance'", "field 'answers'", "ids", "the title as a field of its own", "field 'url'"]
LOSSES = {
    "examples": [],
    "tevatron": [],
    "dpr": [],
    "tevatron-ids": ["the text of passages (name the corpus that has them, as they are here, with --corpus)"],
    "flagembedding": TEXTS_ONLY,
    "triplets": ["a teacher's scores", *TEXTS_ONLY],
    "pairs": ["a teacher's scores", *TEXTS_ONLY, "negatives"],
    "colbert": ["field 'negative_provenance'", "field 'url'", "field 'answers'", "ids"],
}


@pytest.mark.parametrize("spec", LOSSES)
def test_what_has_no_place_is_refused_by_name_or_counted(spec: str, tmp_path: Path) -> None:
    assert sorted(write_example(spec, FULL_EXAMPLE, tmp_path, lossy=True).dropped_counts) == sorted(LOSSES[spec])
    assert LOSSES[spec] or read_examples(spec, tmp_path / "out") == [FULL_EXAMPLE]
    if LOSSES[spec]:
        with pytest.raises(UsageError) as error:
            write_example(spec, FULL_EXAMPLE, tmp_path)
        assert str(error.value) == f"query 'q1': {LOSSES[spec][0]} would be lost from examples to {spec}; --lossy leaves it out"


def read_examples(spec: str, path: Path, **more: Any) -> list[Example]:
    format_: Format = variants.bind_variant("formats", spec)()
    return list(format_.read(path, Conversion(spec, "examples", **more)))


def test_files_look_as_their_readers_want_them(tmp_path: Path) -> None:
    write_example("dpr", FULL_EXAMPLE, tmp_path, lossy=True)
    assert json.loads((tmp_path / "out").read_text()) == [
        {
            "question_id": "q1",
            "question": "who hunts mice",
            "answers": ["an owl"],
            "positive_ctxs": [
                {"title": "Owl", "text": "An owl hunts.", "passage_id": "owl", "url": "owl.org"},
                {"title": "Cat", "text": "A cat waits.", "passage_id": "cat"},
            ],
            "negative_ctxs": [],
            "hard_negative_ctxs": [{"title": "Bat", "text": "A bat flies.", "passage_id": "bat"}],
            "positive_scores": [2.0, 1.5],
            "negative_scores": [0.25],
            "negative_provenance": [[{"run": "bm25", "rank": 3, "score": 1.5}]],
        }
    ]
    write_example("tevatron", FULL_EXAMPLE, tmp_path, lossy=True)
    record = json.loads((tmp_path / "out").read_text())
    assert record["negative_passages"] == [{"docid": "bat", "title": "Bat", "text": "A bat flies.", "score": 0.25}]
    write_example("flagembedding", FULL_EXAMPLE, tmp_path, lossy=True)
    assert json.loads((tmp_path / "out").read_text()) == {
        "query": "who hunts mice",
        "pos": ["Owl An owl hunts.", "Cat A cat waits."],
        "neg": ["Bat A bat flies."],
        "pos_scores": [2.0, 1.5],
        "neg_scores": [0.25],
    }


def test_colbert_numbers_its_texts_and_keeps_scores(tmp_path: Path) -> None:
    write_example("colbert", FULL_EXAMPLE, tmp_path, lossy=True)
    files = {file.name: file.read_text() for file in (tmp_path / "out").iterdir()}
    assert files == {
        "triples.jsonl": "[0, [0, 2.0], [1, 0.25]]\n[0, [2, 1.5], [1, 0.25]]\n",
        "collection.tsv": "0\tAn owl hunts.\tOwl\n1\tA bat flies.\tBat\n2\tA cat waits.\tCat\n",
        "queries.tsv": "0\twho hunts mice\n",
    }
    (example,) = read_examples("colbert", tmp_path / "out")
    assert (example.positive_ids, example.negative_ids, example.teacher_scores) == (("0", "2"), ("1",), {"0": 2.0, "2": 1.5, "1": 0.25})
    assert [passage.content for passage in example.passages] == ["Owl An owl hunts.", "Cat A cat waits.", "Bat A bat flies."]
    write_example("colbert", example, tmp_path)
    assert read_examples("colbert", tmp_path / "out") == [example]
    for line, words in (("[0, 7, 1]", "7 is not in collection.tsv"), ("[9, 0]", "9 is not in queries.tsv"), ("[0, [1, 2], 2]", "a score")):
        (tmp_path / "out" / "triples.jsonl").write_text(f"{line}\n")
        with pytest.raises(DataError, match=f"triples.jsonl:1: .*{words}"):
            read_examples("colbert", tmp_path / "out")


@pytest.mark.parametrize("spec", ["texts", "tevatron-texts"])
def test_texts_keep_their_fields(spec: str, tmp_path: Path, moeir: Moeir) -> None:
    (tmp_path / "x.jsonl").write_text('{"_id": "a", "text": "An owl.", "qtype": "who", "url": "u", "answers": ["b"]}\n')
    record = json.loads(moeir("convert", "--input", tmp_path / "x.jsonl", "--to", spec).stdout)
    assert (record["qtype"], record["url"], record["answers"]) == ("who", "u", ["b"])


@pytest.mark.parametrize(("record", "to", "field"), [
    ({"_id": "a", "text": "short", "contents": "long"}, "tsv", "contents"),
    ({"_id": "a", "text": "short", "contents": "long"}, "texts", "contents"),
    ({"_id": "a", "docid": "b", "text": "owl"}, "tevatron-texts", "docid"),
    ({"anchor": "who", "positive": "owl", "query": "what"}, "flagembedding", "query"),
    ({"anchor": "who", "positive": "owl", "answer": "bat"}, "flagembedding", "answer"),
    ({"query": "who", "passage": "owl", "label": 1, "score": 0.5}, "flagembedding", "score"),
    ({"query_id": "1", "query": "who", "query_text": "what", "positive_passages": [{"docid": "a", "text": "owl"}], "negative_passages": []},
     "tevatron", "query_text"),
    ({"query_id": "1", "query": "who", "positive_passages": [{"docid": "a", "text": "owl", "body": "bat"}], "negative_passages": []},
     "tevatron", "body"),
])  # fmt: skip
def test_a_second_name_for_what_is_read_is_lost_unless_it_says_the_same(
    record: dict[str, Any], to: str, field: str, tmp_path: Path, moeir: Moeir
) -> None:
    passages = record.get("positive_passages", [{}])
    holder, named = (passages[0], {"body": "text"}) if field in passages[0] else (record, {})
    source = {"contents": "text", "docid": "_id", "query": "anchor", "answer": "positive", "score": "label", "query_text": "query"} | named
    for value, code in ((holder[field], 2), (holder[source[field]], 0)):
        holder[field] = value
        (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
        result = moeir("convert", "--input", tmp_path / "x.jsonl", "--to", to, "--output", tmp_path / f"{code}.jsonl")
        assert result.code == code and (f"field '{field}' would be lost" in result.stderr) == (code == 2), result.stderr


def test_fields_that_nobody_reads_are_refused(tmp_path: Path, moeir: Moeir) -> None:
    (tmp_path / "x.jsonl").write_text('{"_id": "a", "text": "An owl.", "metadata": {}, "qtype": "who"}\n')
    result = moeir("convert", "--input", tmp_path / "x.jsonl", "--to", "tsv")
    assert result.code == 2 and "text 'a': field 'qtype' would be lost from texts to tsv" in result.stderr
    result = moeir("convert", "--input", tmp_path / "x.jsonl", "--to", "tsv", "--lossy")
    assert result == (0, "a\tAn owl.\n", f"{tmp_path}/x.jsonl: lost, 1 times: field 'qtype'\n")
    passage = {"docid": "a", "text": "An owl.", "lang": "en"}
    record = {"query_id": "q", "query": "who", "note": "mine", "positive_passages": [passage], "negative_passages": []}
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    result = moeir("convert", "--input", tmp_path / "x.jsonl", "--to", "dpr")
    assert result.code == 2 and "x.jsonl:1: field 'note' would be lost from tevatron to dpr" in result.stderr
    result = moeir("convert", "--input", tmp_path / "x.jsonl", "--to", "dpr", "--lossy", "--output", tmp_path / "dpr.json")
    assert [f"lost, 1 times: field {name!r}" in result.stderr for name in ("note", "lang")] == [True, True]


ROWS = [  # format of a file that ends with .tsv, its content, and a part of the one line about it
    ("triplets", 'anchor\tpositive\nwho\t"Yes\nwhat\tan owl\n', ':2: a column begins with " and is not closed before line 3'),
    ("triplets", "anchor\tpassages\nq\tp\n", "no text column positive or answer or pos or passage or sentence2 among anchor, passages"),
    ("triplets", "anchor\tpositive\tnegative\nq\tp\n", ":2: 3 columns expected (anchor, positive, negative), found 2"),
    ("pairs", "anchor\tpositive\na\rb\tc\n", ":2: not a table: "),
    ("flagembedding", '{"query": "q", "pos": "p"}\n', ":1: pos is not a list of strings"),
    ("dpr", "{}", ":1: no query_id"),
]


@pytest.mark.parametrize(("spec", "content", "words"), ROWS)
def test_a_faulty_line_is_named(spec: str, content: str, words: str, tmp_path: Path, moeir: Moeir) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(content.encode())
    result = moeir("convert", "--input", path, "--from", spec, "--to", "examples")
    assert result.code == 3 and f"{path}" in result.stderr and words in result.stderr and result.stderr.count("\n") == 1, result


def test_a_long_field_of_a_table_is_read(tmp_path: Path, moeir: Moeir) -> None:
    (tmp_path / "long.csv").write_text(f"anchor,positive\n{'w ' * 100_000},c\n")
    assert moeir("convert", "--input", tmp_path / "long.csv", "--from", "pairs", "--to", "examples").code == 0


def test_a_pipe_is_read_and_written(moeir: Moeir) -> None:
    result = moeir("convert", "--input", "-", "--from", "tsv", "--to", "texts", stdin="1\tAn owl.\n")
    assert result == (0, '{"_id": "1", "title": "", "text": "An owl."}\n', "")


def write_msmarco(folder: Path) -> None:
    (folder / "collection.tsv").write_text("d1\tAn owl.\n")
    (folder / "queries.train.tsv").write_text("q1\twho hunts\nq2\twho sleeps\n")
    (folder / "queries.dev.tsv").write_text("q2\twho sleeps\n")
    (folder / "qrels.dev.tsv").write_text("q2\t0\td1\t1\n")


def test_a_query_of_two_splits_has_one_text(tmp_path: Path, moeir: Moeir) -> None:
    flags = ("convert", "--input", tmp_path / "in", "--from", "msmarco", "--to", "beir", "--output")
    (tmp_path / "in").mkdir()
    write_msmarco(tmp_path / "in")
    assert moeir(*flags, tmp_path / "out").code == 0
    assert (tmp_path / "out" / "queries.jsonl").read_text().count("\n") == 2
    (tmp_path / "in" / "queries.dev.tsv").write_text("q2\twho flies\n")
    result = moeir(*flags, tmp_path / "other")
    assert result.code == 3 and "queries.train.tsv: 'q2' has another text in an earlier file" in result.stderr
    write_msmarco(tmp_path / "in")
    (tmp_path / "in" / "queries.dev.tsv.gz").write_bytes(gzip.compress(b"q2\twho sleeps\n"))
    result = moeir(*flags, tmp_path / "other")
    assert result.code == 3 and "queries.dev.tsv: beside it stands queries.dev.tsv.gz, and either could be meant" in result.stderr


def test_a_folder_of_two_layouts_is_asked_for(tmp_path: Path, moeir: Moeir) -> None:
    write_msmarco(tmp_path)
    (tmp_path / "queries.tsv").write_text("q2\twho sleeps\n")
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "x"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "x"}\n')
    result = moeir("convert", "--input", tmp_path, "--split", "dev=0.5", "--output", tmp_path.with_name(f"{tmp_path.name}-out"))
    assert result.code == 2 and "may be beir or msmarco; say which with --from" in result.stderr


def test_a_carriage_return_within_a_line_is_no_bug(tmp_path: Path, moeir: Moeir) -> None:
    (tmp_path / "old.txt").write_bytes(b"q1 0 d1 1\rq2 0 d3 1\r")
    assert moeir("convert", "--input", tmp_path / "old.txt", "--to", "qrels", "--output", "-").code == 2
