"""Wherever the checkpoint of an interrupted training is asked for, the answer is how far it came and how it is finished."""

import contextlib
import fcntl
import json

import numpy
import pytest
import tokenizers

from moeir.architectures.checkpoint import open_checkpoint
from moeir.artifacts.unfinished import WorkFolder
from moeir.errors import ArtifactError
from tests.training.toy_examples import interrupt_before_step


@pytest.fixture
def interrupted(moeir, toy, two_layers, tmp_path, monkeypatch):
    """A training stopped in its fourth step of nine, and its command."""
    lines = [{"query_id": f"t{number}", "positive_ids": [document]} for number, document in enumerate(("cat", "bat", "bee"), 1)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line | {"negative_ids": []}) + "\n" for line in lines))
    sources = ("--train", tmp_path / "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    sizes = ("--epochs", 9, "--batch-size", 3, "--negatives", 0, "--document-length", 16, "--query-length", 16, "--save-minutes", 0)
    command = ("finetune", "--model", two_layers, "--arch", "dense", *sources, *sizes, "--output", tmp_path / "ckpt")
    with monkeypatch.context() as patch:
        interrupt_before_step(patch, 3)
        assert moeir(*command).code == 130
    return tmp_path / "ckpt", command


WORDS = "unfinished: step 3 of 9; run the same finetune command again to continue"
READERS = ["info", "encode", "convert", "init", "pretrain"]


def readers(folder, toy, tmp_path, names):
    """Commands that read a checkpoint; convert takes a folder of any format, not the one that is being written."""
    output = ("--output", tmp_path / "other")
    flags = {
        "info": (folder,),
        "convert": ("--input", folder, "--to", "sentence-transformers", *output),
        "init": ("--model", folder, "--arch", "splade", *output),
        "analyze": ("--model", folder, "--corpus", toy / "corpus.jsonl"),
        "finetune": ("--model", folder, "--train", tmp_path / "train.jsonl", "--corpus", toy / "corpus.jsonl", *output),
    }
    usual = ("--model", folder, "--corpus", toy / "corpus.jsonl", *output)
    names = [name for name in names if name != "convert" or not folder.name.startswith(".")]
    return [(*name.split(), *flags.get(name.split()[0], usual)) for name in names]


def test_an_interrupted_training_is_called_unfinished_until_it_is_finished(interrupted, moeir, toy, tmp_path):
    checkpoint, command = interrupted
    for folder in (checkpoint, checkpoint.with_name(".ckpt.partial")):
        for reader in readers(folder, toy, tmp_path, [*READERS, "analyze usage", "finetune", "finetune --dry-run"]):
            result = moeir(*reader)
            assert (result.code, result.stderr) == (4, f"error: {folder}: {WORDS}\n"), (reader, result)
    with pytest.raises(ArtifactError, match=WORDS):
        open_checkpoint(checkpoint)
    result = moeir("report", "--training", checkpoint)
    assert result.code == 0 and f"ckpt: {WORDS}" in result.stdout
    result = moeir(*command)
    assert result.code == 0 and "was begun with" not in result.stderr
    assert moeir("info", checkpoint).code == 0
    assert "unfinished" not in moeir("report", "--training", checkpoint).stdout


@pytest.fixture
def locked_path(tmp_path):
    """A function that locks a path, as a process that writes it does."""
    with contextlib.ExitStack() as stack:
        yield lambda path: fcntl.flock(stack.enter_context(open(WorkFolder(path).lock, "a")), fcntl.LOCK_EX)


def test_a_checkpoint_that_a_process_is_training_is_said_to_be_in_training_by_every_reader(interrupted, locked_path, moeir, toy, tmp_path):
    folder, command = interrupted
    locked_path(folder)
    words = "unfinished: step 3 of 9; a process is training it (moeir finetune); wait until it has ended"
    for named, names in ((folder, READERS), (folder.with_name(".ckpt.partial"), ["encode"])):
        for reader in readers(named, toy, tmp_path, names):
            result = moeir(*reader)
            assert (result.code, result.stderr) == (4, f"error: {named}: {words}\n"), reader
    assert words in moeir("report", "--training", folder).stdout
    assert "another process is writing it" in moeir(*command).stderr


def test_a_run_and_shards_that_a_process_is_writing_are_said_to_be_written(locked_path, moeir, tmp_path):
    (tmp_path / ".run.trec.partial").mkdir()
    (tmp_path / ".run.trec.partial/run.trec.record").write_text('{"stage": "search", "settings": {}, "sources": {}}')
    locked_path(tmp_path / "run.trec")
    result = moeir("evaluate", "--run", tmp_path / "run.trec", "--qrels", tmp_path / "run.trec")
    assert (result.code, "a process is writing it (moeir search)" in result.stderr) == (4, True)
    shard = tmp_path / "enc" / "0-of-2"
    (shard.parent / ".0-of-2.partial/0-of-2").mkdir(parents=True)
    (shard.parent / ".0-of-2.partial/0-of-2.record").write_text('{"stage": "encode", "settings": {}, "sources": {}}')
    assert "a process" not in moeir("index", "--encodings", shard.parent, "--output", tmp_path / "idx").stderr
    locked_path(shard)
    result = moeir("index", "--encodings", shard.parent, "--output", tmp_path / "idx")
    expected = f"error: {shard}: unfinished: a process is writing it (moeir encode); wait until it has ended\n"
    assert (result.code, result.stderr) == (4, expected)


def test_a_stage_without_a_saved_training_is_called_unfinished_without_a_step(moeir, tmp_path):
    (tmp_path / ".encodings.partial/encodings").mkdir(parents=True)
    (tmp_path / ".encodings.partial/encodings.record").write_text('{"stage": "encode", "settings": {}, "sources": {}}')
    result = moeir("index", "--encodings", tmp_path / "encodings", "--output", tmp_path / "index")
    assert result.code == 4 and result.stderr.endswith("encodings: unfinished: run the same encode command again to continue\n")


def test_a_training_that_goes_on_under_other_versions_says_so_and_lists_them(interrupted, moeir):
    folder, command = interrupted
    now = tokenizers.__version__
    record = WorkFolder(folder).record
    assert json.loads(record.read_text())["versions"]["tokenizers"] == now
    versions = {"tokenizers": "0.1", "numpy": f"1.0, {numpy.__version__}"}
    record.write_text(json.dumps(json.loads(record.read_text()) | {"versions": versions}))
    result = moeir(*command, "--checkpoint-every", 4)
    assert result.code == 0 and "continuing after step 3" in result.stderr
    assert f"ckpt: was begun with tokenizers 0.1, now {now}: its numbers may be those of neither; --force starts over" in result.stderr
    for name in ("ckpt", "ckpt-step-4"):
        versions = json.loads((folder.with_name(name) / "manifest.json").read_text())["versions"]
        assert (versions["tokenizers"], versions["numpy"]) == (f"0.1, {now}", f"1.0, {numpy.__version__}")
