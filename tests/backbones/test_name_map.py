"""Weight names convert from ours to a family's and back; unknown names pass unchanged."""

import importlib

import pytest
import torch
import transformers

from moeir.backbones.encoder import Encoder
from moeir.backbones.families import weights_io
from tests.backbones.tiny_models import TINY_MODELS, make_model

STRANGERS = (
    "layers.3.feedforward.experts.0.up.weight",
    "layers.3.feedforward.experts.1.norm.bias",
    "layers.0.feedforward.gate.bias",
    "document_encoder.layers.0.attention.query.weight",
    "document_encoder.embeddings.words.weight",
    "document_encoder.layers.2.closing.weight",
    "document_encoder.vocabulary_head.bias",
    "towers.local.0.attention.query.weight",
    "towers.lexical.1.closing.weight",
    "private_embeddings.local.norm.weight",
    "heads.local.projection.weight",
    "heads.global.projection.0.bias",
    "mixture.experts.0.up.weight",
    "router.weight",
    "score.bias",
)


@pytest.mark.parametrize("has_head", [True, False])
@pytest.mark.parametrize("family", weights_io.FAMILIES)
def test_names_of_architectures_survive_every_family(family, has_head):
    names = importlib.import_module(f"moeir.backbones.families.{family}").NAMES
    theirs = [names.to_hf(name, has_head=has_head) for name in STRANGERS]
    assert tuple(names.from_hf(theirs, 4).values()) == STRANGERS


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_name_of_an_encoder_survives_its_own_family(name, tmp_path):
    config = make_model(name).config.to_dict()
    family = weights_io.import_family(config, tmp_path)
    with torch.device("meta"):
        encoder = Encoder(family.parse_config(config), vocabulary_head=True)
        encoder.pooler = torch.nn.Linear(2, 2) if "roberta" in name else None
    for has_head in (True, False):
        theirs = [family.NAMES.to_hf(own, has_head=has_head) for own in encoder.state_dict()]
        assert list(family.NAMES.from_hf(theirs, encoder.config.layers).values()) == list(encoder.state_dict())


@pytest.mark.parametrize(
    "family, own, theirs",
    [
        ("bert", "layers.3.feedforward.down.weight", "bert.encoder.layer.3.output.dense.weight"),
        ("distilbert", "layers.3.attention.norm.bias", "distilbert.transformer.layer.3.sa_layer_norm.bias"),
        ("distilbert", "vocabulary_head.decoder.weight", "vocab_projector.weight"),
        ("electra", "embeddings.project.bias", "electra.embeddings_project.bias"),
        ("electra", "vocabulary_head.bias", "generator_lm_head.bias"),
        ("roberta", "vocabulary_head.norm.bias", "lm_head.layer_norm.bias"),
        ("modernbert", "layers.3.attention.joint.weight", "model.layers.3.attn.Wqkv.weight"),
        ("modernbert", "layers.21.closing.weight", "model.final_norm.weight"),
    ],
)
def test_names_are_those_of_the_family(family, own, theirs):
    names = importlib.import_module(f"moeir.backbones.families.{family}").NAMES
    assert names.to_hf(own, has_head=True) == theirs and names.from_hf([theirs], 22) == {theirs: own}


def test_weights_that_are_not_part_of_an_encoder_are_not_read():
    for family, name in (("bert", "embeddings.position_ids"), ("electra", "discriminator_predictions.dense.weight")):
        assert importlib.import_module(f"moeir.backbones.families.{family}").NAMES.from_hf([name], 2) == {}


def test_every_family_offers_the_same():
    for family in weights_io.FAMILIES:
        names = importlib.import_module(f"moeir.backbones.families.{family}").NAMES
        assert hasattr(transformers, f"{names.class_prefix}ForMaskedLM") and hasattr(transformers, f"{names.class_prefix}Model")
        assert names.prefix.endswith(".")
