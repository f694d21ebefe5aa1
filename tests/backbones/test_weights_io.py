"""transformers writes → we read → we write → transformers reads: the same tensors, bit by bit."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForMaskedLM, BertForPreTraining

from moeir.backbones.families import weights_io
from moeir.errors import ArtifactError, MoeirError
from tests.architectures.folders import assert_refused, change_json
from tests.backbones.tiny_models import make_model


def drop(part):
    return lambda weights: {name: value for name, value in weights.items() if part not in name}


def changed(folder, change):
    """Rewrite the weights of a folder under other names or values."""
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture
def written(tmp_path):
    make_model("bert").save_pretrained(tmp_path)
    return tmp_path


def test_a_model_with_every_head_is_read(tmp_path):
    theirs = BertForPreTraining(make_model("bert").config)
    theirs.save_pretrained(tmp_path)
    weights = weights_io.read_weights(tmp_path, weights_io.read_config(tmp_path))
    assert torch.equal(weights["pooler.weight"], theirs.bert.pooler.dense.weight)
    changed(tmp_path, lambda weights: weights | {"qa_outputs.weight": torch.zeros(2, 24), "linear.weight": torch.zeros(8, 24)})
    ours = weights_io.read_encoder(tmp_path)
    assert torch.equal(ours.vocabulary_head.bias, theirs.cls.predictions.bias)


def test_old_names_and_position_ids_are_understood(written):
    expected = weights_io.read_encoder(written).state_dict()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def renamed(weights):
        for new, name in old.items():
            weights = {key.replace(new, name): value for key, value in weights.items()}
        return weights | {"bert.embeddings.position_ids": torch.arange(16)[None]}

    changed(written, renamed)
    weights_read = weights_io.read_encoder(written).state_dict()
    assert weights_read.keys() == expected.keys() and all(torch.equal(weights_read[name], expected[name]) for name in expected)


def test_half_precision_is_read_as_float32(written):
    changed(written, lambda weights: {name: value.half() for name, value in weights.items()})
    change_json(written / "config.json", torch_dtype="float16")
    ours = weights_io.read_encoder(written)
    assert {value.dtype for value in ours.state_dict().values()} == {torch.float32}
    weights_io.write_model(written, weights_io.read_config(written), ours.state_dict(), hf_compatible=True)
    config = weights_io.read_config(written)
    assert config["dtype"] == "float32" and "torch_dtype" not in config


@pytest.mark.parametrize(
    "change, message",
    [
        (drop("layer.1.output.dense.bias"), r"missing, first encoder.layer.1.output.dense.bias \(1 in all"),
        (drop("transform.dense.bias"), r"missing, first cls.predictions.transform.dense.bias"),
        (lambda w: w | {"bert.encoder.layer.1.w1": torch.zeros(5)}, r"1 weights are not read, first bert.encoder.layer.1.w1: config"),
        (lambda w: w | {"bert.embeddings.LayerNorm.bias": torch.zeros(5)}, r"norm.bias has shape \[5\]; config.json says \[24\]"),
        (lambda w: w | {"cls.predictions.decoder.weight": torch.zeros(61, 24)}, "differs from embeddings.words.weight"),
        (lambda w: w | {"cls.predictions.decoder.bias": torch.full((61,), 9.0)}, "differs from vocabulary_head.bias"),
    ],
)
def test_faulty_weights_are_refused(change, message, written):
    changed(written, change)
    assert_refused(ArtifactError, message, weights_io.read_encoder, written)


@pytest.mark.parametrize("device, reader", [("cpu", "load_file"), ("meta", "safe_open")])
def test_weights_that_the_system_cannot_map_are_told_in_one_line(monkeypatch, written, device, reader):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap 4 bytes: No such device (19)")

    monkeypatch.setattr(weights_io, reader, fail)
    with pytest.raises(MoeirError, match=r"model.safetensors: cannot be read: unable to mmap 4 bytes: No such device"):
        weights_io.read_weights(written, weights_io.read_config(written), device=device)


def test_weights_that_cannot_be_opened_are_not_called_missing(monkeypatch, written):
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    config = weights_io.read_config(written)
    monkeypatch.setattr("builtins.open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        weights_io.read_weights(written, config)


def test_missing_shards_are_refused(written):
    BertForMaskedLM.from_pretrained(written).save_pretrained(written / "shards", max_shard_size="20KB")
    last = sorted((written / "shards").glob("model-*.safetensors"))[-1]
    last.unlink()
    with pytest.raises(ArtifactError, match=rf"no {last.name}, which its index names \(1 of \d+ files are missing\)"):
        weights_io.read_encoder(written / "shards")
    (written / "model.safetensors").unlink()
    assert_refused(ArtifactError, r"no model.safetensors; convert", weights_io.read_encoder, written)


def test_what_a_kill_within_the_writing_left_is_gone_after_the_next(tmp_path):
    weights = {"weight": torch.ones(2_000_000)}
    for _ in range(100):  # a kill may come between two writings
        child = os.fork()
        if child == 0:
            try:
                while True:
                    weights_io.write_tensors(weights, tmp_path / "model.safetensors")
            finally:
                os._exit(70)
        while not list(tmp_path.glob(".tmp??????")):
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if left := [path.name for path in tmp_path.iterdir() if path.name != "model.safetensors"]:
            break
    assert left
    weights_io.write_tensors(weights, tmp_path / "model.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
