"""Data sets as `--dataset`: folders in BEIR's layout, ir_datasets and the hub, in any stage that reads a part of one."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from moeir import cli, data_sources, settings
from moeir.errors import DataError, UsageError
from moeir.records import lines, qrels, texts


@pytest.fixture
def beir(tmp_path, monkeypatch, toy):
    """A folder in BEIR's layout with the splits train and test, in the working folder."""
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    shutil.copy(toy / "corpus.jsonl", folder)
    queries = [text for name in ("train-queries.jsonl", "test-queries.tsv") for text in texts.read_texts(toy / name)]
    texts.write_texts(queries, folder / "queries.jsonl.gz")
    for split, name in (("train", "train.qrels"), ("test", "test-qrels.tsv")):
        shutil.copy(toy / name, folder / "qrels" / f"{split}.tsv")
    monkeypatch.chdir(tmp_path)
    return Path("beir")


def build(name, config=None, **values):
    return settings.build_stage(cli.stage_class(name), values, config)


def test_a_data_set_is_indexed_searched_and_evaluated(beir, moeir):
    assert moeir("index", "--dataset", beir, "--engine", "bm25", "--output", "idx").code == 0
    assert moeir("search", "--dataset", beir, "--index", "idx", "--output", "test.trec").code == 0
    judged = set(qrels.read_qrels(beir / "qrels" / "test.tsv"))
    assert {line.split()[0] for line in Path("test.trec").read_text().splitlines()} <= judged
    assert "of 6 judged queries" in moeir("evaluate", "--dataset", beir, "--run", "test.trec").stderr
    assert "it has 'q1', they have 't1'" in moeir("evaluate", "--dataset", f"{beir}#train", "--run", "test.trec").stderr
    assert moeir("search", "--queries", f"{beir}#train", "--index", "idx", "--output", "train.trec").code == 0
    assert moeir("mine-negatives", "--dataset", beir, "--run", "train.trec", "--output", "train.jsonl").code == 0
    shown = yaml.safe_load(moeir("rerank", "--dataset", beir, "--model", "m", "--run", "r", "--show").stdout)
    assert (shown["corpus"], shown["queries"]) == ("beir/corpus.jsonl", "beir/queries.jsonl.gz#beir/qrels/test.tsv")
    assert "dataset" not in shown and "split" not in shown
    checked = moeir("check", "--dataset", beir, "--split", "test")
    assert (checked.code, checked.stderr.count("test.tsv")) == (0, 1)
    again = moeir("search", "--dataset", beir, "--index", "idx", "--output", "test.trec")
    assert "already made" in again.stderr
    lines.write_lines(["query-id\tcorpus-id\tscore", "q1\towl\t1"], beir / "qrels" / "test.tsv")
    assert moeir("search", "--dataset", beir, "--index", "idx", "--output", "test.trec").code == 2  # another source


def test_a_flag_takes_a_folder_or_one_of_its_splits(beir):
    assert build("encode", model="m", corpus="beir", output="o").corpus == Path("beir/corpus.jsonl")
    search = {"index": ["i"], "output": "o"}
    assert build("search", queries="beir", **search).queries == Path("beir/queries.jsonl.gz")
    assert build("search", queries="beir#test", **search).queries == Path("beir/queries.jsonl.gz#beir/qrels/test.tsv")
    assert build("search", queries="beir", split="train", **search).queries == Path("beir/queries.jsonl.gz#beir/qrels/train.tsv")
    assert build("search", index="idx", dataset="beir#train", split="train") == build("search", index="idx", dataset="beir#train")
    assert build("evaluate", run=["r"], qrels="beir").qrels == Path("beir/qrels/test.tsv")
    Path("evaluate.yaml").write_text("dataset: beir\nsplit: train\nrun: r\n")
    assert build("evaluate", Path("evaluate.yaml")) == build("evaluate", run=[Path("r")], dataset=beir, split="train")
    assert build("mine-negatives", run=["r"], qrels="beir", output="o").qrels == Path("beir/qrels/train.tsv")


def test_a_data_set_fills_only_what_is_read_and_not_set(beir):
    finetune = {"model": "m", "train": ["t"], "output": "o", "dataset": "beir"}
    assert build("search", index=["i"], dataset="beir").corpus is None
    assert build("search", index=["i"], dataset="beir", explain="e").corpus == Path("beir/corpus.jsonl")
    assert build("search", index=["i"], dataset="beir", queries="mine.tsv").queries == Path("mine.tsv")
    assert build("evaluate", run=["r"], dataset="beir").queries is None
    assert build("evaluate", run=["r"], dataset="beir", answers="a").qrels is None
    assert build("finetune", **finetune).queries == (Path("beir/queries.jsonl.gz#beir/qrels/train.tsv"),)
    assert build("finetune", **finetune).dev_queries is None
    assert build("check", dataset="beir").qrels == (Path("beir/qrels/test.tsv"), Path("beir/qrels/train.tsv"))
    assert build("check", dataset="beir").queries == Path("beir/queries.jsonl.gz")
    assert build("analyze", analysis="usage", model="m", dataset="beir").qrels is None
    assert build("pretrain", model="m", dataset="beir", output="o").queries == ()


def test_training_that_evaluates_and_calibration_take_the_development_split(beir):
    stage = build("calibrate", run=["a", "b"], dataset="beir", split="test", output="o")
    assert (stage.queries, stage.qrels) == (None, Path("beir/qrels/test.tsv")), "runs are not searched again"
    with pytest.raises(UsageError, match="no 'dev'; name one with --split"):
        build("calibrate", run=["a", "b"], dataset="beir", output="o")
    finetune = {"model": "m", "train": ["t"], "output": "o", "dataset": "beir", "evaluate_every": 10}
    with pytest.raises(UsageError, match="beir: has no split 'dev'; it has test, train"):
        build("finetune", **finetune)
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "dev.tsv")
    stage = build("finetune", **finetune)
    assert (stage.dev_queries, stage.dev_qrels) == (Path("beir/queries.jsonl.gz#beir/qrels/dev.tsv"), Path("beir/qrels/dev.tsv"))
    assert stage.queries == (Path("beir/queries.jsonl.gz#beir/qrels/train.tsv"),)


def test_without_the_default_split_the_only_one_is_taken_and_of_several_one_is_to_be_named(beir):
    (beir / "qrels" / "test.tsv").rename(beir / "qrels" / "dev.tsv")
    with pytest.raises(UsageError, match="beir: has the splits dev, train and no 'test'; name one with --split"):
        build("evaluate", run=["r"], dataset="beir")
    (beir / "qrels" / "train.tsv").unlink()
    assert build("evaluate", run=["r"], dataset="beir").qrels == Path("beir/qrels/dev.tsv")


@pytest.mark.parametrize(("stage", "values", "error", "message"), [
    ("evaluate", {"dataset": "absent"}, DataError, "absent: no such folder; expected a folder in BEIR's layout, irds:NAME or hf:NAME"),
    ("evaluate", {"dataset": "beir", "split": "dev"}, UsageError, "beir: has no split 'dev'; it has test, train"),
    ("evaluate", {"qrels": "q.tsv", "split": "test"}, UsageError, "--split test: needs --dataset, or a folder in its place"),
    ("evaluate", {"qrels": "beir/qrels"}, DataError, "beir/qrels: expected a file for --qrels, found a folder without qrels/SPLIT.tsv"),
    ("index", {"dataset": "beir", "encodings": "e"}, UsageError, "--dataset beir: index reads no part of it"),
    ("evaluate", {"dataset": "beir/corpus.jsonl"}, DataError, "beir/corpus.jsonl: is a file; expected a folder in BEIR's layout"),
    ("evaluate", {"dataset": ""}, UsageError, "--dataset: expected a path, found nothing"),
    ("evaluate", {"dataset": "beir", "split": ""}, UsageError, "--split: expected a name, found nothing"),
    ("evaluate", {"dataset": "beir#"}, UsageError, "beir#: expected the name of a split after #"),
    ("evaluate", {"dataset": "beir#test", "split": "train"}, UsageError, "names the split test, and --split train; name one of them"),
    ("evaluate", {"dataset": "beir", "split": "train", "qrels": "q.tsv"}, UsageError, "--split train: every input is named; leave it out"),
    ("evaluate", {}, UsageError, "evaluate needs --run"),
])  # fmt: skip
def test_what_a_data_set_lacks_is_one_line(beir, stage, values, error, message):
    run = {"run": ["a", "b"]} if values else {}
    with pytest.raises(error) as caught:
        build(stage, **(run | values))
    assert message in str(caught.value)


Row = namedtuple("Row", "doc_id text")
Judgement = namedtuple("Judgement", "query_id doc_id relevance iteration")
Question = namedtuple("Question", "query_id text")


def load(name):
    """A stub of ir_datasets with documents in `toy`, and queries and judgements in `toy/test`."""
    rows = {"docs": [Row("owl", "An owl hunts."), Row("bat", "A bat flies.")]}
    if name == "toy/test":
        rows |= {"queries": [Question("q1", "who hunts")], "qrels": [Judgement("q1", "owl", 1, "0")]}
    methods = {f"has_{part}": lambda part=part: part in rows for part in ("docs", "queries", "qrels")}
    return SimpleNamespace(**methods, **{f"{part}_iter": lambda part=part: iter(rows[part]) for part in rows})


def test_ir_datasets_is_a_data_set(tmp_path, monkeypatch, moeir):
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=load))
    monkeypatch.chdir(tmp_path)
    assert moeir("index", "--dataset", "irds:toy", "--engine", "bm25", "--output", "idx").code == 0
    assert moeir("search", "--dataset", "irds:toy", "--split", "test", "--index", "idx", "--output", "run.trec").code == 0
    result = moeir("evaluate", "--dataset", "irds:toy/test", "--run", "run.trec", "--measure", "RR@10", "--form", "tsv")
    assert result.stdout.split()[-1] == "1.000000"
    assert moeir("evaluate", "--qrels", "irds:toy/test", "--run", "run.trec", "--measure", "RR@10").code == 0
    message = "error: irds:toy#qrels: toy has no qrels; name a data set or a split that has some, as in irds:beir/scifact/test\n"
    assert moeir("evaluate", "--dataset", "irds:toy", "--run", "run.trec") == (2, "", message)
    assert moeir("check", "--dataset", "irds:toy/test").code == 0


@pytest.fixture
def hub_set(tmp_path):
    """A data set saved by datasets, in the layout of MTEB's."""
    datasets = pytest.importorskip("datasets")
    tables = {
        "corpus": {"corpus": [{"_id": "owl", "text": "An owl hunts."}]},
        "queries": {"queries": [{"_id": "q1", "text": "who hunts"}, {"_id": "q2", "text": "who flies"}]},
        "default": {
            "train": [{"query-id": "q2", "corpus-id": "owl", "score": 0}],
            "test": [{"query-id": "q1", "corpus-id": "owl", "score": 1}],
        },
    }
    for config, splits in tables.items():
        saved = datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()})
        saved.save_to_disk(str(tmp_path / "toy" / config))
    return f"hf:{tmp_path}/toy"


def test_the_hub_is_a_data_set(hub_set):
    stage = build("report", run=["r"], dataset=hub_set, output="o.html")
    assert [text.id for text in texts.read_texts(stage.queries)] == ["q1"]
    assert [text.id for text in texts.read_texts(stage.corpus)] == ["owl"]
    assert qrels.read_qrels(stage.qrels) == {"q1": {"owl": 1}}
    assert build("evaluate", run=["r"], dataset="hf:BeIR/scifact").qrels == Path("hf:BeIR/scifact-qrels@test")


def test_a_folder_with_a_mark_in_its_name_is_found_beside_one_without_it(beir, moeir):
    shutil.copytree(beir, "a#b")
    Path("a").mkdir()
    assert data_sources.split_folder("a#b") == ("a#b", None)
    assert data_sources.split_judged("a#b/queries.jsonl.gz#a#b/qrels/test.tsv") == ("a#b/queries.jsonl.gz", "a#b/qrels/test.tsv")
    queries, judgements = Path("a#b/queries.tsv"), Path("a#b/q.qrels")
    queries.write_text("1\tone\n2\ttwo\n3\tthree\n")
    judgements.write_text("3 0 d 0\n1 0 d 1\n")
    assert [text.text for text in texts.read_texts(f"{queries}#{judgements}")] == ["one", "three"]
    assert len(list(texts.read_texts(queries))) == 3
    with pytest.raises(UsageError, match="expected the judgements after #"):
        data_sources.split_judged("beir/corpus.jsonl#")


@pytest.mark.parametrize(
    ("copied", "twin", "command"),
    [
        ("corpus.jsonl", "corpus.jsonl.gz", ("index", "--engine", "bm25", "--output", "idx")),
        ("queries.jsonl.gz", "queries.jsonl", ("check",)),
        ("qrels/test.tsv", "qrels/test.tsv.zst", ("check",)),
        ("qrels/test.tsv", "qrels/test.qrels.gz", ("convert", "--input", "beir", "--from", "beir", "--to", "beir", "--output", "copy")),
    ],
)
def test_two_files_of_which_either_could_be_meant_are_named(beir, moeir, copied, twin, command):
    with lines.open_lines(beir / copied) as numbered:
        lines.write_lines([line for _, line in numbered if line], beir / twin)
    result = moeir(*command, *(() if "--input" in command else ("--dataset", beir)))
    assert result.code == 3 and Path(copied).name in result.stderr and f"{Path(twin).name}" in result.stderr, result
    assert "either could be meant" in result.stderr
