"""DistilBERT: BERT's layers under names of their own, without segments and pooler (Sanh et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.name_map import EMBEDDING_NAMES, NameMap, read_sizes

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
)
KEYS = {"hidden": "dim", "layers": "n_layers", "heads": "n_heads", "intermediate_size": "hidden_dim"}
KEYS |= {name: name for name in ("activation", "dropout", "attention_dropout")}


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a DistilBERT config.json."""
    fields = read_sizes(config, **KEYS) | {"segments": 0, "epsilon": 1e-12}  # whatever `layer_norm_eps` says, as in transformers
    return EncoderConfig(**fields, classification_head=ClassificationHeadConfig("relu", config.get("seq_classif_dropout", 0.2)))
