"""BERT: config.json and weight names as `transformers` writes them, with and without pooler, with and without MLM head."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.name_map import NameMap, check_supported, read_sizes

NAMES = NameMap(
    class_prefix="Bert",
    prefix="bert.",
    head={
        "vocabulary_head.transform.": "cls.predictions.transform.dense.",
        "vocabulary_head.norm.": "cls.predictions.transform.LayerNorm.",
        "vocabulary_head.bias": "cls.predictions.bias",
        "vocabulary_head.decoder.": "cls.predictions.decoder.",
    },
    classifier={"heads.relevance.output.": "classifier."},
    skipped_prefixes=("embeddings.position_ids", "cls.seq_relationship."),
)


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a BERT config.json."""
    check_supported(config, "BERT", position_embedding_type="absolute", is_decoder=False)
    return EncoderConfig(
        **read_sizes(config), classification_head=ClassificationHeadConfig(dropout=read_classifier_dropout(config), pooler=True)
    )


def read_classifier_dropout(config: Mapping[str, Any]) -> float:
    """Dropout rate of the classification head: `classifier_dropout` of config.json, else that of the states."""
    own = config.get("classifier_dropout")
    return float(config.get("hidden_dropout_prob", 0.1) if own is None else own)
