"""DistilBERT: BERT's layers under names of their own, without segments and pooler (Sanh et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import EMBEDDING_NAMES
from moeir.backbones.families.name_map import NameMap

NAMES = NameMap(
    prefix="distilbert.",
    layer_prefix="transformer.layer.",
    model=EMBEDDING_NAMES,
    layers={
        "attention.query.": "attention.q_lin.",
        "attention.key.": "attention.k_lin.",
        "attention.value.": "attention.v_lin.",
        "attention.output.": "attention.out_lin.",
        "attention.norm.": "sa_layer_norm.",
        "feedforward.up.": "ffn.lin1.",
        "feedforward.down.": "ffn.lin2.",
        "feedforward.norm.": "output_layer_norm.",
    },
    head={
        "vocabulary_head.transform.": "vocab_transform.",
        "vocabulary_head.norm.": "vocab_layer_norm.",
        "vocabulary_head.bias": "vocab_projector.bias",
        "vocabulary_head.decoder.": "vocab_projector.",
    },
    classifier={"heads.relevance.dense.": "pre_classifier.", "heads.relevance.output.": "classifier."},
    skipped_prefixes=("embeddings.position_ids",),
)
TIED = {"vocabulary_head.decoder.weight": "embeddings.words.weight"}


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a DistilBERT config.json."""
    return EncoderConfig(
        vocabulary=config["vocab_size"],
        hidden=config["dim"],
        layers=config["n_layers"],
        heads=config["n_heads"],
        intermediate_size=config["hidden_dim"],
        activation=config.get("activation", "gelu"),
        positions=config.get("max_position_embeddings", 512),
        segments=0,
        dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.1),
        initializer_range=config.get("initializer_range", 0.02),
        classification_head=ClassificationHeadConfig("relu", config.get("seq_classif_dropout", 0.2)),
    )


def from_hf(name: str) -> str | None:
    """Convert a weight name of DistilBERT to ours; None for weights that are not read; unknown names pass unchanged.

    >>> from_hf("distilbert.transformer.layer.3.ffn.lin2.weight"), from_hf("vocab_projector.weight")
    ('layers.3.feedforward.down.weight', 'vocabulary_head.decoder.weight')
    """
    return NAMES.from_hf(name)


def to_hf(name: str, *, masked_lm: bool) -> str:
    """Convert one of our weight names to DistilBERT's, with the prefix `distilbert.` if the model is written with its head.

    >>> to_hf("layers.3.attention.norm.bias", masked_lm=False)
    'transformer.layer.3.sa_layer_norm.bias'
    """
    return NAMES.to_hf(name, masked_lm=masked_lm)


def hf_class_name(*, masked_lm: bool) -> str:
    """The `transformers` class of such a checkpoint."""
    return "DistilBertForMaskedLM" if masked_lm else "DistilBertModel"
