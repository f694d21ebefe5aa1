"""ELECTRA: BERT's layers above embeddings that may be narrower; only generators bring a vocabulary head (Clark et al. 2020)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.checkpoints.bert import EMBEDDING_NAMES, LAYER_NAMES, classifier_dropout, sizes
from moeir.backbones.checkpoints.names import Names
from moeir.backbones.shape import PairHead, Shape

NAMES = Names(
    prefix="electra.",
    layer="encoder.layer.",
    model={**EMBEDDING_NAMES, "embeddings.project.": "embeddings_project."},
    layers=LAYER_NAMES,
    head={
        "vocabulary_head.transform.": "generator_predictions.dense.",
        "vocabulary_head.norm.": "generator_predictions.LayerNorm.",
        "vocabulary_head.bias": "generator_lm_head.bias",
        "vocabulary_head.decoder.": "generator_lm_head.",
    },
    pair={"heads.relevance.dense.": "classifier.dense.", "heads.relevance.output.": "classifier.out_proj."},
    ignored=("embeddings.position_ids", "discriminator_predictions."),
)
TIED = {"vocabulary_head.decoder.weight": "embeddings.words.weight"}


def shape(config: Mapping[str, Any]) -> Shape:
    """The sizes in an ELECTRA config.json; a file that is silent about the embeddings means those of the small model, as transformers."""
    said = sizes(config, "ELECTRA")
    width = config.get("embedding_size", 128)
    said |= {"embedding": None if width == said["hidden"] else width, "head_activation": "gelu"}
    return Shape(**said, pair_head=PairHead("gelu", classifier_dropout(config, said), before=True))


def ours(name: str) -> str | None:
    """Our name of a weight; None for one we do not read; a name that is not ELECTRA's stays as it is.

    >>> ours("electra.embeddings_project.bias"), ours("discriminator_predictions.dense.weight")
    ('embeddings.project.bias', None)
    """
    return NAMES.ours(name)


def theirs(name: str, *, masked_lm: bool) -> str:
    """ELECTRA's name of one of our weights, under `electra.` if the model is written as a generator.

    >>> theirs("vocabulary_head.bias", masked_lm=True)
    'generator_lm_head.bias'
    """
    return NAMES.theirs(name, masked_lm=masked_lm)


def class_name(*, masked_lm: bool) -> str:
    """The `transformers` class that opens such a file."""
    return "ElectraForMaskedLM" if masked_lm else "ElectraModel"
