"""BERT: config.json and weight names as `transformers` writes them, with and without pooler, with and without MLM head."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig
from moeir.backbones.families.name_map import NameMap
from moeir.errors import UsageError

EMBEDDING_NAMES = {
    "embeddings.words.": "embeddings.word_embeddings.",
    "embeddings.places.": "embeddings.position_embeddings.",
    "embeddings.kinds.": "embeddings.token_type_embeddings.",
    "embeddings.norm.": "embeddings.LayerNorm.",
}
LAYER_NAMES = {
    "attention.query.": "attention.self.query.",
    "attention.key.": "attention.self.key.",
    "attention.value.": "attention.self.value.",
    "attention.output.": "attention.output.dense.",
    "attention.norm.": "attention.output.LayerNorm.",
    "feedforward.up.": "intermediate.dense.",
    "feedforward.down.": "output.dense.",
    "feedforward.norm.": "output.LayerNorm.",
}
NAMES = NameMap(
    class_prefix="Bert",
    prefix="bert.",
    layer_prefix="encoder.layer.",
    model={**EMBEDDING_NAMES, "pooler.": "pooler.dense."},
    layers=LAYER_NAMES,
    head={
        "vocabulary_head.transform.": "cls.predictions.transform.dense.",
        "vocabulary_head.norm.": "cls.predictions.transform.LayerNorm.",
        "vocabulary_head.bias": "cls.predictions.bias",
        "vocabulary_head.decoder.": "cls.predictions.decoder.",
    },
    classifier={"heads.relevance.output.": "classifier."},
    tied={"vocabulary_head.decoder.weight": "embeddings.words.weight", "vocabulary_head.decoder.bias": "vocabulary_head.bias"},
    skipped_prefixes=("embeddings.position_ids", "cls.seq_relationship."),
)


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a BERT config.json."""
    fields = read_sizes(config, "BERT")
    head = ClassificationHeadConfig(dropout=read_classifier_dropout(config, fields), pooler=True)
    return EncoderConfig(**fields, classification_head=head)


def read_classifier_dropout(config: Mapping[str, Any], fields: Mapping[str, Any]) -> float:
    """Dropout rate of the classification head: `classifier_dropout` of config.json, else that of the states."""
    own = config.get("classifier_dropout")
    return float(fields["dropout"] if own is None else own)


def read_sizes(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Fields of an `EncoderConfig` whose keys in config.json are shared by BERT, RoBERTa and ELECTRA."""
    for key, supported in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        if config.get(key, supported) != supported:
            raise UsageError(f"config.json: {key} is {config[key]!r}; moeir reads {family} with {supported!r}")
    return {
        "vocabulary": config["vocab_size"],
        "hidden": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "intermediate_size": config["intermediate_size"],
        "activation": config.get("hidden_act", "gelu"),
        "epsilon": config.get("layer_norm_eps", 1e-12),
        "positions": config.get("max_position_embeddings", 512),
        "segments": config.get("type_vocab_size", 2),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
        "initializer_range": config.get("initializer_range", 0.02),
    }
