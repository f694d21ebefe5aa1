"""RoBERTa: BERT's layers, a single segment type, and positions that start after the padding id (Liu et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.bert import EMBEDDING_NAMES, LAYER_NAMES, read_classifier_dropout, read_sizes
from moeir.backbones.families.name_map import NameMap

NAMES = NameMap(
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
    skipped_prefixes=("embeddings.position_ids",),
)
TIED = {"vocabulary_head.decoder.weight": "embeddings.words.weight", "vocabulary_head.decoder.bias": "vocabulary_head.bias"}


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a RoBERTa config.json: of its 514 positions, the two up to the padding id are unused."""
    fields = read_sizes(config, "RoBERTa")
    first = 1 if config.get("pad_token_id") is None else int(config["pad_token_id"])
    fields |= {"first_position": first + 1, "positions": fields["positions"] - first - 1, "head_activation": "gelu"}
    return EncoderConfig(
        **fields, classification_head=ClassificationHeadConfig(dropout=read_classifier_dropout(config, fields), dropout_first=True)
    )


def from_hf(name: str) -> str | None:
    """Convert a weight name of RoBERTa to ours; None for weights that are not read; unknown names pass unchanged.

    >>> from_hf("roberta.embeddings.word_embeddings.weight"), from_hf("lm_head.layer_norm.bias")
    ('embeddings.words.weight', 'vocabulary_head.norm.bias')
    """
    return NAMES.from_hf(name)


def to_hf(name: str, *, masked_lm: bool) -> str:
    """Convert one of our weight names to RoBERTa's, with the prefix `roberta.` if the model is written with its head.

    >>> to_hf("vocabulary_head.transform.weight", masked_lm=True)
    'lm_head.dense.weight'
    """
    return NAMES.to_hf(name, masked_lm=masked_lm)


def hf_class_name(*, masked_lm: bool) -> str:
    """The `transformers` class of such a checkpoint."""
    return "RobertaForMaskedLM" if masked_lm else "RobertaModel"
