"""The Python functions do the same as the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest

import moeir
from moeir.records import texts


def test_every_public_name_is_there_and_no_other() -> None:
    assert set(dir(moeir)) == set(moeir.__all__)
    assert all(getattr(moeir, name) for name in moeir.__all__)
    with pytest.raises(AttributeError, match="open_checkpoint"):
        _ = moeir.open_ckpt


def test_an_opened_index_finds_what_the_command_finds(
    index: Path, came_checkpoint: Path, toy: Path, tmp_path: Path, moeir: Callable[..., object]
) -> None:
    from moeir import open_index, read_run

    """The lists that are fused are as deep as the command's, whatever number of documents is asked for."""
    moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", tmp_path / "runs")
    queries = list(texts.read_texts(toy / "test-queries.tsv"))
    searcher = open_index(index)
    for name, expert in (("fused", None), ("local", "local")):
        for depth in (1, 5):
            run = read_run(tmp_path / "runs" / f"{name}.trec").top(depth)
            assert searcher.search([query.content for query in queries], depth, expert) == [run.hits(query.id) for query in queries]


def test_an_opened_checkpoint_scores_as_the_index_does(index: Path, came_checkpoint: Path, toy: Path) -> None:
    checkpoint = moeir.open_checkpoint(came_checkpoint)
    documents = list(texts.read_texts(toy / "corpus.jsonl"))
    encoded = checkpoint.encode([document.content for document in documents])
    queries = checkpoint.encode(["a question about cats"], "query")
    hits = dict(moeir.open_index(index).search(["a question about cats"], len(documents), "global")[0])
    scores = queries["global"].scores(encoded["global"])[0]
    for document, score in zip(documents, scores.tolist(), strict=True):
        assert hits[document.id] == pytest.approx(score, abs=2e-3)  # vectors on disk are float16
