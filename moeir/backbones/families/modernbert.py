"""ModernBERT: normalisation before each sub-layer, rotary positions, local attention in two layers of three (Warner et al. 2024)."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig, PreNormConfig
from moeir.backbones.families.name_map import NameMap, check_supported, read_sizes
from moeir.errors import UsageError

NAMES = NameMap(
    class_prefix="ModernBert",
    prefix="model.",
    layer_prefix="layers.",
    model={"embeddings.words.": "embeddings.tok_embeddings.", "embeddings.norm.": "embeddings.norm."},
    layers={
        "attention.norm.": "attn_norm.",
        "attention.qkv.": "attn.Wqkv.",
        "attention.output.": "attn.Wo.",
        "feedforward.norm.": "mlp_norm.",
        "feedforward.up.": "mlp.Wi.",
        "feedforward.down.": "mlp.Wo.",
    },
    head={
        "vocabulary_head.transform.": "head.dense.",
        "vocabulary_head.norm.": "head.norm.",
        "vocabulary_head.bias": "decoder.bias",
        "vocabulary_head.decoder.weight": "decoder.weight",
    },
    classifier={"heads.relevance.dense.": "head.dense.", "heads.relevance.norm.": "head.norm.", "heads.relevance.output.": "classifier."},
    final_norm="final_norm.",
)
KEYS = {"activation": "hidden_activation", "epsilon": "norm_eps", "dropout": "mlp_dropout", "attention_dropout": "attention_dropout"}
LOCAL, FULL = "sliding_attention", "full_attention"
THETAS = {FULL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse a ModernBERT config.json, with the keys of transformers 5 or of earlier releases."""
    check_supported(config, "ModernBERT", decoder_bias=True, rope_scaling=None)
    depth, global_interval = config["num_hidden_layers"], config.get("global_attn_every_n_layers", 3)
    if (kinds := config.get("layer_types")) is None:
        kinds = [LOCAL if number % global_interval else FULL for number in range(depth)]
    thetas = {kind: _parse_theta(config, kind) for kind in THETAS}
    if unknown := sorted(set(kinds) - set(THETAS)):
        raise UsageError(f"config.json: layer_types has {unknown[0]!r}; moeir reads {FULL} and {LOCAL}")
    if (pooling := config.get("classifier_pooling", "cls")) not in ("cls", "mean"):
        raise UsageError(f"config.json: classifier_pooling is {pooling!r}; moeir reads cls and mean")
    defaults = {"epsilon": 1e-5, "positions": 8192, "dropout": 0.0, "attention_dropout": 0.0}
    return EncoderConfig(
        **(defaults | read_sizes(config, **KEYS) | {"segments": 0}),
        head_activation=config.get("classifier_activation", "gelu"),
        prenorm=PreNormConfig(
            windows=tuple(config.get("local_attention", 128) if kind == LOCAL else None for kind in kinds),
            thetas=tuple(thetas[kind] for kind in kinds),
            attention_bias=config.get("attention_bias", False),
            feedforward_bias=config.get("mlp_bias", False),
            norm_bias=config.get("norm_bias", False),
            head_bias=config.get("classifier_bias", False),
            embedding_dropout=config.get("embedding_dropout", 0.0),
        ),
        classification_head=ClassificationHeadConfig(
            config.get("classifier_activation", "gelu"), config.get("classifier_dropout") or 0.0, norm=True, pooling=pooling
        ),
    )


def _parse_theta(config: Mapping[str, Any], kind: str) -> float:
    """The rotary base of layers of a type."""
    parameters: Mapping[str, Any] = (config.get("rope_parameters") or {}).get(kind) or {}
    check_supported(parameters, "ModernBERT", rope_type="default")
    old_key, default = THETAS[kind]
    return float(parameters["rope_theta"] if "rope_theta" in parameters else config.get(old_key, default))
