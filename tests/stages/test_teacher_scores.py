"""`rerank --train`: a teacher's scores in training examples, which `finetune` learns from with kl and margin-mse."""

import json
from pathlib import Path

import pytest

from moeir.records.examples import read_examples
from moeir.records.runs import read_run
from moeir.records.texts import read_texts_by_id
from tests.conftest import run_moeir

TEXTS = "--queries toy/train-queries.jsonl --corpus toy/corpus.jsonl"


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model):
    """The folder of two cross-encoders, `ce` and `other`, and of a retriever, `dense`."""
    folder = tmp_path_factory.mktemp("teacher")
    for name, arch in (("ce", "cross-encoder"), ("other", "cross-encoder:head=linear,fields=text"), ("dense", "dense")):
        lengths = ("--query-length", 20, "--document-length", 32)
        run_moeir("init", "--model", tiny_model, "--arch", arch, *lengths, "--output", folder / name)
    return folder


@pytest.fixture
def room(work_folder, models):
    """Links to the models, and examples by id."""
    for path in models.iterdir():
        (work_folder / path.name).symlink_to(path)
    corpus, queries = (list(read_texts_by_id(work_folder / "toy" / name)) for name in ("corpus.jsonl", "train-queries.jsonl"))
    provenance = [[{"run": "bm25", "rank": rank, "score": 1.0}] for rank in range(2)]
    examples = [
        {"query_id": query, "positive_ids": corpus[row : row + 2], "negative_ids": corpus[row + 2 : row + 4]}
        for row, query in enumerate(queries[:4])
    ]
    Path("train.jsonl").write_text("".join(json.dumps(one | {"negative_provenance": provenance}) + "\n" for one in examples))


@pytest.fixture
def score(room, run):
    """`score(flags)`: a teacher's scores of each query's documents, which are in scored.jsonl then."""

    def score_examples(flags):
        run(f"rerank --dtype float32 {flags} --output scored.jsonl --force")
        return {example.query_id: example.teacher_scores for example in read_examples(Path("scored.jsonl"))}

    return score_examples


@pytest.mark.parametrize("model", ["ce", "dense"])
def test_the_scores_are_those_of_reranking_the_same_documents(model, score, run):
    scores = score(f"--train train.jsonl --model {model} {TEXTS}")
    before, after = (list(read_examples(Path(name))) for name in ("train.jsonl", "scored.jsonl"))
    assert [(one.query_id, one.positive_ids, one.negative_ids, one.provenance) for one in before] == [
        (one.query_id, one.positive_ids, one.negative_ids, one.provenance) for one in after
    ]
    hits = ((one.query_id, name, rank) for one in before for rank, name in enumerate((*one.positive_ids, *one.negative_ids)))
    Path("run.trec").write_text("".join(f"{query} Q0 {name} 1 {9 - rank} x\n" for query, name, rank in hits))
    run(f"rerank --run run.trec --model {model} {TEXTS} --dtype float32 --output reranked.trec")
    reranked = read_run(Path("reranked.trec"))
    assert {query: dict(reranked.hits(query)) for query in reranked.queries} == {
        query: pytest.approx(by_document, abs=1e-5) for query, by_document in scores.items()
    }


def test_an_ensemble_is_a_teacher_and_shards_join_to_the_whole(score):
    one, other = (score(f"--train train.jsonl --model {name} {TEXTS}") for name in ("ce", "other"))
    both = f"--train train.jsonl --model ce --model other --ensemble mean {TEXTS}"
    whole, content = score(both), Path("scored.jsonl").read_text()
    assert whole == {
        query: pytest.approx({name: (one[query][name] + other[query][name]) / 2 for name in by_document}, abs=1e-5)
        for query, by_document in whole.items()
    }
    parts = [score(f"{both} --shard {number}/2") and Path("scored.jsonl").read_text() for number in range(2)]
    assert "".join(parts) == content and all(parts)


def test_examples_with_their_texts_need_no_other_file(score, moeir):
    rows = [{"query": "who hunts", "pos": ["An owl hunts."], "neg": ["A cat waits.", "A hen lays."]}]
    Path("bge.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [len(by_document) for by_document in score("--train bge.jsonl --model ce").values()] == [3]
    content = Path("scored.jsonl").read_text()
    piped = moeir("rerank", "--train", "-", "--model", "ce", "--dtype", "float32", stdin=content)
    assert (piped.code, piped.stdout) == (0, content)


def test_a_retriever_learns_from_a_cross_encoders_scores(room, run):
    teach = run(f"rerank --train train.jsonl --model ce {TEXTS} --output scored.jsonl")
    assert "next: moeir finetune --model CHECKPOINT --train" in teach.stderr
    for objective in ("kl", "margin-mse"):
        training = f"--objective {objective} --negatives 2 --batch-size 2 --epochs 1"
        run(f"finetune --model tiny --arch dense {training} --train scored.jsonl {TEXTS} --output {objective}")


@pytest.mark.parametrize(("flags", "words"), [
    ("", "rerank needs --run or --train"),
    ("--run x.trec --train train.jsonl", "--train and --run exclude one another"),
    ("--run x.trec", "rerank needs --queries or --dataset"),
    ("--train train.jsonl --depth 10", "--train and --depth exclude one another"),
    ("--train train.jsonl", "train.jsonl: names query 't1' by id; name the file that has it with --queries"),
])  # fmt: skip
def test_what_does_not_fit_examples_is_refused(flags, words, room, refuse):
    refuse(2, words, f"rerank --model ce {flags}")
