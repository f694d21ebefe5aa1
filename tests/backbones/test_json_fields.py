"""A downloaded config.json or index of weights with values of other types or sizes is refused in one line, before anything is built."""

import json
import math
import shutil
import signal
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeir.architectures import checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones import query_generator
from moeir.backbones.families import weights_io
from moeir.backbones.json_fields import FIELDS, CheckedFields, read_json_object
from moeir.errors import ArtifactError, MoeirError, UsageError
from tests.backbones.tiny_models import make_model

MUTANTS = (None, True, 0, -1, 1.5, 2**31, 10**30, 1e300, math.nan, math.inf, "x", "1", "", [], [1], {}, {"a": 1}, "\ud800")
DROPOUT, FLAG = (0,), (True,)
FINE = {  # values of MUTANTS that a field may have; every other one is refused
    **dict.fromkeys(
        ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "seq_classif_dropout"), DROPOUT
    ),
    **dict.fromkeys(("mlp_dropout", "embedding_dropout", "dropout_rate", "initializer_range", "initializer_factor"), DROPOUT),
    "classifier_dropout": (None, 0),
    "pad_token_id": (None, 0),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias"), FLAG),
    **dict.fromkeys(("layer_types", "rope_scaling"), (None,)),
    "rope_parameters": (None, {}, {"a": 1}),
}
FINE_IN_T5 = FINE | {
    **dict.fromkeys(("eos_token_id", "decoder_start_token_id"), (None, 0)),
    "initializer_factor": (0, 1.5),
    "num_decoder_layers": (None,),
    **dict.fromkeys(("tie_word_embeddings", "scale_decoder_outputs", "is_decoder"), FLAG),
}
SIZES = [
    ("vocab_size", 10_000_000),
    ("hidden_size", 65_536),
    ("intermediate_size", 65_536),
    ("max_position_embeddings", 10_000_000),
    ("type_vocab_size", 1000),
    ("num_hidden_layers", 1000),
]


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


@contextmanager
def time_limit(seconds):
    """TimeoutError in the code of the block after some seconds."""

    def stop(*_):
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def accepted(fields, names, folder, parse):
    """The values of MUTANTS that `parse` accepts, by field; whatever it refuses is one short line with the file and the field."""
    values = {}
    for name in names:
        for value in MUTANTS:
            try:
                with time_limit(5):
                    parse(fields | {name: value})
            except MoeirError as problem:
                message = str(problem)
                assert f"{folder}/config.json: " in message and "\n" not in message, (name, value, message)
                assert name in message or "activation" in message, (name, value, message)
                assert len(message) < len(str(folder)) + 200, (name, value, message)
            else:
                values.setdefault(name, []).append(value)
    return values


def allowed(names, fine):
    return {name: list(fine[name]) for name in names if name in fine}


@pytest.mark.parametrize("name", ["bert", "roberta", "electra-small", "distilbert", "modernbert-biases"])
def test_every_field_that_a_family_reads_has_a_type_and_a_range(name, tmp_path):
    make_model(name, head=False).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    family, noted = weights_io.import_family(fields, tmp_path), ReadFields(fields)
    family.parse_config(noted)
    refused_elsewhere = {"position_embedding_type", "rope_scaling", "classifier_pooling"}  # one value is supported, or two
    assert noted.names - refused_elsewhere <= FIELDS.keys()

    def parse(mutant):
        weights_io.parse_encoder_config(mutant, tmp_path)

    assert accepted(fields, noted.names, tmp_path, parse) == allowed(noted.names, FINE)


def test_every_field_of_t5_has_a_type_and_a_range(t5_model):
    fields = read_json_object(t5_model / "config.json")
    names = [name for name in fields if name in FIELDS]
    assert len(names) > 15

    def check(mutant):
        CheckedFields(mutant, t5_model / "config.json").check_all()

    assert accepted(fields, names, t5_model, check) == allowed(names, FINE_IN_T5)


BAD_T5 = [("d_ff", True), ("feed_forward_proj", 7), ("num_layers", 1000), ("dense_act_fn", "x"), ("dtype", "x")]


@pytest.mark.parametrize("field, value", BAD_T5)
def test_a_bad_field_of_t5_is_one_line(field, value, t5_model, tmp_path):
    shutil.copytree(t5_model, tmp_path / "t5")
    fields = read_json_object(tmp_path / "t5" / "config.json")
    (tmp_path / "t5" / "config.json").write_text(json.dumps(fields | {field: value}))
    with pytest.raises(ArtifactError) as caught, time_limit(20):
        query_generator.T5QueryGenerator(tmp_path / "t5", "cpu", torch.float32)
    assert str(tmp_path / "t5") in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("field, value", SIZES)
def test_nothing_is_built_for_sizes_that_the_weights_do_not_have(field, value, tiny_model, came_checkpoint, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("built before its sizes were compared")

    monkeypatch.setattr(weights_io, "Encoder", refuse)
    monkeypatch.setattr(checkpoint, "Encoder", refuse)
    for name, folder, read in (("plain", tiny_model, weights_io.read_encoder), ("came", came_checkpoint, checkpoint.open_checkpoint)):
        shutil.copytree(folder, tmp_path / name)
        fields = read_json_object(folder / "config.json")
        (tmp_path / name / "config.json").write_text(json.dumps(fields | {field: value}))
        words = r"has shape \[.*\]; config.json says \[.*\]|weights are missing, first layers.4|config.json: num_hidden_layers is 1000, and"
        with pytest.raises(ArtifactError, match=words):
            read(tmp_path / name)


def test_layers_that_the_config_leaves_out_are_named(tiny_model, tmp_path, caplog):
    shutil.copytree(tiny_model, tmp_path / "tiny")
    fields = read_json_object(tiny_model / "config.json")
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 3}))
    weights_io.read_encoder(tmp_path / "tiny")
    assert "16 weights are not read, first layers.3." in caplog.text
    caplog.clear()
    weights_io.read_encoder(tiny_model)
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["[" * 100_000, '"x"', "null", "[[1, 2]]", '{"a": ' + "9" * 5000 + "}", "{", b"\xff"])
def test_a_file_that_holds_no_object_is_one_line(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ArtifactError, match=r"config.json: not a JSON object; expected the file that came with the weights"):
        weights_io.read_config(tmp_path)


@pytest.mark.parametrize(
    "weight_map",
    [
        *(None, {}, [], "model.safetensors", 7, {"a": None}, {"a": 7}, {"a": ["x"]}, {"a": {}}, {"a": ""}, {"a": "."}, {"a": ".."}),
        *({"a": "../model.safetensors"}, {"a": "/model.safetensors"}, {"a": "b/model.safetensors"}, {"a": "model.bin"}),
        *({"a": "model.safetensors\0.safetensors"}, {"a": "b\\model.safetensors"}, {"a": "absent.safetensors"}),
        {"a": "folder.safetensors"},
    ],
)
def test_an_index_names_files_beside_it(weight_map, tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copy(tiny_model / "model.safetensors", tmp_path)
    (tmp_path / "model" / "folder.safetensors").mkdir()
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ArtifactError, match=r"index.json: damaged: |which its index names|either could be meant") as caught:
        weights_io.read_encoder(tmp_path / "model")
    assert str(tmp_path / "model") in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_of_half_a_layer_and_whole_numbers_for_weights_are_refused(tiny_model, tmp_path):
    weights = load_file(tiny_model / "model.safetensors")
    shutil.copytree(tiny_model, tmp_path / "model")
    save_file(weights | {"encoder.layer.3": torch.zeros(1)}, tmp_path / "model" / "model.safetensors")
    weights_io.read_encoder(tmp_path / "model")  # a weight that no layer has
    words = "embeddings.word_embeddings.weight"
    save_file(weights | {words: weights[words].to(torch.int8)}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"embeddings.words.weight is of torch.int8; moeir reads weights that are not quantised"):
        weights_io.read_encoder(tmp_path / "model")


def test_a_bias_without_dimension_is_refused(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    head = {"classifier.weight": torch.zeros(2, 32), "classifier.bias": torch.tensor(0.0)}
    save_file(load_file(tiny_model / "model.safetensors") | head, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"output.bias has shape \[0\]; config.json says \[1\]"):
        build_checkpoint(tmp_path / "model", "cross-encoder", {})


def test_an_unsupported_value_names_the_folder(tmp_path):
    make_model("bert", head=False).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/config.json: activation 'mish'"):
        weights_io.parse_encoder_config(weights_io.read_config(tmp_path) | {"hidden_act": "mish"}, tmp_path)
