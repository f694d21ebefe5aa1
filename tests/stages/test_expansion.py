"""docT5query: BM25 over documents with their generated queries appended."""

import json

import pytest


@pytest.fixture
def room(toy, tmp_path, monkeypatch):
    """The toy corpus, queries for two of its documents, and a query with words that occur only in them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").symlink_to(toy / "corpus.jsonl")
    written = {"owl": ["which raptor is nocturnal", "strigiformes"], "bat": ["echolocation strigiformes"]}
    lines = [json.dumps({"_id": document, "queries": queries}) + "\n" for document, queries in written.items()]
    (tmp_path / "generated.jsonl").write_text("".join(lines))
    (tmp_path / "queries.tsv").write_text("q1\tstrigiformes\nq2\tmoths\n")
    return tmp_path


def index(moeir, *flags, output="idx"):
    return moeir("index", "--corpus", "corpus.jsonl", "--engine", "bm25", *flags, "--output", output)


def search_hits(moeir, index_folder):
    result = moeir("search", "--index", index_folder, "--queries", "queries.tsv", "--output", "-")
    assert result.code == 0, result.stderr
    return [tuple(line.split()[0:3:2]) for line in result.stdout.splitlines()]


def test_a_word_of_the_queries_alone_finds_their_document(room, moeir):
    assert index(moeir, output="plain").code == 0
    assert search_hits(moeir, "plain") == [("q2", "bat")]
    result = index(moeir, "--expansion", "generated.jsonl")
    assert result.code == 0
    assert "10 of 12 documents have no queries in generated.jsonl; they are indexed as they are" in result.stderr
    assert sorted(search_hits(moeir, "idx")) == [("q1", "bat"), ("q1", "owl"), ("q2", "bat")]
    assert (room / "idx/ids.txt").read_bytes() == (room / "plain/ids.txt").read_bytes()
    with open("generated.jsonl", "a") as file:
        file.write('{"_id": "yak", "queries": ["hairy cattle"]}\n')
    result = index(moeir, "--expansion", "generated.jsonl", output="more")
    assert result.code == 0 and "generated.jsonl: 1 documents are not in the corpus; their queries are left out" in result.stderr


def test_an_expanded_index_is_that_of_the_expanded_texts(room, moeir):
    added = {"owl": "which raptor is nocturnal strigiformes", "bat": "echolocation strigiformes"}
    records = [json.loads(line) for line in (room / "corpus.jsonl").read_text().splitlines()]
    longer = [{**record, "text": f"{record['text']} {added.get(record['_id'], '')}".strip()} for record in records]
    (room / "longer.jsonl").write_text("".join(json.dumps(record) + "\n" for record in longer))
    assert index(moeir, "--expansion", "generated.jsonl").code == 0
    assert moeir("index", "--corpus", "longer.jsonl", "--engine", "bm25", "--output", "said").code == 0
    for file in sorted((room / "said/bm25").iterdir()):
        assert file.read_bytes() == (room / "idx/bm25" / file.name).read_bytes()


def test_an_expansion_that_cannot_be_is_one_line(room, moeir, encodings):
    (room / "other.jsonl").write_text('{"_id": "yak", "queries": ["hairy cattle"]}\n')
    texts = ("--corpus", "corpus.jsonl", "--engine", "bm25")
    for flags, code, words in (
        ((*texts, "--expansion", "other.jsonl"), 3, "other.jsonl: has queries for none of the 12 documents; do the ids agree?"),
        ((*texts, "--expansion", "corpus.jsonl"), 3, "corpus.jsonl:1: expected _id, and queries as a list"),
        (("--encodings", encodings, "--expansion", "generated.jsonl"), 2, "error: --expansion needs --corpus"),
    ):
        result = moeir("index", *flags, "--output", "idx")
        assert (result.code, result.stderr.count("error: ")) == (code, 1) and words in result.stderr.splitlines()[-1]
        assert not list(room.glob("idx*"))
