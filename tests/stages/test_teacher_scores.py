"""`rerank --train`: a teacher's scores in training examples, which `finetune` learns from with kl and margin-mse."""

import json

import pytest

from moeir.records import examples, runs
from moeir.records.texts import read_texts_by_id
from tests.conftest import run_in_process

LENGTHS = ("--query-length", 20, "--document-length", 32)


@pytest.fixture(scope="module")
def room(tmp_path_factory, tiny_model, toy):
    """A cross-encoder, a retriever, and examples by id, with their texts, and as FlagEmbedding's lines."""
    folder = tmp_path_factory.mktemp("teacher")
    for name, arch in (("ce", "cross-encoder"), ("other", "cross-encoder:head=linear,fields=text"), ("dense", "dense")):
        result = run_in_process("init", "--model", tiny_model, "--arch", arch, *LENGTHS, "--output", folder / name)
        assert result.code == 0, result.stderr
    corpus = list(read_texts_by_id(toy / "corpus.jsonl"))
    queries = list(read_texts_by_id(toy / "train-queries.jsonl"))[:4]
    with open(folder / "train.jsonl", "w") as file:
        for number, query in enumerate(queries):
            ids = [corpus[(number + shift) % len(corpus)] for shift in range(4)]
            provenance = [[{"run": "bm25", "rank": rank, "score": 1.0}] for rank in range(2)]
            record = {"query_id": query, "positive_ids": ids[:2], "negative_ids": ids[2:], "negative_provenance": provenance}
            file.write(json.dumps(record) + "\n")
    yield folder


def score(output, *flags):
    result = run_in_process("rerank", *flags, "--dtype", "float32", "--output", output)
    assert result.code == 0, result.stderr
    return {example.query_id: example.teacher_scores for example in examples.read_examples(output)}


@pytest.mark.parametrize("model", ["ce", "dense"])
def test_the_scores_are_those_of_reranking_the_same_documents(model, room, texts, tmp_path):
    scores = score(tmp_path / "scored.jsonl", "--train", room / "train.jsonl", "--model", room / model, *texts)
    before, after = (list(examples.read_examples(path)) for path in (room / "train.jsonl", tmp_path / "scored.jsonl"))
    assert [(one.query_id, one.positive_ids, one.negative_ids, one.provenance) for one in before] == [
        (one.query_id, one.positive_ids, one.negative_ids, one.provenance) for one in after
    ]
    with open(tmp_path / "run.trec", "w") as file:
        for one in before:
            file.writelines(f"{one.query_id} Q0 {name} 1 {9 - n} x\n" for n, name in enumerate((*one.positive_ids, *one.negative_ids)))
    flags = ("--model", room / model, *texts, "--dtype", "float32")
    assert run_in_process("rerank", "--run", tmp_path / "run.trec", *flags, "--output", tmp_path / "reranked.trec").code == 0
    reranked = runs.read_run(tmp_path / "reranked.trec")
    assert {query: dict(reranked.hits(query)) for query in reranked.queries} == {
        query: pytest.approx(by_document, abs=1e-5) for query, by_document in scores.items()
    }


def test_an_ensemble_is_a_teacher_and_shards_join_to_the_whole(room, texts, tmp_path):
    flags = ("--train", room / "train.jsonl", "--model", room / "ce", "--model", room / "other", "--ensemble", "mean", *texts)
    whole = score(tmp_path / "whole.jsonl", *flags)
    singles = [
        score(tmp_path / f"{name}.jsonl", "--train", room / "train.jsonl", "--model", room / name, *texts) for name in ("ce", "other")
    ]
    assert whole == {
        query: pytest.approx({name: (singles[0][query][name] + singles[1][query][name]) / 2 for name in by_document}, abs=1e-5)
        for query, by_document in whole.items()
    }
    for number in range(2):
        score(tmp_path / f"part{number}.jsonl", *flags, "--shard", f"{number}/2")
    assert "".join((tmp_path / f"part{number}.jsonl").read_text() for number in range(2)) == (tmp_path / "whole.jsonl").read_text()


def test_examples_with_their_texts_need_no_other_file(room, tmp_path, moeir):
    rows = [{"query": "who hunts", "pos": ["An owl hunts."], "neg": ["A cat waits.", "A hen lays."]}]
    (tmp_path / "bge.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = score(tmp_path / "scored.jsonl", "--train", tmp_path / "bge.jsonl", "--model", room / "ce")
    assert [len(by_document) for by_document in scores.values()] == [3]
    content = (tmp_path / "scored.jsonl").read_text()
    piped = moeir("rerank", "--train", "-", "--model", room / "ce", "--dtype", "float32", stdin=content)
    assert (piped.code, piped.stdout) == (0, content)


@pytest.mark.parametrize("objective", ["kl", "margin-mse"])
def test_a_retriever_learns_from_a_cross_encoders_scores(objective, room, texts, tmp_path, moeir, tiny_model):
    teach = ("rerank", "--train", room / "train.jsonl", "--model", room / "ce", *texts, "--output", tmp_path / "scored.jsonl")
    result = moeir(*teach)
    assert result.code == 0 and "next: moeir finetune --model CHECKPOINT --train" in result.stderr
    training = ("--negatives", 2, "--batch-size", 2, "--epochs", 2)
    flags = ("finetune", "--model", tiny_model, "--arch", "dense", "--objective", objective, *training)
    result = moeir(*flags, "--train", tmp_path / "scored.jsonl", *texts, "--output", tmp_path / "out")
    assert result.code == 0, result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "rerank needs --run or --train"),
        ("--run {room}/x.trec --train {room}/train.jsonl", "--train and --run exclude one another"),
        ("--run {room}/x.trec", "rerank needs --queries or --dataset"),
        ("--train {room}/train.jsonl --depth 10", "--train and --depth exclude one another"),
        ("--train {room}/train.jsonl", "/train.jsonl: names query 't1' by id; name the file that has it with --queries"),
    ],
)
def test_what_does_not_fit_examples_is_refused(flags, words, room, refuse):
    refuse(2, words, f"rerank --model {room}/ce {flags.format(room=room)}")
