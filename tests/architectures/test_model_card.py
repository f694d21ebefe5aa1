"""The model card of a checkpoint: huggingface_hub reads its metadata, and it names nothing of the machine that made it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData

from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.model_card import write_model_card


def read_card(checkpoint):
    card = ModelCard((checkpoint / "README.md").read_text(encoding="utf-8"))
    assert isinstance(card.data, ModelCardData)
    return card


@pytest.fixture
def private_room(tmp_path, tiny_model_with_head, monkeypatch):
    """A folder of a private name with the weights in it, where commands run."""
    room = tmp_path / "home-of-anna"
    room.mkdir()
    (room / "secret-weights").symlink_to(tiny_model_with_head)
    monkeypatch.chdir(room)
    return room


def test_a_card_names_no_local_file(moeir, private_room):
    assert moeir("init", "--model", "secret-weights", "--arch", "dense", "--output", "first").code == 0
    for base in (Path("/home/anna/secret.gguf"), Path("anna/secret.gguf")):
        (private_room / "anna").mkdir(exist_ok=True)
        (private_room / "anna" / "secret.gguf").write_text("")
        write_model_card(private_room / "first", open_checkpoint(private_room / "first"), base=base, training=None)
        assert "secret" not in str(read_card(private_room / "first"))


@pytest.mark.parametrize(("arch", "absolute"), [("dense", True), ("came:shared_layers=2,local_dim=8", False), ("cross-encoder", False)])
def test_a_card_names_no_local_folder(arch, absolute, moeir, private_room):
    weights = private_room / "secret-weights" if absolute else Path("secret-weights")
    assert moeir("init", "--model", weights, "--arch", arch, "--output", "private-output").code == 0
    card = read_card(private_room / "private-output")
    for name in ("secret", "private", "anna", str(private_room)):
        assert name not in str(card)
    assert card.data.base_model is None and "on local weights" in card.text and "--model CHECKPOINT" in card.text
    assert card.data.library_name == "moeir" and arch.split(":")[0] in card.data.tags
    assert card.data.pipeline_tag == ("text-ranking" if arch == "cross-encoder" else "sentence-similarity")
    assert ("mixture-of-experts" in card.data.tags) == arch.startswith("came")
    assert ("sentence-transformers" in card.data.tags) == (arch == "dense")
    assert card.data.eval_results is None


def test_the_frozen_weights_under_adapters_are_named_if_others_can_have_them(moeir, private_room):
    assert moeir("init", "--model", "secret-weights", "--arch", "dense:adapters=4", "--output", "first").code == 0
    card, checkpoint = read_card(private_room / "first"), open_checkpoint(private_room / "first")
    assert card.data.base_model is None and "on local weights (frozen, and not part of this checkpoint), " in card.text
    assert not {"secret", "anna"} & set(re.findall(r"[a-z]+", str(card)))
    trunk = replace(checkpoint.trunk, model="org/weights-1.5", revision="1" * 40)
    write_model_card(private_room / "first", replace(checkpoint, trunk=trunk), base=private_room / "first", training=None)
    card = read_card(private_room / "first")
    assert card.data.base_model == "org/weights-1.5"
    assert f"on `org/weights-1.5` at commit `{'1' * 40}` (frozen, and not part of this checkpoint), " in card.text


def test_weights_of_the_hub_are_named_also_by_the_checkpoints_made_from_them(moeir, private_room):
    assert moeir("init", "--model", "secret-weights", "--arch", "dense", "--output", "first").code == 0
    write_model_card(private_room / "first", open_checkpoint(private_room / "first"), base=Path("org/weights-1.5"), training=None)
    card = read_card(private_room / "first")
    assert card.data.base_model == "org/weights-1.5" and "on `org/weights-1.5`" in card.text
    write_model_card(private_room / "first", open_checkpoint(private_room / "first"), base=private_room / "first", training=None)
    assert read_card(private_room / "first").data.base_model == "org/weights-1.5"
    (private_room / "first" / "README.md").write_text("---\nbase_model: /home/anna/weights\n---\n")
    write_model_card(private_room / "first", open_checkpoint(private_room / "first"), base=private_room / "first", training=None)
    assert read_card(private_room / "first").data.base_model is None


def test_a_development_measure_is_an_evaluation_result_of_the_card(moeir, toy, training_files, private_room):
    development = ("--dev-queries", toy / "test-queries.tsv", "--dev-qrels", toy / "test-qrels.tsv", "--dev-measure", "RR@10")
    sizes = ("--steps", 1, "--batch-size", 2, "--negatives", 0, "--query-length", 16, "--document-length", 32)
    model = ("--model", "secret-weights", "--arch", "dense", "--output", "private-output")
    assert moeir("finetune", *model, *training_files, *development, *sizes).code == 0
    card = read_card(private_room / "private-output")
    (result,) = card.data.eval_results
    counts = json.loads((private_room / "private-output" / "manifest.json").read_text())["counts"]["development"]
    assert (result.task_type, result.metric_type, result.metric_name) == ("information-retrieval", "rr@10", "RR@10")
    assert result.metric_value == pytest.approx(counts["value"], abs=1e-6)
    assert card.data.model_name == "dense retriever" and str(counts["queries"]) in result.dataset_name
    for name in ("secret", "private", "anna", str(toy)):
        assert name not in str(card)
