"""RoBERTa: BERT's layers, a single segment type, and positions that start after the padding id (Liu et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import read_classifier_dropout
from moeir.backbones.families.name_map import NameMap, check_supported, read_sizes

NAMES = NameMap(
    class_prefix="Roberta",
    prefix="roberta.",
    head={
        "vocabulary_head.transform.": "lm_head.dense.",
        "vocabulary_head.norm.": "lm_head.layer_norm.",
        "vocabulary_head.bias": "lm_head.bias",
        "vocabulary_head.decoder.": "lm_head.decoder.",
    },
)


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a RoBERTa config.json: of its 514 positions, the two up to the padding id are unused."""
    check_supported(config, "RoBERTa", position_embedding_type="absolute", is_decoder=False)
    fields = read_sizes(config)
    unused = 2 if config.get("pad_token_id") is None else config["pad_token_id"] + 1
    fields |= {"first_position": unused, "positions": fields.get("positions", 512) - unused, "head_activation": "gelu"}
    head = ClassificationHeadConfig(dropout=read_classifier_dropout(config), dropout_first=True)
    return EncoderConfig(**fields, classification_head=head)
