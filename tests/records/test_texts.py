import csv
import json
import sys
import typing
from collections import namedtuple
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import DataError, UsageError
from moeir.records import lines, texts
from moeir.records.texts import Text

TOY = [
    Text("007", "Owls hunt at night.", title="Owl", url="http://owl", answers=("mice", "voles")),
    Text("é", "Ein Wort\nund noch eins."),
]


@pytest.mark.parametrize("name", ["toy.jsonl", "toy.jsonl.gz", "toy.json.zst", "toy"])
def test_written_texts_are_read_again(tmp_path, name):
    texts.write_texts(TOY, tmp_path / name)
    assert list(texts.read_texts(tmp_path / name)) == TOY
    assert texts.read_texts_by_id(str(tmp_path / name)) == {text.id: text for text in TOY}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("beir.jsonl", '{"_id": "1", "title": "", "text": "owl", "metadata": {}}\n{"_id": "02", "title": null, "text": "bat"}\n'),
        ("anserini.json", '{"id": 1, "contents": "owl"}\n\n{"id": "02", "contents": "bat"}'),
        ("tevatron.jsonl", '{"docid": "1", "text": "owl"}\n{"query_id": "02", "query": "bat"}\n'),
        ("piped", ' {"qid": "1", "question": "owl"}\n{"pid": "02", "passage": "bat"}\n'),
        ("msmarco.tsv", "1\towl\n02\tbat\n"),
        ("unnamed", "1\towl\n02\tbat\n"),
        ("header.tsv", "text\tpid\n" + "owl\t1\nbat\t02\n"),
        ("wide.txt", "docid\ttitle\ttext\n1\t\towl\n02\t\tbat\n"),
    ],
)
def test_forms_of_the_field_read_alike(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert list(texts.read_texts(tmp_path / name)) == [Text("1", "owl"), Text("02", "bat")]


def test_an_empty_text_is_kept_on_request(tmp_path):
    (tmp_path / "a.tsv").write_text("1\t \n2\tx\n")
    assert [text.id for text in texts.read_texts(tmp_path / "a.tsv", keep_empty=True)] == ["1", "2"]


def test_a_field_of_every_record_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"_id": "q1", "text": "x", "relation": "P17"}\n{"_id": "q2", "text": "y", "relation": 7}\n')
    assert texts.read_field(tmp_path / "a.jsonl", "relation") == {"q1": "P17", "q2": "7"}
    (tmp_path / "a.jsonl").write_text('{"_id": "q1", "text": "x", "kind": "\\u001b[31mred"}\n')
    with pytest.raises(DataError, match=r"'kind' of 'q1' is not a printable string or a whole number: \"\\u001b\[31mred\"$"):
        texts.read_field(tmp_path / "a.jsonl", "kind")


Row, Question = namedtuple("Row", "doc_id wikitext"), namedtuple("Question", "query_id text answers")
Row.default_text = lambda row: row.wikitext
Article = namedtuple("Article", "doc_id title body")
Article.default_text = lambda row: f"{row.title} {row.body}"
ROWS = {  # of documents: the texts, of which title and default text are composed once
    Row("d1", "owl"): Text("d1", "owl"),
    Article("d2", "Owls", "Birds hunt."): Text("d2", "Birds hunt.", title="Owls"),
    Article("d3", None, "Birds hunt."): Text("d3", "Birds hunt."),
    Article("d4", "Owls", None): Text("d4", "", title="Owls"),
    Article("d5", "", "Birds hunt."): Text("d5", "Birds hunt."),
}


def serve_irds(monkeypatch, documents):
    """Put a stand-in for ir_datasets in its place, with the data set `toy`."""
    parts = {"docs_iter": lambda: iter(documents), "queries_iter": lambda: iter([Question("q1", "bat", ("x",))])}
    toy = {"toy": SimpleNamespace(**parts, has_docs=lambda: True, has_queries=lambda: True)}
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=toy.__getitem__))


def test_ir_datasets_are_sources(monkeypatch):
    serve_irds(monkeypatch, ROWS)
    assert list(texts.read_texts("irds:toy#docs", keep_empty=True)) == list(ROWS.values())
    assert list(texts.read_texts("irds:toy#queries")) == [Text("q1", "bat", answers=("x",))]
    for source, problem in (
        ("irds:toy", "irds:toy: expected #docs or #queries; write irds:toy#docs or irds:toy#queries"),
        ("irds:other#docs", "irds:other#docs: ir_datasets has no 'other'"),
        ("hf:", "hf:: expected the name of a data set behind it"),
    ):
        with pytest.raises(UsageError, match=problem):
            list(texts.read_texts(source))
    for name in (None, 12.0, "a b"):
        serve_irds(monkeypatch, [Row(name, "owl")])
        with pytest.raises(DataError, match="irds:toy#docs: row 1, column 'doc_id': id "):
            list(texts.read_texts("irds:toy#docs"))
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(UsageError, match=r"needs the package ir-datasets; pip install 'moeir\[irds\]'"):
        list(texts.read_texts("irds:toy#docs"))


def test_saved_datasets_are_sources(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"docid": 1, "text": "owl", "title": None}, {"docid": 2, "text": "bat", "title": None}])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "dev": rows.select([1])}).save_to_disk(str(tmp_path / "two"))
    assert [text.id for text in texts.read_texts(f"hf:{tmp_path}/one")] == ["1", "2"]
    assert [text.id for text in texts.read_texts(f"hf:{tmp_path}/two@dev")] == ["2"]
    with pytest.raises(UsageError, match=r"has the splits train, dev; name one: hf:.*two@train"):
        list(texts.read_texts(f"hf:{tmp_path}/two"))
    with pytest.raises(UsageError, match="has no split 'test'; it has train, dev"):
        list(texts.read_texts(f"hf:{tmp_path}/two@test"))
    with pytest.raises(UsageError, match=r"^hf:BeIR/scifact/corpus@corpus: cannot be loaded: .*BeIR/scifact") as caught:
        list(texts.read_texts("hf:BeIR/scifact/corpus@corpus"))
    assert "\n" not in str(caught.value)


TABLE = (  # as csv.writer writes them: quotation marks, tabs and line breaks in a text, a blank line among them
    ("1", 'The theme of the "Bond" films', "Theme"),
    ("2", "two\tcolumns\n\nand a\tline", ""),
    ("5", "one\nwith\ta tab", "T"),
    ("6", "a\ttable\nwith\tcolumns\n", "T"),
    ("3", 'a 12" record', '"Heroes"'),
    ("4", "Ein Wort.", "é"),
)


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_table_with_a_header_is_read_as_csv_reads_it(tmp_path, moeir, quoting):
    path = tmp_path / "psgs_w100.tsv.gz"
    with lines.open_writer(path) as output:
        csv.writer(output, delimiter="\t", lineterminator="\r\n", quoting=quoting).writerows([("id", "text", "title"), *TABLE])
    assert list(texts.read_texts(path)) == [Text(*row) for row in TABLE]
    assert moeir("convert", "--input", path, "--to", "texts", "--output", "-").stdout.count("\n") == len(TABLE)
    assert moeir("check", "--corpus", path).code == 0


def test_marks_within_a_column_and_files_without_a_header_stay_as_they_are(tmp_path):
    (tmp_path / "a.tsv").write_text('id\ttext\n1\tsay "yes" or 12"\n2\tan owl\n')
    assert [text.text for text in texts.read_texts(tmp_path / "a.tsv")] == ['say "yes" or 12"', "an owl"]
    (tmp_path / "b.tsv").write_text('1\t"Heroes" and "words\n2\t"all ""quoted"""\n')
    assert [text.text for text in texts.read_texts(tmp_path / "b.tsv")] == ['"Heroes" and "words', '"all ""quoted"""']


@pytest.mark.parametrize("line", ["cat\tmeow", "paid\tlate", "text\tAn owl.", "7\tpassage", "id\tFreud", "docno\tan id of TREC"])
def test_a_document_of_one_word_is_no_header(tmp_path, line):
    (tmp_path / "a.tsv").write_text(f"{line}\n2\tAn owl.\n")
    assert [text.id for text in texts.read_texts(tmp_path / "a.tsv")] == [line.split("\t")[0], "2"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": "a b", "text": "bat"}, ", column '_id': id with white space: 'a b'; expected one word, as in a run"),
        ({"_id": "b", "text": None}, ": text is not a string: null"),
        ({"_id": "owl", "text": "bat"}, ": duplicate id 'owl'; ids must be unique"),
        ({"_id": None, "text": "bat"}, ", column '_id': id is not a string: null"),
        ({"_id": 12.0, "text": "bat"}, ", column '_id': id is not a string: 12.0"),
    ],
)
def test_faulty_rows_of_a_table_are_refused_by_row_and_column(tmp_path, row, message):
    datasets = pytest.importorskip("datasets")
    rows = [{"_id": "owl", "text": "owl"}, row] if isinstance(row["_id"], str | None) else [row]  # a column has one type
    datasets.DatasetDict({"dev": datasets.Dataset.from_list(rows)}).save_to_disk(str(tmp_path / "table"))
    with pytest.raises(DataError) as caught:
        list(texts.read_texts(f"hf:{tmp_path}/table"))
    assert str(caught.value).startswith(f"hf:{tmp_path}/table@dev: row {len(rows)}{message}")


@pytest.mark.parametrize(("name", "separator"), [("train.csv", ","), ("train.tsv", "\t"), ("train.jsonl", "")])
def test_data_files_of_a_folder_are_read_as_they_are_written(tmp_path, monkeypatch, name, separator):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    rows = [["_id", "title", "text"], ["007", "", "NA"], ["1.0", "null", "3"]]
    content = [separator.join(row) if separator else json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[not separator :]]
    (tmp_path / "files" / name).write_text("".join(f"{line}\n" for line in content))
    assert list(texts.read_texts(f"hf:{tmp_path}/files")) == [Text("007", "NA"), Text("1.0", "3", title="null")]


def example_of(hint, name):
    """A value of a field of ir_datasets."""
    if hint is bytes:
        return f"<html><title>{name}</title><body>{name} body</body></html>".encode()
    if typing.get_origin(hint) in (tuple, list):
        inner = typing.get_args(hint)[0]
        return (example_of(inner, name),)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return hint(**{field: example_of(kind, f"{name} {field}") for field, kind in typing.get_type_hints(hint).items()})
    return 3 if hint in (int, float) else {} if hint is dict or typing.get_origin(hint) is dict else f"the {name}"


def test_every_class_of_ir_datasets_is_read_as_its_default_text(monkeypatch):
    ir_datasets = pytest.importorskip("ir_datasets")
    classes = {}
    for name in list(ir_datasets.registry):
        dataset = ir_datasets.load(name)
        classes |= {(part, getattr(dataset, f"{part}_cls")()): name for part in ("docs", "queries") if getattr(dataset, f"has_{part}")()}
    checked = 0
    for part, kind in classes:
        hints = typing.get_type_hints(kind)
        values = {field: example_of(hints[field], field) for field in kind._fields} | {kind._fields[0]: "owl"}
        row = kind(**values)
        if not hasattr(row, "default_text"):
            continue
        try:
            default = row.default_text()
        except (AttributeError, TypeError, KeyError):  # of a class whose hints are not what it holds
            continue
        stub = SimpleNamespace(**{f"{part}_iter": lambda row=row: iter([row]), f"has_{part}": lambda: True})
        monkeypatch.setattr(ir_datasets, "load", lambda name, stub=stub: stub)
        (text,) = texts.read_texts(f"irds:any#{part}", keep_empty=True)
        assert text.content == default.strip(), kind
        checked += 1
    assert checked > 80


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ('{"id": "d", "title": "Owl", "contents": "Owl\\nOwls hunt."}', Text("d", "Owls hunt.", title="Owl")),
        ('{"id": "d", "title": "Owl", "contents": "Owl hunts."}', Text("d", "hunts.", title="Owl")),
        ('{"id": "d", "title": "Owl", "contents": "Owl"}', Text("d", "", title="Owl")),
        ('{"id": "d", "title": "Owl", "contents": "Owls hunt."}', Text("d", "Owls hunt.", title="Owl")),
        ('{"id": "d", "title": "Owl", "text": "Owl hunts."}', Text("d", "Owl hunts.", title="Owl")),
    ],
)
def test_a_title_that_begins_lucenes_contents_is_not_doubled(tmp_path, record, text):
    (tmp_path / "a.jsonl").write_text(record)
    assert list(texts.read_texts(tmp_path / "a.jsonl")) == [text]


ANY = st.one_of(st.text(st.characters(codec=None), max_size=6), st.integers(), st.none(), st.floats(), st.booleans(), st.binary(max_size=2))


@given(st.lists(st.builds(Text, ANY, ANY, ANY, url=ANY), max_size=3))
def test_what_the_writer_accepts_the_reader_reads_back(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    try:
        texts.write_texts(written, path)
    except DataError:
        assert not path.exists()
    else:
        expected = [Text(str(text.id), text.text, text.title or "", text.url or "") for text in written]
        assert list(texts.read_texts(path, keep_empty=True)) == expected
