"""A downloaded config.json or index of weights with values of other types or sizes is refused in one line, before anything is built."""

import itertools
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeir.architectures import checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.families import weights_io
from moeir.backbones.json_fields import FIELDS, read_json_object
from moeir.errors import ArtifactError, MoeirError, UsageError
from tests.architectures.folders import assert_refused, change_json
from tests.backbones.tiny_models import make_model

MUTANTS = (True, -1, math.nan, math.inf, "x", "1", "", [], [1])


class ReadFields(dict):
    """The fields of a config.json, which notes those that are read."""

    def __init__(self, fields):
        super().__init__(fields)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra-small", "distilbert", "modernbert-biases"])
def test_every_field_that_a_family_reads_has_a_type_and_a_range(name, tmp_path):
    make_model(name, head=False).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    family, noted = weights_io.import_family(fields, tmp_path), ReadFields(fields)
    family.parse_config(noted)
    refused_elsewhere = {"position_embedding_type", "is_decoder", "rope_scaling", "classifier_pooling"}  # one value is supported, or two
    assert noted.names - refused_elsewhere <= FIELDS.keys()
    for name, value in itertools.product(noted.names, MUTANTS):
        try:
            weights_io.parse_encoder_config(fields | {name: value}, tmp_path)
        except MoeirError as problem:
            message = str(problem)
            assert f"{tmp_path}/config.json: " in message and "\n" not in message and len(message) < len(str(tmp_path)) + 200
        else:
            assert FIELDS.get(name, (type(value),)) in ((type(value),), (type(value), None)), (name, value)


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings"])
def test_sizes_that_no_model_has_are_refused(field, tiny_model):
    fields = read_json_object(tiny_model / "config.json")
    for value in (0, 10**30):
        with pytest.raises(UsageError, match=rf"config.json: \w+ is {value}; expected 1 to "):
            weights_io.parse_encoder_config(fields | {field: value}, tiny_model)


@pytest.mark.parametrize(
    "field, value", [("vocab_size", 1000), ("hidden_size", 64), ("intermediate_size", 96), ("num_hidden_layers", 1000)]
)
def test_sizes_that_the_weights_do_not_have_are_refused(field, value, tiny_model, came_checkpoint, tmp_path):
    for name, folder, read in (("plain", tiny_model, weights_io.read_encoder), ("came", came_checkpoint, checkpoint.open_checkpoint)):
        shutil.copytree(folder, tmp_path / name)
        change_json(tmp_path / name / "config.json", **{field: value})
        words = r"has shape \[.*\]; config.json says \[.*\]|num_hidden_layers is 1000, and there are only"
        assert_refused(ArtifactError, words, read, tmp_path / name)


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "[[1, 2]]", "{", b"\xff"])
def test_a_file_that_holds_no_object_is_one_line(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArtifactError, match=r"config.json: not a JSON object; expected the file that came with the weights"):
        weights_io.read_config(tmp_path)


@pytest.mark.parametrize(
    "weight_map",
    [
        *(None, {}, [], {"a": 7}, {"a": "/model.safetensors"}, {"a": "model.bin"}),
        {"a": "../model.safetensors", "b": "model.safetensors"},
    ],
)
def test_an_index_names_files_beside_it(weight_map, tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model.safetensors")
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ArtifactError, match=r"index.json: damaged: expected a weight_map of .safetensors files") as caught:
        weights_io.read_encoder(tmp_path / "model")
    assert str(tmp_path / "model") in str(caught.value) and "\n" not in str(caught.value)


def test_weights_that_the_config_leaves_out_of_whole_numbers_or_without_dimension_are_refused(tiny_model, tmp_path):
    weights = load_file(tiny_model / "model.safetensors")
    model, words = shutil.copytree(tiny_model, tmp_path / "model"), "embeddings.word_embeddings.weight"
    change_json(model / "config.json", num_hidden_layers=3)
    with pytest.raises(ArtifactError, match=r"16 weights are not read, first encoder.layer.3\..*; expected files of one model"):
        weights_io.read_encoder(model)
    shutil.copy(tiny_model / "config.json", model)
    save_file(weights | {words: weights[words].to(torch.int8)}, model / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"embeddings.words.weight is of torch.int8; moeir reads weights that are not quantised"):
        weights_io.read_encoder(model)
    head = {"classifier.weight": torch.zeros(2, 32), "classifier.bias": torch.tensor(0.0)}
    save_file(weights | head, model / "model.safetensors")
    assert_refused(ArtifactError, r"output.bias has shape \[0\]; config.json says \[1\]", build_checkpoint, model, "cross-encoder", {})
