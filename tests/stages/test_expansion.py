"""docT5query: BM25 over documents with their generated queries appended."""

import json
from pathlib import Path

import pytest

from tests.split_encodings import read_files


@pytest.fixture(autouse=True)
def room(work_folder):
    """Queries for two of the toy documents, and a query with words that occur only in them."""
    written = {"owl": ["which raptor is nocturnal", "strigiformes"], "bat": ["echolocation strigiformes"]}
    lines = [json.dumps({"_id": document, "queries": queries}) + "\n" for document, queries in written.items()]
    Path("generated.jsonl").write_text("".join(lines))
    Path("other.jsonl").write_text('{"_id": "yak", "queries": ["hairy cattle"]}\n')
    Path("queries.tsv").write_text("q1\tstrigiformes\nq2\tmoths\n")


@pytest.fixture
def search(run):
    """`search(index)`: the pairs of query and document."""
    return lambda index: [tuple(line.split()[0:3:2]) for line in run(f"search --index {index} --queries queries.tsv").stdout.splitlines()]


INDEX = "index --engine bm25 --corpus toy/corpus.jsonl"


def test_a_word_of_the_queries_alone_finds_their_document(run, search):
    run(f"{INDEX} --output plain")
    assert search("plain") == [("q2", "bat")]
    logged = run(f"{INDEX} --expansion generated.jsonl --output new").stderr
    assert "10 of 12 documents have no queries in generated.jsonl; they are indexed as they are" in logged
    assert sorted(search("new")) == [("q1", "bat"), ("q1", "owl"), ("q2", "bat")]
    assert Path("new/ids.txt").read_bytes() == Path("plain/ids.txt").read_bytes()
    with open("generated.jsonl", "a") as file:
        file.write(Path("other.jsonl").read_text())
    logged = run(f"{INDEX} --expansion generated.jsonl --output more").stderr
    assert "generated.jsonl: 1 documents are not in the corpus; their queries are left out" in logged


def test_an_expanded_index_is_that_of_the_expanded_texts(run):
    added = {"owl": "which raptor is nocturnal strigiformes", "bat": "echolocation strigiformes"}
    records = [json.loads(line) for line in Path("toy/corpus.jsonl").read_text().splitlines()]
    longer = [{**record, "text": f"{record['text']} {added.get(record['_id'], '')}".strip()} for record in records]
    Path("longer.jsonl").write_text("".join(json.dumps(record) + "\n" for record in longer))
    run(f"{INDEX} --expansion generated.jsonl --output new")
    run("index --engine bm25 --corpus longer.jsonl --output of-longer")
    assert read_files(Path("new/bm25")) == read_files(Path("of-longer/bm25"))


@pytest.mark.parametrize(("command", "code", "words"), [
    (f"{INDEX} --expansion other.jsonl", 3, "other.jsonl: has queries for none of the 12 documents; do the ids agree?"),
    (f"{INDEX} --expansion toy/corpus.jsonl", 3, "corpus.jsonl:1: expected _id, and queries as a list"),
    ("index --encodings enc --expansion generated.jsonl", 2, "error: --expansion needs --corpus"),
])  # fmt: skip
def test_an_expansion_that_cannot_be_is_one_line(refuse, command, code, words):
    refuse(code, words, f"{command} --output new")
    assert not list(Path().glob("new*"))
