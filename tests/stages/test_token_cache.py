"""The token cache of `moeir finetune`: shared, reused with other settings, and on a full disk."""

import json

import pytest

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones import token_files
from tests.conftest import run_in_process
from tests.kill_points import FullDisk, kill_at

SIZES = ("--batch-size", 2, "--negatives", 2, "--steps", 3, "--query-length", 12, "--document-length", 20, "--dtype", "float32")


@pytest.fixture
def finetune(examples, texts, tiny_model, tmp_path):
    """`finetune(name, …)` -> the command's result."""

    def run(name, *options, code=0):
        flags = ("--model", tiny_model, "--arch", "dense", "--train", examples, *texts, *SIZES, *options)
        result = run_in_process("finetune", *flags, "--output", tmp_path / name)
        assert result.code == code, result.stderr
        return result

    return run


def read_weights(folder):
    return (folder / "model.safetensors").read_bytes()


def list_caches(folder):
    return sorted(path.name for path in folder.iterdir())


def test_trainings_share_a_cache_and_another_prefix_is_another(finetune, tmp_path, monkeypatch):
    finetune("alone")
    shared = ("--cache", tmp_path / "cache")
    finetune("one", *shared)
    (cache_name,) = list_caches(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalModel, "token_ids", None)  # no text is tokenized again
        finetune("two", *shared, "--learning-rate", 1e-3)
        finetune("one", *shared, "--force")
    assert list_caches(tmp_path / "cache") == [cache_name]
    assert read_weights(tmp_path / "alone") == read_weights(tmp_path / "one") != read_weights(tmp_path / "two")
    finetune("prefixed", *shared, "--query-prefix", "query: ")
    finetune("shorter", *shared, "--document-length", 9)
    assert len(list_caches(tmp_path / "cache")) == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_tokens_of_another_version_of_the_library_are_made_again(finetune, tmp_path, monkeypatch):
    finetune("one", "--cache", tmp_path / "cache")
    monkeypatch.setattr("tokenizers.__version__", "9.9")
    finetune("two", "--cache", tmp_path / "cache")
    assert len(list_caches(tmp_path / "cache")) == 2


def test_a_token_cache_alone_does_not_block_a_run_with_other_settings(finetune, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 3)
    finetune("faster", "--learning-rate", 1e-3)
    assert kill_at(lambda: finetune("other"), 36)
    finetune("other", "--learning-rate", 1e-3)
    assert read_weights(tmp_path / "other") == read_weights(tmp_path / "faster")


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(shared, finetune, tmp_path, monkeypatch, capfd):
    many = [{"docid": f"x{row}", "text": f"{row} owls hunt bees " * 9} for row in range(500)]
    long = {"query_id": "x", "query": "who hunts", "positive_passages": many[:1], "negative_passages": many[1:]}
    (tmp_path / "long.jsonl").write_text(json.dumps(long) + "\n")
    monkeypatch.setattr(token_files, "MAX_CHUNK_TEXTS", 100)
    options = ("--train", tmp_path / "long.jsonl", *(("--cache", tmp_path / "cache") if shared else ()))
    full = FullDisk(tmp_path, bytes=12_000)
    result = finetune("out", *options, code=1)
    full.close()
    assert len(result.stderr.strip().splitlines()) == 1 and "texts-" in result.stderr and "File too large" in result.stderr
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.glob("cache/.texts-*.partial"))
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.partial").exists()
    finetune("out", *options)


def test_a_cache_that_cannot_be_is_one_line(finetune, tmp_path):
    (tmp_path / "file").write_text("mine")
    result = finetune("out", "--cache", tmp_path / "file", code=2)
    assert len(result.stderr.strip().splitlines()) == 1 and f"{tmp_path}/file" in result.stderr
