"""RoBERTa: BERT's layers, a single segment type, and positions that start after the padding id (Liu et al. 2019)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.checkpoints.bert import EMBEDDING_NAMES, LAYER_NAMES, classifier_dropout, sizes
from moeir.backbones.checkpoints.names import Names
from moeir.backbones.shape import PairHead, Shape

NAMES = Names(
    prefix="roberta.",
    layer="encoder.layer.",
    model={**EMBEDDING_NAMES, "pooler.": "pooler.dense."},
    layers=LAYER_NAMES,
    head={
        "vocabulary_head.transform.": "lm_head.dense.",
        "vocabulary_head.norm.": "lm_head.layer_norm.",
        "vocabulary_head.bias": "lm_head.bias",
        "vocabulary_head.decoder.": "lm_head.decoder.",
    },
    pair={"heads.relevance.dense.": "classifier.dense.", "heads.relevance.output.": "classifier.out_proj."},
    ignored=("embeddings.position_ids",),
)
TIED = {"vocabulary_head.decoder.weight": "embeddings.words.weight", "vocabulary_head.decoder.bias": "vocabulary_head.bias"}


def shape(config: Mapping[str, Any]) -> Shape:
    """Parse a RoBERTa config.json: of its 514 positions, the two up to the padding id are unused."""
    fields = sizes(config, "RoBERTa")
    first = 1 if config.get("pad_token_id") is None else int(config["pad_token_id"])
    fields |= {"first_position": first + 1, "positions": fields["positions"] - first - 1, "head_activation": "gelu"}
    return Shape(**fields, pair_head=PairHead(dropout=classifier_dropout(config, fields), before=True))


def ours(name: str) -> str | None:
    """Convert a weight name of RoBERTa to ours; None for weights that are not read; unknown names pass unchanged.

    >>> ours("roberta.embeddings.word_embeddings.weight"), ours("lm_head.layer_norm.bias")
    ('embeddings.words.weight', 'vocabulary_head.norm.bias')
    """
    return NAMES.ours(name)


def theirs(name: str, *, masked_lm: bool) -> str:
    """Convert one of our weight names to RoBERTa's, with the prefix `roberta.` if the model is written with its head.

    >>> theirs("vocabulary_head.transform.weight", masked_lm=True)
    'lm_head.dense.weight'
    """
    return NAMES.theirs(name, masked_lm=masked_lm)


def class_name(*, masked_lm: bool) -> str:
    """The `transformers` class of such a checkpoint."""
    return "RobertaForMaskedLM" if masked_lm else "RobertaModel"
