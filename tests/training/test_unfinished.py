"""Wherever the checkpoint of an interrupted training is asked for, the answer is how far it came and how it is finished."""

import json

import numpy
import pytest
import tokenizers

from moeir.architectures.checkpoint import open_checkpoint
from moeir.errors import ArtifactError
from moeir.training import trainer


@pytest.fixture
def interrupted(moeir, toy, tiny_model_with_head, tmp_path, monkeypatch):
    """A training stopped in its fourth step of nine, and its command."""
    lines = [{"query_id": f"t{number}", "positive_ids": [document]} for number, document in enumerate(("cat", "bat", "bee"), 1)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line | {"negative_ids": []}) + "\n" for line in lines))
    sources = ("--train", tmp_path / "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    sizes = ("--epochs", 9, "--batch-size", 3, "--negatives", 0, "--document-length", 16, "--query-length", 16, "--save-minutes", 0)
    command = ("finetune", "--model", tiny_model_with_head, "--arch", "dense", *sources, *sizes, "--output", tmp_path / "ckpt")
    step = trainer._Trainer.step

    def stop(self, number):
        if number == 3:
            raise KeyboardInterrupt
        step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(trainer._Trainer, "step", stop)
        assert moeir(*command).code == 130
    return tmp_path / "ckpt", command


WORDS = "unfinished: step 3 of 9; run the same finetune command again to continue"


@pytest.mark.parametrize("place", ["ckpt", ".ckpt.partial"])
def test_an_interrupted_training_is_called_unfinished(place, interrupted, moeir, toy, tmp_path):
    folder = interrupted[0].with_name(place)
    texts = ("--corpus", toy / "corpus.jsonl", "--output", tmp_path / "other")
    commands = [
        ("info", folder),
        ("encode", "--model", folder, *texts),
        ("analyze", "shares", "--model", folder),
        ("convert", "--input", folder, "--to", "sentence-transformers", "--output", tmp_path / "other"),
        ("finetune", "--model", folder, "--train", tmp_path / "train.jsonl", *texts),
        ("finetune", "--model", folder, "--train", tmp_path / "train.jsonl", *texts, "--dry-run"),
        ("init", "--model", folder, "--arch", "splade", "--output", tmp_path / "other"),
        ("pretrain", "--model", folder, *texts),
    ]
    for command in commands:
        if command[0] == "convert" and place != "ckpt":  # it takes a folder of any format
            continue
        result = moeir(*command)
        assert (result.code, result.stderr) == (4, f"error: {folder}: {WORDS}\n"), (command, result)


def test_opening_an_unfinished_checkpoint_says_so(interrupted):
    with pytest.raises(ArtifactError, match=WORDS):
        open_checkpoint(interrupted[0])


def test_a_report_of_an_interrupted_training_says_how_to_finish_it(interrupted, moeir):
    result = moeir("report", "--training", interrupted[0])
    assert result.code == 0 and f"ckpt: {WORDS}" in result.stdout


def test_after_it_is_finished_nothing_is_called_unfinished(interrupted, moeir):
    folder, command = interrupted
    assert moeir(*command).code == 0
    assert moeir("info", folder).code == 0
    assert "unfinished" not in moeir("report", "--training", folder).stdout


def test_a_stage_without_a_saved_training_is_called_unfinished_without_a_step(moeir, tmp_path):
    (tmp_path / ".encodings.partial").mkdir()
    (tmp_path / ".encodings.record").write_text('{"stage": "encode", "settings": {}, "sources": {}}')
    result = moeir("index", "--encodings", tmp_path / "encodings", "--output", tmp_path / "index")
    assert result.code == 4 and result.stderr.endswith("encodings: unfinished: run the same encode command again to continue\n")


def test_a_training_that_goes_on_under_other_versions_says_so_and_lists_them(interrupted, moeir):
    folder, command = interrupted
    now = tokenizers.__version__
    record = folder.with_name(".ckpt.record")
    versions = {"tokenizers": "0.1", "numpy": f"1.0, {numpy.__version__}"}
    record.write_text(json.dumps(json.loads(record.read_text()) | {"versions": versions}))
    result = moeir(*command)
    assert result.code == 0 and "continuing after step 3" in result.stderr
    assert f"ckpt: was begun with tokenizers 0.1, now {now}: its numbers may be those of neither; --force starts over" in result.stderr
    versions = json.loads((folder / "manifest.json").read_text())["versions"]
    assert (versions["tokenizers"], versions["numpy"]) == (f"0.1, {now}", f"1.0, {numpy.__version__}")


def test_a_training_that_goes_on_under_the_same_versions_says_nothing(interrupted, moeir):
    result = moeir(*interrupted[1])
    assert result.code == 0 and "was begun with" not in result.stderr


def test_an_interrupted_training_records_its_versions(interrupted, moeir, monkeypatch):
    folder, command = interrupted
    monkeypatch.setattr("tokenizers.__version__", "9.9")
    result = moeir(*command)
    assert result.code == 0 and "was begun with tokenizers" in result.stderr and "now 9.9" in result.stderr
    assert json.loads((folder / "manifest.json").read_text())["versions"]["tokenizers"].endswith(", 9.9")
