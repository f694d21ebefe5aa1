"""The whole pipeline on the toy texts, through the command line: what each step leaves, and a training that its settings repeat."""

import json
from pathlib import Path

import pytest

from tests.conftest import run_in_process

CAME = "came:shared_layers=2,local_dim=16"
TRAINING = ("--arch", CAME, "--objective", "competitive:standardised=0.5", "--steps", 4, "--batch-size", 2, "--negatives", 2)
SOURCES = ("--train", "train.jsonl", "--corpus", "toy/corpus.jsonl", "--queries", "toy/train-queries.jsonl")
RATES = ("--learning-rate", 0.001, "--document-length", 32, "--query-length", 16)
FINETUNE = ("finetune", "--model", "weights", *SOURCES, *TRAINING, *RATES)
ENCODE = ("encode", "--model", "ckpt/came", "--corpus", "toy/corpus.jsonl", "--dtype", "float32")
STEPS = (
    ("init", "--model", "weights", "--arch", CAME, "--output", "ckpt/init"),
    ("index", "--corpus", "toy/corpus.jsonl", "--engine", "bm25", "--output", "idx/bm25"),
    ("search", "--index", "idx/bm25", "--queries", "toy/train-queries.jsonl", "--output", "runs/bm25.train.trec"),
    ("mine-negatives", "--run", "runs/bm25.train.trec", "--qrels", "toy/train.qrels", "--output", "train.jsonl"),
    (*FINETUNE, "--dtype", "float32", "--output", "ckpt/came"),
    (*ENCODE, "--output", "enc"),
    ("index", "--encodings", "enc", "--output", "idx/came"),
    ("search", "--index", "idx/came", "--queries", "toy/test-queries.tsv", "--depth", 5, "--output", "runs/came"),
    ("search", "--index", "idx/bm25", "--queries", "toy/test-queries.tsv", "--depth", 5, "--output", "runs/bm25.test.trec"),
    ("fuse", "--run", "runs/came/fused.trec", "--run", "runs/bm25.test.trec", "--method", "rrf", "--output", "runs/all.trec"),
    ("evaluate", "--run", "runs/all.trec", "--run", "runs/bm25.test.trec", "--qrels", "toy/test-qrels.tsv", "--output", "table.txt"),
)


@pytest.fixture(scope="module")
def room(tmp_path_factory, tiny_model_with_head, toy):
    """The folder in which all steps ran."""
    folder = tmp_path_factory.mktemp("pipeline")
    _link_inputs(folder, tiny_model_with_head, toy)
    for step in STEPS:
        _run(folder, *step)
    return folder


def _link_inputs(folder: Path, weights: Path, toy: Path) -> None:
    (folder / "toy").symlink_to(toy)
    (folder / "weights").symlink_to(weights)


def _run(folder: Path, *arguments: object):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = run_in_process(*arguments)
    assert result.code == 0, (arguments, result.stderr)
    return result


def test_every_step_leaves_its_product_and_nothing_else(room):
    assert sorted(path.name for path in (room / "runs" / "came").iterdir()) == [
        *("fused.trec", "global.trec", "lexical.trec", "local.trec", "manifest.json"),
    ]
    assert sorted(path.name for path in room.iterdir()) == [
        *("ckpt", "enc", "idx", "runs", "table.txt", "table.txt.manifest.json"),
        *("toy", "train.jsonl", "train.jsonl.manifest.json", "weights"),
    ]
    leftovers = [path for path in room.rglob("*") if path.name.startswith(".") or path.suffix in (".new", ".partial")]
    assert leftovers == []
    lines = [json.loads(line) for line in (room / "ckpt" / "came" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["competing"]) for line in lines] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert {"loss", "loss.lexical", "share.global", "gradient_norm", "tokens_per_second"} <= lines[0].keys()


def test_the_settings_of_a_checkpoint_make_it_again(room, tmp_path, tiny_model_with_head, toy):
    _link_inputs(tmp_path, tiny_model_with_head, toy)
    (tmp_path / "train.jsonl").symlink_to(room / "train.jsonl")
    settings = room / "ckpt" / "came" / "settings.yaml"
    _run(tmp_path, "finetune", "--config", settings)
    trained, first = (folder / "ckpt" / "came" / "model.safetensors" for folder in (tmp_path, room))
    assert trained.read_bytes() == first.read_bytes()


def test_a_run_through_a_pipe_and_that_of_one_expert_alone_are_the_runs_in_the_files(room, moeir):
    run = room / "runs" / "came" / "fused.trec"
    piped = moeir("search", "--index", room / "idx" / "came", "--queries", "-", "--depth", 5, "--output", "-",
                  stdin=(room / "toy" / "test-queries.tsv").read_text())  # fmt: skip
    assert piped.stdout == run.read_text()
    measured = [
        moeir("evaluate", "--run", path, "--qrels", room / "toy" / "test-qrels.tsv", "--form", "tsv", stdin=content).stdout
        for path, content in ((run, ""), ("-", piped.stdout))
    ]
    assert measured[0] == measured[1]
    queries = ("--queries", room / "toy" / "test-queries.tsv", "--depth", 5)
    alone = moeir("search", "--index", room / "idx" / "came", *queries, "--expert", "local", "--output", "-")
    assert alone.stdout == (room / "runs" / "came" / "local.trec").read_text()
