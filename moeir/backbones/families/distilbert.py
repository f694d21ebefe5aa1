"""DistilBERT: BERT's layers under names of their own, without segments and pooler (Sanh et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import EMBEDDING_NAMES
from moeir.backbones.families.name_map import NameMap

NAMES = NameMap(
    class_prefix="DistilBert",
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
    tied={"vocabulary_head.decoder.weight": "embeddings.words.weight"},
    skipped_prefixes=("embeddings.position_ids",),
)


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
