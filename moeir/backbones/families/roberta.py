"""RoBERTa: BERT's layers, a single segment type, and positions that start after the padding id (Liu et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import EMBEDDING_NAMES, LAYER_NAMES, read_classifier_dropout, read_sizes
from moeir.backbones.families.name_map import NameMap

NAMES = NameMap(
    class_prefix="Roberta",
    prefix="roberta.",
    layer_prefix="encoder.layer.",
    model={**EMBEDDING_NAMES, "pooler.": "pooler.dense."},
    layers=LAYER_NAMES,
    head={
        "vocabulary_head.transform.": "lm_head.dense.",
        "vocabulary_head.norm.": "lm_head.layer_norm.",
        "vocabulary_head.bias": "lm_head.bias",
        "vocabulary_head.decoder.": "lm_head.decoder.",
    },
    classifier={"heads.relevance.dense.": "classifier.dense.", "heads.relevance.output.": "classifier.out_proj."},
    tied={"vocabulary_head.decoder.weight": "embeddings.words.weight", "vocabulary_head.decoder.bias": "vocabulary_head.bias"},
    skipped_prefixes=("embeddings.position_ids",),
)


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a RoBERTa config.json: of its 514 positions, the two up to the padding id are unused."""
    fields = read_sizes(config, "RoBERTa")
    first = 1 if config.get("pad_token_id") is None else config["pad_token_id"]
    fields |= {"first_position": first + 1, "positions": fields["positions"] - first - 1, "head_activation": "gelu"}
    head = ClassificationHeadConfig(dropout=read_classifier_dropout(config, fields), dropout_first=True)
    return EncoderConfig(**fields, classification_head=head)
