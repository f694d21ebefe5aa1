"""ELECTRA: BERT's layers above embeddings that may be narrower; only generators have a vocabulary head (Clark et al. 2020)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import read_classifier_dropout
from moeir.backbones.families.name_map import EMBEDDING_NAMES, NameMap, check_supported, read_sizes

NAMES = NameMap(
    class_prefix="Electra",
    prefix="electra.",
    model={**EMBEDDING_NAMES, "embeddings.project.": "embeddings_project."},
    head={
        "vocabulary_head.transform.": "generator_predictions.dense.",
        "vocabulary_head.norm.": "generator_predictions.LayerNorm.",
        "vocabulary_head.bias": "generator_lm_head.bias",
        "vocabulary_head.decoder.": "generator_lm_head.",
    },
    skipped_prefixes=("embeddings.position_ids", "discriminator_predictions."),
)


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse an ELECTRA config.json; the default embedding size is that of the small model, as in transformers."""
    check_supported(config, "ELECTRA", position_embedding_type="absolute", is_decoder=False)
    fields, width = read_sizes(config), config.get("embedding_size", 128)
    fields |= {"factorized_embedding_size": None if width == fields["hidden"] else width, "head_activation": "gelu"}
    head = ClassificationHeadConfig("gelu", read_classifier_dropout(config), dropout_first=True)
    return EncoderConfig(**fields, classification_head=head)
