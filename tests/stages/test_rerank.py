"""`rerank` through the command line: every score is that of the pair alone, in any order or batch and after any interruption."""

import numpy as np
import pytest
import torch

from moeir import open_checkpoint
from moeir.backbones.packed_pairs import PackedPairs, RaggedIds
from moeir.records import runs, texts
from tests.conftest import run_in_process, run_moeir
from tests.oracles import reranking as oracles

SEARCH = ("search", "--dtype", "float32")  # as the documents
RULES = ("--query-length", 20, "--document-length", 32)


@pytest.fixture(scope="module")
def room(tmp_path_factory, tiny_model, came_checkpoint, toy):
    """A cross-encoder, CAME, and a run of three test queries with every document in it."""
    folder = tmp_path_factory.mktemp("rerank")
    (folder / "came").symlink_to(came_checkpoint)
    run_moeir("init", "--model", tiny_model, "--arch", "cross-encoder", *RULES, "--output", folder / "lce")
    names = list(texts.read_texts_by_id(toy / "corpus.jsonl"))
    with open(folder / "bm25.trec", "w") as file:
        for query in ("q2", "q1", "q3"):
            for rank, name in enumerate(np.random.default_rng(len(query) + int(query[1])).permutation(names).tolist()):
                file.write(f"{query} Q0 {name} {rank + 1} {20 - rank} bm25\n")
    return folder


@pytest.fixture(scope="module")
def sources(room, toy):
    """The run and the texts of its pairs."""
    texts_of_pairs = ("--queries", toy / "test-queries.tsv", "--corpus", toy / "corpus.jsonl")
    return ("--run", room / "bm25.trec", *texts_of_pairs, "--dtype", "float32")


@pytest.fixture(scope="module")
def rerank(room, sources):
    """`rerank(output, *arguments)`: the reranked run."""

    def reranked(output, *arguments, model="lce"):
        run_moeir("rerank", "--model", room / model, *sources, *arguments, "--output", output)
        return runs.read_run(output)

    return reranked


@torch.no_grad()
def score_pair_alone(folder, toy, query, document):
    """The score of a pair in a batch of its own."""
    checkpoint = open_checkpoint(folder)
    query_text = texts.read_texts_by_id(toy / "test-queries.tsv")[query].content
    document_text = texts.read_texts_by_id(toy / "corpus.jsonl")[document].joined_fields
    sides = ((query_text, "query"), (document_text, "document"))
    ids = [RaggedIds.from_lists(checkpoint.token_ids([text], side)[0]) for text, side in sides]
    tokens = checkpoint.pair_tokenizer.make_pairs(*ids, np.zeros(1, dtype=int), np.zeros(1, dtype=int)).pack([0])
    return float(checkpoint.architecture.eval()(tokens)["relevance"].vectors)


def test_every_score_is_that_of_the_pair_alone_and_the_rest_stands_behind(room, rerank, toy, tmp_path):
    before, after = runs.read_run(room / "bm25.trec"), rerank(tmp_path / "out.trec", "--depth", 5)
    assert after.queries == before.queries and len(after.scores) == len(before.scores)
    for query in before.queries:
        hits = before.documents_of(query)
        scores = {document: score_pair_alone(room / "lce", toy, query, document) for document in hits[:5]}
        assert after.documents_of(query) == oracles.rerank(hits, 5, scores)
        scores_after = dict(after.hits(query))
        assert all(scores_after[document] == pytest.approx(score, abs=1e-5) for document, score in scores.items())
    cut = rerank(tmp_path / "cut.trec", "--depth", 5, "--no-rest")
    assert {query: cut.documents_of(query) for query in cut.queries} == {query: after.documents_of(query)[:5] for query in after.queries}


def test_batches_threads_and_a_pipe_change_nothing_but_roundings(room, sources, rerank, toy, tmp_path):
    whole = rerank(tmp_path / "whole.trec", "--depth", 6)
    for number, options in enumerate([("--max-tokens", 1), ("--max-tokens", 70), ("--threads", 1)]):
        other = rerank(tmp_path / f"{number}.trec", "--depth", 6, *options)
        for query in whole.queries:
            assert dict(other.hits(query)) == pytest.approx(dict(whole.hits(query)), abs=1e-4)
    flags = (*sources[:5], "-", *sources[6:], "--depth", 6)
    result = run_in_process("rerank", "--model", room / "lce", *flags, stdin=(toy / "corpus.jsonl").read_text())
    assert result.code == 0 and result.stdout == (tmp_path / "whole.trec").read_text()


def test_an_expert_scores_as_its_exact_index_does_and_experts_are_added(rerank, index, toy, tmp_path):
    run_moeir(*SEARCH, "--index", index, "--queries", toy / "test-queries.tsv", "--depth", 50, "--output", tmp_path / "found")
    parts = {}
    for expert in ("lexical", "local", "global"):
        exact = runs.read_run(tmp_path / "found" / f"{expert}.trec")
        parts[expert] = rerank(tmp_path / f"{expert}.trec", "--expert", expert, model="came")
        for query in parts[expert].queries:
            scores = dict(parts[expert].hits(query))
            assert all(scores[name] == pytest.approx(score, rel=2e-3, abs=2e-3) for name, score in exact.hits(query))
    total = rerank(tmp_path / "all.trec", model="came")
    for query in total.queries:
        sums = {name: sum(dict(part.hits(query))[name] for part in parts.values()) for name in total.documents_of(query)}
        assert dict(total.hits(query)) == pytest.approx(sums, abs=1e-4)


def test_a_score_that_is_no_number_is_told(room, sources, tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.reranking.scoring.score_pairs", lambda _, pairs, **__: np.append(np.zeros(len(pairs.lengths) - 1), np.nan))
    result = run_in_process("rerank", "--model", room / "lce", *sources, "--output", tmp_path / "out.trec")
    assert result.code == 3 and "its score of query 'q3' and document" in result.stderr and not (tmp_path / "out.trec").exists()


def test_unfinished_work_is_not_scored_again(room, sources, tmp_path, monkeypatch):
    monkeypatch.setattr("moeir.reranking.score_journal.FLUSH_SECONDS", 0.0)
    command = ("rerank", "--model", room / "lce", *sources, "--max-tokens", 64, "--output", tmp_path / "out.trec")
    batch_sizes, packed = [], PackedPairs.pack

    def failing(self, rows, side="pair"):
        if len(batch_sizes) == 8:
            raise KeyboardInterrupt
        batch_sizes.append(len(rows))
        return packed(self, rows, side)

    monkeypatch.setattr(PackedPairs, "pack", failing)
    assert run_in_process(*command).code == 130
    monkeypatch.setattr(PackedPairs, "pack", lambda self, rows, side="pair": batch_sizes.append(len(rows)) or packed(self, rows, side))
    first = sum(batch_sizes)
    again = run_in_process(*command)
    assert again.code == 0 and "continuing after " in again.stderr
    pairs = len(runs.read_run(room / "bm25.trec").scores)
    assert pairs <= sum(batch_sizes) < pairs + first


def test_bf16_is_near_and_its_scores_are_not_rounded(rerank, tmp_path):
    exact, half = rerank(tmp_path / "exact.trec"), rerank(tmp_path / "half.trec", "--dtype", "bfloat16")
    for query in exact.queries:
        assert dict(half.hits(query)) == pytest.approx(dict(exact.hits(query)), abs=0.15)
    scores = torch.from_numpy(half.scores.copy())
    assert not torch.equal(scores, scores.bfloat16().float())
