"""Index engines through the command line: hits in the toy corpus, and errors."""

import json

import pytest

from tests.conftest import TOY

SEARCH = ("search", "--dtype", "float32")  # as the documents


@pytest.fixture(scope="module")
def runs(index, moeir, tmp_path_factory):
    """The exact run of each expert."""
    output = tmp_path_factory.mktemp("runs") / "exact"
    assert moeir(*SEARCH, "--index", index, "--queries", TOY / "test-queries.tsv", "--depth", 5, "--output", output).code == 0
    return output


@pytest.mark.parametrize("engine", ["global=faiss:factory=Flat,rescore=true", "global=faiss:factory=HNSW8,ef=64,rescore=true"])
def test_an_engine_that_scores_again_finds_what_the_exact_one_finds_where_all_are_candidates(engine, encodings, runs, moeir, tmp_path):
    if "faiss" in engine:
        pytest.importorskip("faiss")
    expert = engine.split("=")[0]
    assert moeir("index", "--encodings", encodings, "--engine", engine, "--output", tmp_path / "idx").code == 0
    assert json.loads((tmp_path / "idx" / expert / "engine.json").read_text())["exact"] is False
    result = moeir(*SEARCH, "--index", tmp_path / "idx", "--queries", TOY / "test-queries.tsv", "--depth", 5, "--output", tmp_path / "runs")
    assert result.code == 0, result.stderr
    assert (tmp_path / "runs" / f"{expert}.trec").read_bytes() == (runs / f"{expert}.trec").read_bytes()


@pytest.mark.parametrize(
    ("engine", "code", "words"),
    [
        ("global=faiss:nprobe=0", 2, "faiss:nprobe=0: expected at least 1"),
        ("global=faiss:factory=Nonsense", 2, "faiss rejects it"),
        ("global=faiss:rescore=maybe", 2, "rescore"),
    ],
)
def test_what_is_wrong_is_one_line(engine, code, words, encodings, moeir, tmp_path):
    result = moeir("index", "--encodings", encodings, "--engine", engine, "--output", tmp_path / "idx")
    assert result.code == code and words in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "idx").exists()


def test_an_expert_has_one_engine(moeir, encodings, tmp_path):
    result = moeir("index", "--encodings", encodings, "--engine", "global=flat", "global=scan", "--output", tmp_path / "idx")
    assert result.code == 2 and "--engine global=flat: its expert has another --engine" in result.stderr
