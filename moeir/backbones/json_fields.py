"""Fields of the JSON files that come with weights: a table of their types, checked when a field is read."""

import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moeir.errors import ArtifactError

POOLING_MODES = {  # of sentence-transformers: the key of earlier versions, and the name since version 6
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}


FIELDS: Mapping[str, tuple[type | None, ...]] = {  # types of the values, as `json.loads` reads them; None: null
    # config.json
    **dict.fromkeys(("vocab_size", "hidden_size", "dim", "embedding_size", "intermediate_size", "hidden_dim"), (int,)),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "global_attn_every_n_layers", "num_attention_heads", "n_heads"), (int,)),
    **dict.fromkeys(("max_position_embeddings", "local_attention", "type_vocab_size"), (int,)),
    "pad_token_id": (int, None),
    **dict.fromkeys(("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "pad_vocab_size_multiple"), (int,)),
    **dict.fromkeys(("num_experts", "moe_top_k", "moe_every_n_layers"), (int,)),
    **dict.fromkeys(("layer_norm_eps", "norm_eps", "initializer_range", "hidden_dropout_prob"), (int, float)),
    **dict.fromkeys(("attention_probs_dropout_prob", "dropout", "attention_dropout", "mlp_dropout"), (int, float)),
    **dict.fromkeys(("embedding_dropout", "seq_classif_dropout", "layer_norm_epsilon", "rotary_emb_base"), (int, float)),
    **dict.fromkeys(("resid_pdrop", "attn_pdrop", "embd_pdrop"), (int, float)),
    "classifier_dropout": (int, float, None),
    **dict.fromkeys(("global_rope_theta", "local_rope_theta", "rope_theta"), (int, float)),
    **dict.fromkeys(("hidden_act", "activation", "hidden_activation", "classifier_activation", "rope_type"), (str,)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias"), (bool,)),
    **dict.fromkeys(("rope_parameters", "full_attention", "sliding_attention"), (dict, None)),
    "layer_types": (list, None),
    # tokenizer_config.json, special_tokens_map.json
    **dict.fromkeys(("do_lower_case", "add_prefix_space", "strip_accents", "tokenize_chinese_chars"), (bool, None)),
    "model_max_length": (int, float, None),
    # sentence-transformers
    **dict.fromkeys(("max_seq_length", "query_length", "document_length", "truncate_dim"), (int, None)),
    **dict.fromkeys((*(f"pooling_mode_{mode}" for mode in POOLING_MODES), "include_prompt", "bias", "attend"), (bool,)),
    **dict.fromkeys(("in_features", "out_features", "length", "true_token_id"), (int,)),
    "false_token_id": (int, None),
    **dict.fromkeys(("default_prompt_name", "similarity_fn_name", "activation_fn", "query_prefix", "document_prefix"), (str, None)),
    **dict.fromkeys(("activation_function", "pooling_strategy", "module_input_name", "module_output_name"), (str, None)),
    **dict.fromkeys(("do_query_expansion", "attend_to_expansion_tokens"), (bool, None)),
    "skiplist_words": (list, None),
    "query_expansion": (dict, None),
    **dict.fromkeys(("modality_config", "model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"), (dict, None)),
    **dict.fromkeys(("config_args", "config_kwargs", "prompts", "processing_kwargs"), (dict, None)),
    **dict.fromkeys(("query", "document", "passage", "corpus"), (str, None)),  # of prompts
}
TYPE_NAMES = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", dict: "an object", list: "a list"}


class CheckedFields(Mapping[str, Any]):
    """The fields of a JSON object from `file`; reading one whose value is not of its types in FIELDS, or negative, is an ArtifactError."""

    def __init__(self, values: Mapping[str, Any], file: Path, *, prefix: str = "") -> None:
        self._values, self._file, self._prefix = values, file, prefix

    def __getitem__(self, name: str) -> Any:
        value, types = self._values[name], FIELDS.get(name)
        is_negative = type(value) in (int, float) and not 0 <= value < math.inf  # NaN too
        if types is not None and (is_negative or (None if value is None else type(value)) not in types):
            expected = " or ".join("null" if one is None else TYPE_NAMES[one] for one in types)
            raise ArtifactError(f"{self._file}: {self._prefix}{name} is {reprlib.repr(value)}; expected {expected}")
        return CheckedFields(value, self._file, prefix=f"{self._prefix}{name}.") if isinstance(value, dict) and types else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_json_object(file: Path) -> dict[str, Any]:
    """The object that a JSON file holds; ArtifactError for any other content, FileNotFoundError without the file."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        values = None
    if type(values) is not dict:
        raise ArtifactError(f"{file}: not a JSON object; expected the file that came with the weights")
    return values


def read_sentence_settings(folder: Path) -> CheckedFields:
    """The settings that sentence-transformers keeps of a folder's encoder, empty without any; earlier versions named the file by family."""
    families = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    file = next((file for name in families if (file := folder / f"sentence_{name}_config.json").is_file()), None)
    return CheckedFields(read_json_object(file), file) if file is not None else CheckedFields({}, folder)
