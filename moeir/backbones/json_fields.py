"""Fields of the JSON files that come with weights: a table of their types and ranges, checked when a field is read."""

import json
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from moeir.errors import ArtifactError

MAX_VOCABULARY = 10_000_000
POOLING_MODES = {  # of sentence-transformers: the key of earlier versions, and the name since version 6
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}


class FieldType(NamedTuple):
    """What a field may hold: in words, and as a function that accepts such a value of `json.loads`."""

    expected: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)  # true is no number


def _whole_number(lowest: int, highest: int) -> FieldType:
    return FieldType(f"a whole number from {lowest:,} to {highest:,}", lambda value: type(value) is int and lowest <= value <= highest)


def _real_number(lowest: float, highest: float) -> FieldType:
    return FieldType(f"a number from {lowest:g} to {highest:g}", lambda value: _is_number(value) and lowest <= value <= highest)


def _optional(field: FieldType) -> FieldType:
    return FieldType(f"{field.expected}, or null", lambda value: value is None or field.accepts(value))


def _is_text(value: Any) -> bool:
    return type(value) is str and not any("\ud800" <= letter <= "\udfff" for letter in value)  # half a character is no text


def _is_token(value: Any) -> bool:
    return _is_text(value.get("content") if type(value) is dict else value)


def _is_texts(value: Any) -> bool:
    return type(value) is dict and all(text is None or _is_text(text) for text in value.values())


FLAG = FieldType("true or false", lambda value: type(value) is bool)
TEXT = FieldType("a string", _is_text)
TEXTS = FieldType("a list of strings", lambda value: type(value) is list and all(map(_is_text, value)))
OBJECT = _optional(FieldType("an object", lambda value: type(value) is dict))
EPSILON = FieldType("a number between 0 and 1", lambda value: _is_number(value) and 0 < value < 1)
PROBABILITY = FieldType("a number from 0 to below 1", lambda value: _is_number(value) and 0 <= value < 1)
TOKEN = FieldType('a token, as "[MASK]" or {"content": "[MASK]"}', _is_token)
WIDTH, LAYERS, HEADS, POSITIONS = _whole_number(1, 65_536), _whole_number(1, 1000), _whole_number(1, 1024), _whole_number(1, 10_000_000)
BASE, TOKEN_ID = _real_number(1, 1e12), _whole_number(0, MAX_VOCABULARY)

FIELDS: Mapping[str, FieldType] = {
    # config.json: sizes
    "vocab_size": _whole_number(1, MAX_VOCABULARY),
    **dict.fromkeys(("hidden_size", "dim", "embedding_size", "intermediate_size", "hidden_dim", "d_model", "d_kv", "d_ff"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_layers", "global_attn_every_n_layers"), LAYERS),
    "num_decoder_layers": _optional(LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("max_position_embeddings", "local_attention", "relative_attention_max_distance"), POSITIONS),
    "relative_attention_num_buckets": _whole_number(4, 65_536),
    "type_vocab_size": _whole_number(1, 1000),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), _optional(TOKEN_ID)),
    # config.json: numbers
    **dict.fromkeys(("layer_norm_eps", "norm_eps", "layer_norm_epsilon"), EPSILON),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), PROBABILITY),
    **dict.fromkeys(("mlp_dropout", "embedding_dropout", "seq_classif_dropout", "dropout_rate"), PROBABILITY),
    "classifier_dropout": _optional(PROBABILITY),
    "initializer_range": _real_number(0, 1),
    "initializer_factor": _real_number(0, 1000),
    **dict.fromkeys(("global_rope_theta", "local_rope_theta", "rope_theta"), BASE),
    # config.json: choices
    **dict.fromkeys(("hidden_act", "activation", "hidden_activation", "classifier_activation", "rope_type"), TEXT),
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "decoder_bias"), FLAG),
    **dict.fromkeys(("is_decoder", "tie_word_embeddings", "scale_decoder_outputs"), FLAG),
    **dict.fromkeys(("rope_parameters", "full_attention", "sliding_attention"), OBJECT),
    "layer_types": _optional(TEXTS),
    # tokenizer_config.json, special_tokens_map.json
    **dict.fromkeys(("do_lower_case", "add_prefix_space", "strip_accents", "tokenize_chinese_chars"), _optional(FLAG)),
    "model_max_length": _optional(_real_number(1, 1e31)),
    **dict.fromkeys(("mask_token", "cls_token", "sep_token", "pad_token", "unk_token"), _optional(TOKEN)),
    # sentence-transformers
    **dict.fromkeys(("max_seq_length", "query_length", "document_length"), _optional(POSITIONS)),
    **dict.fromkeys((*(f"pooling_mode_{mode}" for mode in POOLING_MODES), "include_prompt"), FLAG),
    **dict.fromkeys(("default_prompt_name", "similarity_fn_name", "activation_fn"), _optional(TEXT)),
    **dict.fromkeys(("modality_config", "model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"), OBJECT),
    **dict.fromkeys(("config_args", "config_kwargs"), OBJECT),
    "prompts": _optional(FieldType("an object of strings", _is_texts)),
}


class CheckedFields(Mapping[str, Any]):
    """The fields of a JSON object from `file`; reading one whose value is not of its type in FIELDS is an ArtifactError."""

    def __init__(self, values: Mapping[str, Any], file: Path, *, prefix: str = "") -> None:
        self._values, self._file, self._prefix = values, file, prefix

    def __getitem__(self, name: str) -> Any:
        value, field = self._values[name], FIELDS.get(name)
        if field is not None and not field.accepts(value):
            raise ArtifactError(f"{self._file}: {self._prefix}{name} is {reprlib.repr(value)}; expected {field.expected}")
        return CheckedFields(value, self._file, prefix=f"{self._prefix}{name}.") if field is OBJECT and value is not None else value

    def check_all(self) -> None:
        """ArtifactError if any field is not of its type."""
        for name in self:
            self[name]

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
