"""The stages that cut texts say so: how many, what share of the tokens, and what to do."""

import json
import re

import pytest

from moeir.errors import MoeirError
from moeir.representations import encodings

LINE = re.compile(r"([\d,]+) of ([\d,]+) (documents|queries) \(([\d.]+)%\) are cut at (\d+) tokens, about ([\d.]+)% of all tokens are lost")


def lines_of(result):
    """(cut, texts, kind, length, share of tokens) of each line about truncation."""
    assert result.code == 0, result.stderr
    found = [(LINE.findall(line), line) for line in result.stderr.splitlines() if "are cut at" in line]
    assert all("init or finetune, or cut the texts with convert --passages" in line for _, line in found)
    return [[(int(cut), int(texts), kind, int(length), float(share)) for cut, texts, kind, _, length, share in parts] for parts, _ in found]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """600 documents of 8 tokens with the special ones; every third has 14 instead."""
    path = tmp_path_factory.mktemp("texts") / "corpus.jsonl"
    texts = (" ".join(["owl"] * (12 if number % 3 == 0 else 6)) for number in range(600))
    path.write_text("".join(json.dumps({"_id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def checkpoint(tiny_model, tmp_path_factory):
    from tests.conftest import run_in_process

    output = tmp_path_factory.mktemp("models") / "dense"
    flags = ("--arch", "dense:pooling=mean", "--document-length", 10, "--query-length", 5)
    assert run_in_process("init", "--model", tiny_model, *flags, "--output", output).code == 0
    return output


EXPECTED = (200, 600, "documents", 10, 13.3)  # 200 · 4 of 200 · 14 + 400 · 8 tokens


def test_encode_says_what_it_cuts(checkpoint, corpus, tmp_path, moeir):
    assert lines_of(moeir("encode", "--model", checkpoint, "--corpus", corpus, "--output", tmp_path / "enc")) == [[EXPECTED]]
    shard = moeir("encode", "--model", checkpoint, "--corpus", corpus, "--shard", "1/3", "--output", tmp_path / "shards")
    [[(cut, texts, *_)]] = lines_of(shard)
    assert texts == 256 and 85 <= cut <= 86
    short = tmp_path / "short.jsonl"
    short.write_text('{"_id": "d", "text": "owl"}\n')
    assert lines_of(moeir("encode", "--model", checkpoint, "--corpus", short, "--output", tmp_path / "short")) == []


def test_an_interrupted_encoding_says_the_same(checkpoint, corpus, tmp_path, moeir, monkeypatch):
    monkeypatch.setattr(encodings, "FLUSH_SECONDS", 0)
    command = ("encode", "--model", checkpoint, "--corpus", corpus, "--output", tmp_path / "enc")
    add = encodings.ResumableEncodingWriter.add

    def add_two_windows(self, ids, *more):
        if self.text_count == 512:
            raise MoeirError("interrupted")
        add(self, ids, *more)

    with monkeypatch.context() as patch:
        patch.setattr(encodings.ResumableEncodingWriter, "add", add_two_windows)
        assert moeir(*command).code == 1
    assert lines_of(moeir(*command)) == [[EXPECTED]]


def test_finetune_says_it_also_of_tokens_in_a_cache(tiny_model, corpus, tmp_path, moeir):
    queries = (json.dumps({"_id": f"q{number}", "text": "owl " * 6}) + "\n" for number in range(0, 30))
    (tmp_path / "queries.jsonl").write_text("".join(queries))
    rows = ({"query_id": f"q{number}", "positive_ids": [f"d{number}"], "negative_ids": []} for number in range(0, 30))
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--arch", "dense", "--document-length", 10, "--query-length", 5, "--steps", 1, "--negatives", 0, "--cache", tmp_path / "cache")
    for name in ("first", "second"):
        sources = ("--train", tmp_path / "train.jsonl", "--corpus", corpus, "--queries", tmp_path / "queries.jsonl")
        result = moeir("finetune", "--model", tiny_model, *sources, *flags, "--output", tmp_path / name)
        assert lines_of(result) == [[(10, 30, "documents", 10, 13.3), (30, 30, "queries", 5, 37.5)]]


def test_rerank_and_search_say_it(checkpoint, corpus, tiny_model, tmp_path, moeir, monkeypatch):
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "owl owl owl owl owl owl"}\n{"_id": "r", "text": "owl"}\n')
    (tmp_path / "run.trec").write_text("q Q0 d0 1 2 x\nq Q0 d1 2 1 x\nr Q0 d1 1 1 x\n")
    texts = ("--queries", tmp_path / "queries.jsonl", "--corpus", corpus)
    result = moeir("rerank", "--model", checkpoint, "--run", tmp_path / "run.trec", *texts, "--output", tmp_path / "a.trec")
    assert lines_of(result) == [[(1, 2, "documents", 10, 18.2), (1, 2, "queries", 5, 27.3)]]
    flags = ("--arch", "cross-encoder", "--document-length", 14, "--query-length", 8)
    assert moeir("init", "--model", tiny_model, *flags, "--output", tmp_path / "ce").code == 0
    result = moeir("rerank", "--model", tmp_path / "ce", "--run", tmp_path / "run.trec", *texts, "--output", tmp_path / "b.trec")
    [[(cut, count, kind, length, _)]] = lines_of(result)
    assert (cut, count, kind, length) == (1, 2, "documents", 14)
    assert moeir("encode", "--model", checkpoint, "--corpus", corpus, "--output", tmp_path / "enc").code == 0
    assert moeir("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx").code == 0
    more = "".join(f'{{"_id": "s{number}", "text": "owl"}}\n' for number in range(18))
    (tmp_path / "more.jsonl").write_text((tmp_path / "queries.jsonl").read_text() + more)
    monkeypatch.setattr("moeir.stages.search.QUERIES_PER_BLOCK", 8)  # three blocks, after a warm-up with the first query
    search = ("search", "--index", tmp_path / "idx", "--queries", tmp_path / "more.jsonl", "--batch-size", 4)
    assert lines_of(moeir(*search, "--output", tmp_path / "runs")) == [[(1, 20, "queries", 5, 4.6)]]


@pytest.mark.parametrize(("words", "documents"), [(1, []), (20, [(1, 1, "documents", 14)])])
def test_a_long_query_leaves_documents_the_room_beside_its_own_length(words, documents, tiny_model, tmp_path, moeir):
    flags = ("--arch", "cross-encoder", "--document-length", 14, "--query-length", 8)
    assert moeir("init", "--model", tiny_model, *flags, "--output", tmp_path / "ce").code == 0
    (tmp_path / "q.jsonl").write_text(json.dumps({"_id": "q", "text": "owl " * 200}))
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "d", "text": "owl " * words}))
    (tmp_path / "run.trec").write_text("q Q0 d 1 2 x\n")
    sources = ("--run", tmp_path / "run.trec", "--queries", tmp_path / "q.jsonl", "--corpus", tmp_path / "c.jsonl")
    [counts] = lines_of(moeir("rerank", "--model", tmp_path / "ce", *sources, "--output", tmp_path / "out.trec"))
    assert [count[:4] for count in counts] == [*documents, (1, 1, "queries", 8)]
    assert all(share < 100 for *_, share in counts)


def test_pretrain_says_it_of_queries(tiny_model_with_head, corpus, tmp_path, moeir):
    lines = (json.dumps({"_id": f"d{number}", "queries": ["owl " * 6]}) + "\n" for number in range(0, 30))
    (tmp_path / "queries.jsonl").write_text("".join(lines))
    flags = ("--objective", "cotmae-qc", "--steps", 1, "--batch-size", 4, "--query-length", 5, "--document-length", 16)
    sources = ("--corpus", corpus, "--queries", tmp_path / "queries.jsonl")
    result = moeir("pretrain", "--model", tiny_model_with_head, *sources, *flags, "--output", tmp_path / "out")
    assert lines_of(result) == [[(30, 30, "queries", 5, 50.0)]]
