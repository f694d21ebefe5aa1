"""Weight names convert from ours to a family's and back; unknown names pass unchanged."""

import importlib

import pytest
import torch

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


@pytest.mark.parametrize("masked_lm", [True, False])
@pytest.mark.parametrize("family", weights_io.FAMILIES)
def test_names_of_architectures_survive_every_family(family, masked_lm):
    kin = importlib.import_module(f"moeir.backbones.families.{family}")
    assert {name: kin.from_hf(kin.to_hf(name, masked_lm=masked_lm)) for name in STRANGERS} == {name: name for name in STRANGERS}


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_name_of_an_encoder_survives_its_own_family(name, tmp_path):
    config = make_model(name).config.to_dict()
    kin = weights_io.import_family(config, tmp_path)
    with torch.device("meta"):
        weights = Encoder(kin.parse_config(config), vocabulary_head=True, pooler="roberta" in name).state_dict()
    for masked_lm in (True, False):
        theirs = {mine: kin.to_hf(mine, masked_lm=masked_lm) for mine in weights}
        assert len(set(theirs.values())) == len(weights)
        last = config.get("num_hidden_layers", config.get("n_layers", 0)) - 1
        back = {mine: (kin.from_hf(other) or "").replace("layers.last.", f"layers.{last}.") for mine, other in theirs.items()}
        assert back == {mine: mine for mine in weights}


def test_every_family_offers_the_same():
    for family in weights_io.FAMILIES:
        kin = importlib.import_module(f"moeir.backbones.families.{family}")
        assert kin.hf_class_name(masked_lm=True).endswith("ForMaskedLM") and kin.hf_class_name(masked_lm=False).endswith("Model")
        assert set(kin.TIED.values()) <= {"embeddings.words.weight", "vocabulary_head.bias"} and kin.NAMES.prefix.endswith(".")
