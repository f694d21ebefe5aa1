"""What a stage logs at its end: what it made, a key figure, and the next command, which is typed as it stands."""

import json
import re
import shlex
from pathlib import Path

import pytest

from moeir import cli, settings
from moeir.stages import base
from tests.conftest import run_in_process
from tests.test_docs import write_beir_folder

FOLLOWED = [  # a stage, every one that makes something; what begins the next command, or None
    ("init --model tiny --arch dense --output ckpt", "encode --model ckpt --corpus CORPUS --output enc"),
    ("init --model tiny --arch dense --dataset D --output m", "encode --model m --corpus D/corpus.jsonl --output enc"),
    ("pretrain --model tiny --corpus t.jsonl --output p", "finetune --model p --train TRAIN --queries QUERIES --corpus t.jsonl"),
    (
        "pretrain --model t --dataset D --output p",
        "finetune --model p --train TRAIN --queries 'D/queries.jsonl#D/qrels/train.tsv' --corpus D/",
    ),
    ("finetune --model t --arch dense --train t.jsonl --corpus 'my texts' --output c", "encode --model c --corpus 'my texts' --output enc"),
    ("finetune --model tiny --arch cross-encoder --train t.jsonl --output ce", "rerank --model ce --run RUN --queries QUERIES"),
    (
        "generate-queries --model t5 --corpus c.jsonl --output q.jsonl",
        "index --corpus c.jsonl --engine bm25 --expansion q.jsonl --output idx",
    ),
    ("mine-negatives --run a --qrels q --output t.jsonl", "finetune --model CHECKPOINT --train t.jsonl --queries QUERIES --corpus CORPUS"),
    ("encode --model ckpt --corpus - --output enc", "index --encodings enc --output idx"),
    ("encode --model ckpt --corpus c.jsonl --shard 0/2 --output enc", None),
    ("index --encodings enc --output idx", "search --index idx --queries QUERIES --output runs"),
    ("index --corpus c.jsonl --engine bm25 --output idx", "search --index idx --queries QUERIES --output run.trec"),
    ("index --dataset D --engine bm25 --output i", "search --index i --queries 'D/queries.jsonl#D/qrels/test.tsv' --output run.trec"),
    ("search --index idx --queries q.tsv --output run.trec", "evaluate --run run.trec --qrels QRELS"),
    ("search --index i --dataset D --split dev --output r.trec", "evaluate --run r.trec --qrels D/qrels/dev.tsv"),
    ("search --index i --queries D#dev --output r.trec", "evaluate --run r.trec --qrels D/qrels/dev.tsv"),
    ("search --index i --queries irds:x/dev --output r.trec", "evaluate --run r.trec --qrels 'irds:x/dev#qrels'"),
    ("search --index i --dataset hf:mteb/scifact --output r.trec", "evaluate --run r.trec --qrels hf:mteb/scifact/default@test"),
    ("search --index i --query owls --output r.trec", None),
    ("calibrate --index i --queries dev.tsv --qrels qrels --output c", "search --index i --model c --queries QUERIES --output runs"),
    ("calibrate --index i --dataset D --output c", "search --index i --model c --queries 'D/queries.jsonl#D/qrels/test.tsv' --output runs"),
    ("calibrate --run a --run b=c --qrels q --output w.json", "fuse --run a=TEST-RUN --run b=TEST-RUN --learned w.json --output fused"),
    ("fuse --run a.trec --run b.trec --output fused.trec", "evaluate --run fused.trec --qrels QRELS"),
    ("rerank --model ce --run a.trec --queries q.tsv --corpus c.jsonl --output best.trec", "evaluate --run best.trec --qrels QRELS"),
    (
        "rerank --model m --train t --queries q --corpus c --output s",
        "finetune --model CHECKPOINT --train s --queries q --corpus c --objective kl",
    ),
    ("evaluate --run a --run b --qrels qrels --output table.txt", "report --run a --run b --qrels qrels --output report.html"),
    ("evaluate --run - --qrels qrels --output table.txt", None),
    ("convert --input train.jsonl --to tevatron --output tevatron.jsonl", None),
    ("analyze overlap --run a.trec --run b.trec --output overlap.tsv", None),
    ("report --run a.trec --qrels qrels --output page.html", None),
    ("pull --repo anna/came --output came", None),
    ("export --to milvus --encodings enc --output served", None),
]


def parse(command):
    """The stage of a command line, as the program builds it."""
    name, *words = shlex.split(command)
    group = cli.typer.main.get_command(cli.build_app([name]))
    parent = group.make_context("moeir", [name, *words])  # whose settings the command keeps
    context = group.commands[name].make_context(name, words, parent=parent)
    stage: base.Stage = settings.build_stage(cli.stage_class(name), context.params)
    return stage


def test_every_stage_with_a_product_is_here():
    roles = {name: [setting.role for setting in settings.list_settings(cli.stage_class(name))] for name in cli.STAGES}
    assert {name for name in cli.STAGES if "product" in roles[name]} == {command.split()[0] for command, _ in FOLLOWED}


@pytest.mark.parametrize(("command", "expected"), FOLLOWED)
def test_the_next_command_has_the_paths_of_the_stage_and_is_valid(command, expected, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("D/qrels").mkdir(parents=True)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv"):
        Path("D", file).touch()
    words = shlex.join(base.suggest_next(parse(command)))
    assert words.startswith(expected) if expected else not words
    if expected is not None:
        base.check_settings(parse(words))


CHAINS = [  # first commands; what follows each is typed, and what follows that, until a kind of command follows another again
    "init --model MODEL --arch came:shared_layers=2 --query-length 16 --document-length 32 --dataset D --output came",
    "index --dataset D --engine bm25 --output bm25",
    "pretrain --model MODEL --dataset D --document-length 32 --epochs 1 --output pre",
    "finetune --model MODEL --arch cross-encoder --document-length 60 --train TRAIN --dataset D --epochs 1 --output reranker",
    "generate-queries --model T5 --corpus D/corpus.jsonl --max-output 4 --output generated.jsonl",
    "search --index bm25 --dataset D --split train --output train.trec",
    "mine-negatives --run train.trec --dataset D --method band:first=0,last=9 --output mined.jsonl",
    "search --index idx --dataset D --split dev --output dev",
    "calibrate --index idx --dataset D --split dev --output calibrated",
    "calibrate --run a=dev/local.trec --run b=dev/global.trec --qrels D/qrels/dev.tsv --output weights.json",
    "evaluate --run run.trec --dataset D --output table.txt",
    "rerank --model reranker --train TRAIN --dataset D --split train --output teacher.jsonl",
]
FILES = {  # what stands in capitals in a next command
    "TRAIN": "train.jsonl", "RUN": "run.trec", "CHECKPOINT": "came", "QUERIES": "D/queries.jsonl", "QRELS": "D/qrels/dev.tsv",
    "CORPUS": "D/corpus.jsonl", "a=TEST-RUN": "a=dev/local.trec", "b=TEST-RUN": "b=dev/global.trec",
}  # fmt: skip


def test_every_next_command_runs_as_it_is_typed(tiny_model_with_head, t5_model, tmp_path, monkeypatch):
    """Two commands follow one another here if, and only if, they do so in the table above."""
    monkeypatch.chdir(tmp_path)
    write_beir_folder(Path("D"))
    Path("train.jsonl").write_text(json.dumps({"query_id": "t1", "positive_ids": ["owl"], "negative_ids": ["bat", "bee"]}) + "\n")
    files = FILES | {"MODEL": str(tiny_model_with_head), "T5": str(t5_model)}
    typed = set[tuple[str, str]]()

    for first in CHAINS:
        words, is_new = shlex.split(first), True
        while words:
            words = [files.get(word, word) for word in words]
            assert not any(re.fullmatch(r"[A-Z][A-Z-]+", word) for word in words), words
            result = run_in_process(*words)
            assert result.code == 0, (shlex.join(words), result.stderr)
            following = [line.removeprefix("next: moeir ") for line in result.stderr.splitlines() if line.startswith("next: ")]
            pairs = {(words[0], line.split()[0]) for line in following}
            words, is_new = shlex.split(following[0]) if following and is_new else [], not pairs <= typed
            typed |= pairs
    assert typed == {(command.split()[0], expected.split()[0]) for command, expected in FOLLOWED if expected}


def test_the_next_command_reads_the_texts_as_the_stage_did_and_writes_to_a_free_name(monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    Path("enc").mkdir()
    stage = parse("finetune --model tiny --arch dense --train t.jsonl --corpus c.jsonl --keep-empty --output m")
    with caplog.at_level("INFO", "moeir"):
        base.log_product(stage, Path("m"), None)
    assert caplog.messages[-1] == "next: moeir encode --model m --corpus c.jsonl --output enc-2 --keep-empty"
    Path("report.html").touch()
    assert Path("report-2.html") in map(Path, base.suggest_next(parse("evaluate --run a.trec --qrels q --output t.txt")))


def test_a_stage_ends_with_what_it_made_and_the_next_command_once(bm25_index, toy, tmp_path, moeir):
    command = ("search", "--index", bm25_index, "--queries", toy / "test-queries.tsv", "--output", tmp_path / "runs")
    lines = moeir(*command).stderr.splitlines()
    assert lines[-2].startswith(f"made {tmp_path}/runs: 6 queries, ") and "one batch in " in lines[-2]
    assert lines[-1] == f"next: moeir evaluate --run {tmp_path}/runs/bm25.trec --qrels QRELS"
    assert moeir(*command).stderr.splitlines() == [f"{tmp_path}/runs: already made with these settings and sources; --force makes it again"]
    streamed = moeir(*command[:-2])
    assert streamed.code == 0 and "made " not in streamed.stderr and "next: " not in streamed.stderr and "one batch in " in streamed.stderr


def test_the_figures_of_products(came_checkpoint, toy, tmp_path, moeir):
    stage = parse("finetune --model tiny --arch dense --train t.jsonl --output ckpt")
    counts = {"steps": 1400, "last": {"loss": 0.61049}, "development": {"measure": "nDCG@10", "value": 0.7421, "step": 1300}}
    assert stage.summary(counts) == "1,400 steps, loss 0.610, development nDCG@10 0.7421 after step 1300"
    flags = ("--model", came_checkpoint, "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "enc")
    assert f"made {tmp_path}/enc: 12 texts in float32, lexical, local, global" in moeir("encode", *flags).stderr.splitlines()
    built = moeir("index", "--encodings", tmp_path / "enc", "--engine", "lexical=scan", "--output", tmp_path / "idx")
    assert f"made {tmp_path}/idx: 12 texts, lexical (scan), local (maxsim), global (flat)" in built.stderr.splitlines()
