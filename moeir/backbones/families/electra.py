"""ELECTRA: BERT's layers above embeddings that may be narrower; only generators have a vocabulary head (Clark et al. 2020)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import EMBEDDING_NAMES, LAYER_NAMES, read_classifier_dropout, read_sizes
from moeir.backbones.families.name_map import NameMap

NAMES = NameMap(
    class_prefix="Electra",
    prefix="electra.",
    layer_prefix="encoder.layer.",
    model={**EMBEDDING_NAMES, "embeddings.project.": "embeddings_project."},
    layers=LAYER_NAMES,
    head={
        "vocabulary_head.transform.": "generator_predictions.dense.",
        "vocabulary_head.norm.": "generator_predictions.LayerNorm.",
        "vocabulary_head.bias": "generator_lm_head.bias",
        "vocabulary_head.decoder.": "generator_lm_head.",
    },
    classifier={"heads.relevance.dense.": "classifier.dense.", "heads.relevance.output.": "classifier.out_proj."},
    tied={"vocabulary_head.decoder.weight": "embeddings.words.weight"},
    skipped_prefixes=("embeddings.position_ids", "discriminator_predictions."),
)


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse an ELECTRA config.json; the default embedding size is that of the small model, as in transformers."""
    fields = read_sizes(config, "ELECTRA")
    width = config.get("embedding_size", 128)
    fields |= {"factorized_embedding_size": None if width == fields["hidden"] else width, "head_activation": "gelu"}
    head = ClassificationHeadConfig("gelu", read_classifier_dropout(config, fields), dropout_first=True)
    return EncoderConfig(**fields, classification_head=head)
