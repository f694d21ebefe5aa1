"""The stages that cut texts say so: how many, what share of the tokens, and what to do."""

import json
import re
from pathlib import Path

import pytest

from moeir.errors import MoeirError
from moeir.representations import encodings
from tests.conftest import run_moeir

LINE = re.compile(r"([\d,]+) of ([\d,]+) (documents|queries) \(([\d.]+)%\) are cut at (\d+) tokens, about ([\d.]+)% of all tokens are lost")


@pytest.fixture
def cuts(run):
    """`cuts(command)`: (cut, texts, kind, length, share of tokens) of each line about truncation."""

    def read_cuts(command):
        lines = [line for line in run(command).stderr.splitlines() if "are cut at" in line]
        assert all("init or finetune, or cut the texts with convert --passages" in line for line in lines)
        return [
            [(int(cut), int(texts), kind, int(length), float(share)) for cut, texts, kind, _, length, share in LINE.findall(line)]
            for line in lines
        ]

    return read_cuts


@pytest.fixture(scope="module")
def models(tiny_model, tmp_path_factory):
    """`dense`, which reads documents of 10 tokens and queries of 5, and `ce`, of 14 and 8."""
    folder = tmp_path_factory.mktemp("models")
    for name, arch, document, query in (("dense", "dense:pooling=mean", 10, 5), ("ce", "cross-encoder", 14, 8)):
        lengths = ("--document-length", document, "--query-length", query)
        run_moeir("init", "--model", tiny_model, "--arch", arch, *lengths, "--output", folder / name)
    return folder


@pytest.fixture(autouse=True)
def room(work_folder, models):
    """Links to the models, and 600 documents of 8 tokens with the special ones; every third has 14 instead."""
    for path in models.iterdir():
        Path(path.name).symlink_to(path)
    write_texts("corpus.jsonl", {f"d{number}": "owl " * (12 if number % 3 == 0 else 6) for number in range(600)})


def write_texts(name, texts):
    Path(name).write_text("".join(json.dumps({"_id": one, "text": text}) + "\n" for one, text in texts.items()))


ENCODE = "encode --model dense --corpus corpus.jsonl --output"
EXPECTED = (200, 600, "documents", 10, 13.3)  # 200 · 4 of 200 · 14 + 400 · 8 tokens


def test_encode_says_what_it_cuts(cuts):
    assert cuts(f"{ENCODE} enc-all") == [[EXPECTED]]
    [[(cut, texts, *_)]] = cuts(f"{ENCODE} shards --shard 1/3")
    assert texts == 256 and 85 <= cut <= 86
    write_texts("short.jsonl", {"d": "owl"})
    assert cuts("encode --model dense --corpus short.jsonl --output short") == []


def test_an_interrupted_encoding_says_the_same(cuts, moeir, monkeypatch):
    monkeypatch.setattr(encodings, "FLUSH_SECONDS", 0)
    add = encodings.ResumableEncodingWriter.add

    def add_two_windows(self, ids, *more):
        if self.text_count == 512:
            raise MoeirError("interrupted")
        add(self, ids, *more)

    with monkeypatch.context() as patch:
        patch.setattr(encodings.ResumableEncodingWriter, "add", add_two_windows)
        assert moeir(*ENCODE.split(), "enc-all").code == 1
    assert cuts(f"{ENCODE} enc-all") == [[EXPECTED]]


def test_finetune_says_it_also_of_tokens_in_a_cache(cuts):
    write_texts("queries.jsonl", {f"q{number}": "owl " * 6 for number in range(30)})
    rows = ({"query_id": f"q{number}", "positive_ids": [f"d{number}"], "negative_ids": []} for number in range(30))
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = "--arch dense --document-length 10 --query-length 5 --steps 1 --negatives 0 --cache cache"
    sources = "--train train.jsonl --corpus corpus.jsonl --queries queries.jsonl"
    for name in ("first", "second"):
        result = cuts(f"finetune --model tiny {sources} {flags} --output {name}")
        assert result == [[(10, 30, "documents", 10, 13.3), (30, 30, "queries", 5, 37.5)]]


def test_rerank_and_search_say_it(cuts, run, monkeypatch):
    queries = {"q": "owl owl owl owl owl owl", "r": "owl"}
    write_texts("queries.jsonl", queries)
    Path("run.trec").write_text("q Q0 d0 1 2 x\nq Q0 d1 2 1 x\nr Q0 d1 1 1 x\n")
    rerank = "rerank --run run.trec --queries queries.jsonl --corpus corpus.jsonl --model"
    assert cuts(f"{rerank} dense") == [[(1, 2, "documents", 10, 18.2), (1, 2, "queries", 5, 27.3)]]
    [[(*counts, _)]] = cuts(f"{rerank} ce")
    assert counts == [1, 2, "documents", 14]
    run(f"{ENCODE} enc-all")
    run("index --encodings enc-all --output all")
    write_texts("more.jsonl", queries | {f"s{number}": "owl" for number in range(18)})
    monkeypatch.setattr("moeir.stages.search.QUERIES_PER_BLOCK", 8)  # three blocks, after a warm-up with the first query
    assert cuts("search --index all --queries more.jsonl --batch-size 4 --output runs") == [[(1, 20, "queries", 5, 4.6)]]


@pytest.mark.parametrize(("words", "documents"), [(1, []), (20, [(1, 1, "documents", 14)])])
def test_a_long_query_leaves_documents_the_room_beside_its_own_length(words, documents, cuts):
    write_texts("q.jsonl", {"q": "owl " * 200})
    write_texts("c.jsonl", {"d": "owl " * words})
    Path("run.trec").write_text("q Q0 d 1 2 x\n")
    [counts] = cuts("rerank --model ce --run run.trec --queries q.jsonl --corpus c.jsonl")
    assert [count[:4] for count in counts] == [*documents, (1, 1, "queries", 8)]
    assert all(share < 100 for *_, share in counts)


def test_pretrain_says_it_of_queries(tiny_model_with_head, cuts):
    lines = (json.dumps({"_id": f"d{number}", "queries": ["owl " * 6]}) + "\n" for number in range(30))
    Path("queries.jsonl").write_text("".join(lines))
    flags = "--objective cotmae-qc --steps 1 --batch-size 4 --query-length 5 --document-length 16 --output out"
    result = cuts(f"pretrain --model {tiny_model_with_head} --corpus corpus.jsonl --queries queries.jsonl {flags}")
    assert result == [[(30, 30, "queries", 5, 50.0)]]
