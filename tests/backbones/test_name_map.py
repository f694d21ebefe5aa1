"""Names of weights that architectures add; those of encoders are compared with files of transformers in test_families."""

import importlib

import pytest

from moeir.backbones.families import weights_io

STRANGERS = (
    "layers.3.feedforward.experts.0.up.weight",
    "layers.3.feedforward.experts.1.norm.bias",
    "layers.0.feedforward.gate.bias",
    "document_encoder.layers.0.attention.query.weight",
    "document_encoder.embeddings.words.weight",
    "document_encoder.layers.2.final_norm.weight",
    "document_encoder.vocabulary_head.bias",
    "towers.local.0.attention.query.weight",
    "towers.lexical.1.final_norm.weight",
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
