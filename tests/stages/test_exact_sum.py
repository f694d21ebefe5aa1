"""COIL from plain weights to evaluation through the command line, and the exact sum of experts in search."""

from typing import Any

import numpy as np
import pytest

from moeir import open_checkpoint, read_run
from moeir.records import texts
from tests.conftest import run_moeir

SEARCH = ("search", "--dtype", "float32")  # as the documents
LENGTHS = ("--query-length", 16, "--document-length", 32)


@pytest.fixture(scope="module")
def room(tmp_path_factory, examples, tiny_model, toy):
    """A trained COIL, its encodings and its index."""
    folder = tmp_path_factory.mktemp("coil")
    source = ("--train", examples, "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    run_moeir("init", "--model", tiny_model, "--arch", "coil:dim=8,cls_dim=16", *LENGTHS, "--output", folder / "init")
    run_moeir(
        *("finetune", "--model", folder / "init", *source),
        *("--steps", 3, "--batch-size", 2, "--negatives", 1, "--learning-rate", 0.01, "--dtype", "float32", "--output", folder / "ckpt"),
    )
    run_moeir("encode", "--model", folder / "ckpt", "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", folder / "enc")
    run_moeir("index", "--encodings", folder / "enc", "--output", folder / "idx")
    return folder


def search(room, toy, output, *more):
    return run_moeir(*SEARCH, "--index", room / "idx", "--queries", toy / "test-queries.tsv", *more, "--output", output)


def brute_force_sums(room, toy):
    """query -> document -> sum of both experts' scores, by brute force over the stored encodings."""
    checkpoint = open_checkpoint(room / "ckpt")
    queries = list(texts.read_texts(toy / "test-queries.tsv"))
    encoded = checkpoint.encode([query.content for query in queries], "query")
    ids = (room / "enc" / "ids.txt").read_text().split()
    kinds: dict[str, Any] = {name: type(part) for name, part in encoded.representations.items()}
    total = sum(part.scores(kinds[name].open(room / "enc" / name)) for name, part in encoded.representations.items())
    return {query.id: dict(zip(ids, row, strict=True)) for query, row in zip(queries, np.asarray(total).tolist(), strict=True)}


@pytest.mark.parametrize("fuse", [(), ("--fuse", "exact_sum")])
def test_the_fused_run_of_all_documents_is_the_brute_force_sum(room, toy, tmp_path, fuse):
    search(room, toy, tmp_path / "runs", *fuse)
    fused = read_run(tmp_path / "runs" / "fused.trec")
    for query, expected in brute_force_sums(room, toy).items():
        scores = dict(fused.hits(query))
        assert scores.keys() == expected.keys()
        assert [scores[document] for document in expected] == pytest.approx(list(expected.values()), rel=1e-5, abs=1e-5)


def test_a_shallow_search_gives_right_sums(room, toy, tmp_path):
    search(room, toy, tmp_path / "whole")
    search(room, toy, tmp_path / "shallow", "--depth", 2)
    whole, shallow = (read_run(tmp_path / name / "fused.trec") for name in ("whole", "shallow"))
    for query in whole.queries:
        assert set(shallow.hits(query)) <= set(whole.hits(query))  # the same number whether it stood in a list or not


def test_named_experts_are_the_ones_summed(index, toy, tmp_path):
    both = ("--expert", "local", "--expert", "global", "--fuse", "exact-sum")
    run_moeir(*SEARCH, "--index", index, "--queries", toy / "test-queries.tsv", *both, "--output", tmp_path / "runs")
    local, dense, fused = (read_run(tmp_path / "runs" / f"{name}.trec") for name in ("local", "global", "fused"))
    assert not (tmp_path / "runs" / "lexical.trec").exists()
    for query in fused.queries:
        one, other = dict(local.hits(query)), dict(dense.hits(query))
        assert dict(fused.hits(query)) == {name: pytest.approx(one[name] + other[name], rel=1e-6) for name in one}


def test_a_mixture_of_competitors_is_still_fused_as_came_unless_told(index, toy, tmp_path):
    for name, more in (("default", ()), ("told", ("--fuse", "came-sum"))):
        run_moeir(
            *SEARCH, "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 3, *more, "--output", tmp_path / f"{name}.trec"
        )
    assert (tmp_path / "default.trec").read_text() == (tmp_path / "told.trec").read_text()


def test_an_exact_sum_that_cannot_be_is_refused(room, toy, tmp_path, moeir):
    search(room, toy, tmp_path / "runs", "--depth", 3)
    runs = [word for name in ("exact", "global") for word in ("--run", tmp_path / "runs" / f"{name}.trec")]
    result = moeir("fuse", *runs, "--method", "exact-sum", "--output", tmp_path / "out.trec")
    assert result.code == 2 and "use moeir search --fuse exact-sum" in result.stderr
    result = moeir(*SEARCH, "--index", room / "idx", "--query", "owl", "--fuse", "exact-sum:deeper=true", "--output", tmp_path / "out.trec")
    assert result.code == 2 and "exact-sum has no option 'deeper'" in result.stderr
    assert not (tmp_path / "out.trec").exists()
