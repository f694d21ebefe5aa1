"""Nomic's BERT with experts: rotary positions, normalisation after each sub-layer, experts in every second layer (nomic-embed-text-v2-moe,
Nussbaum and Duderstadt 2025). Its published code gives config.json the keys of GPT-2."""

from collections.abc import Mapping
from typing import Any

from moeir.backbones.config import ClassificationHeadConfig, EncoderConfig, ExpertsConfig
from moeir.backbones.families.name_map import NameMap, check_supported, read_sizes

NAMES = NameMap(
    class_prefix="NomicBert",
    prefix="bert.",
    layer_prefix="encoder.layers.",
    model={
        "embeddings.words.": "embeddings.word_embeddings.",
        "embeddings.token_types.": "embeddings.token_type_embeddings.",
        "embeddings.norm.": "emb_ln.",
        "pooler.": "pooler.dense.",
    },
    layers={
        "attention.qkv.": "attn.Wqkv.",
        "attention.output.": "attn.out_proj.",
        "attention.norm.": "norm1.",
        "feedforward.up.": "mlp.fc1.",
        "feedforward.down.": "mlp.fc2.",
        "feedforward.gate.": "mlp.router.layer.",
        "feedforward.expert_up": "mlp.experts.mlp.w1",
        "feedforward.expert_down": "mlp.experts.mlp.w2",
        "feedforward.bias": "mlp.experts.bias",
        "feedforward.norm.": "norm2.",
    },
    head={
        "vocabulary_head.transform.": "cls.predictions.transform.dense.",
        "vocabulary_head.norm.": "cls.predictions.transform.layer_norm.",
        "vocabulary_head.bias": "cls.predictions.decoder.bias",
        "vocabulary_head.decoder.": "cls.predictions.decoder.",
    },
    classifier={"heads.relevance.output.": "classifier."},
)
KEYS = {"hidden": "n_embd", "layers": "n_layer", "heads": "n_head", "intermediate_size": "n_inner", "activation": "activation_function"}
KEYS |= {"epsilon": "layer_norm_epsilon", "positions": "n_positions", "dropout": "resid_pdrop", "attention_dropout": "attn_pdrop"}
SUPPORTED = {  # where the published code has a choice
    **dict.fromkeys(("prenorm", "parallel_block", "causal", "rotary_emb_interleaved", "expert_choice_router"), False),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "scale_attn_weights"), True),
    **dict.fromkeys(("rotary_emb_scale_base", "rotary_scaling_factor"), None),
    **{"activation_function": "gelu", "rotary_emb_fraction": 1.0},
    **{"moe_normalize_expert_weights": False, "num_shared_experts": 0, "ffn_div": 1},
}


def parse_config(config: Mapping[str, Any]) -> EncoderConfig:
    """Parse the config.json of nomic-embed-text-v2-moe; its vocabulary is filled up to a multiple of `pad_vocab_size_multiple`."""
    experts = ExpertsConfig(config["num_experts"], config["moe_top_k"], config["moe_every_n_layers"])
    defaults = {"epsilon": 1e-5, "positions": 1024}  # of GPT-2
    fields = defaults | read_sizes(config, **KEYS)
    check_supported(config, "Nomic's BERT with experts", **SUPPORTED, moe_resid_pdrop=fields.get("dropout", 0.1))
    multiple, dropout = config.get("pad_vocab_size_multiple") or 1, config.get("classifier_dropout")
    return EncoderConfig(
        **fields | {"vocabulary": -(-fields["vocabulary"] // multiple) * multiple},
        theta=float(config["rotary_emb_base"]),
        experts=experts,
        classification_head=ClassificationHeadConfig(dropout=config.get("embd_pdrop", 0.1) if dropout is None else dropout, pooler=True),
    )
