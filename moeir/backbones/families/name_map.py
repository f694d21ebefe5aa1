"""What families share: the keys of a config.json, and the mapping between their weight names and ours; unknown names pass unchanged."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from moeir.errors import UsageError

SIZES = {
    "vocabulary": "vocab_size",
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
OPTIONS = {
    "activation": "hidden_act",
    "epsilon": "layer_norm_eps",
    "positions": "max_position_embeddings",
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}
EMBEDDING_NAMES = {
    "embeddings.words.": "embeddings.word_embeddings.",
    "embeddings.positions.": "embeddings.position_embeddings.",
    "embeddings.token_types.": "embeddings.token_type_embeddings.",
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
CLASSIFIER_NAMES = {"heads.relevance.dense.": "classifier.dense.", "heads.relevance.output.": "classifier.out_proj."}
HEADS = ("vocabulary_head.", "heads.", "pooler.", "classifier.", "qa_outputs.", "sequence_summary.")  # what an encoder may do without
TIED = {"vocabulary_head.decoder.weight": "embeddings.words.weight", "vocabulary_head.decoder.bias": "vocabulary_head.bias"}


def read_sizes(config: Mapping[str, Any], **renamed: str) -> dict[str, Any]:
    """Fields of an `EncoderConfig` in a config.json, by the keys of BERT or by other ones."""
    required = {name: config[renamed.get(name, key)] for name, key in SIZES.items()}
    keys = OPTIONS | {name: key for name, key in renamed.items() if name in OPTIONS}
    return required | {name: config[key] for name, key in keys.items() if key in config}


def check_supported(config: Mapping[str, Any], family: str, **supported: object) -> None:
    """UsageError for a key of config.json with another value than the one that is supported."""
    for key, value in supported.items():
        if config.get(key, value) != value:
            raise UsageError(f"config.json: {key} is {config[key]!r}; moeir reads {family} with {value!r}")


@dataclass(frozen=True)
class NameMap:
    """Name prefixes, ours to the family's: of the `model`, of a layer (`layers`), of the vocabulary `head`, of the `classifier`.

    `class_prefix` starts the names of the family's classes in `transformers`. `prefix` precedes the model's names in a file that also has
    a head, `layer_prefix` the number of a layer; `skipped_prefixes` are names that are not read. `final_norm` is the family's name of the
    normalisation after the last layer, which belongs to that layer here.
    """

    class_prefix: str
    prefix: str
    head: Mapping[str, str]
    layer_prefix: str = "encoder.layer."
    model: Mapping[str, str] = field(default_factory=lambda: {**EMBEDDING_NAMES, "pooler.": "pooler.dense."})
    layers: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    classifier: Mapping[str, str] = field(default_factory=lambda: CLASSIFIER_NAMES)
    skipped_prefixes: tuple[str, ...] = ("embeddings.position_ids",)
    final_norm: str | None = None

    def from_hf(self, names: Collection[str], layers: int) -> dict[str, str]:
        """Our name for each name in a checkpoint of `layers` layers; weights that are not read are left out."""
        own_names = {}
        model, layer = _invert({**self.model, **self._read_heads(names)}), _invert(self.layers)
        for name in names:
            bare = name.removeprefix(self.prefix).replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
            if bare.startswith(self.skipped_prefixes):
                continue
            if self.final_norm is not None and bare.startswith(self.final_norm):
                own_names[name] = f"layers.{layers - 1}.final_norm." + bare.removeprefix(self.final_norm)
            elif bare.startswith(self.layer_prefix):
                number, _, rest = bare.removeprefix(self.layer_prefix).partition(".")
                own_names[name] = f"layers.{number}.{_replace_prefix(rest, layer)}"
            else:
                own_names[name] = _replace_prefix(bare, model)
        return own_names

    def find_unread(self, names: Collection[str], layers: int, read: Collection[str]) -> list[str]:
        """Names in a checkpoint of the encoder's own weights, not of heads of any task, that are not among our names `read`."""
        has_prefix = any(name.startswith(self.prefix) for name in names)
        own_names = {name: own for name, own in self.from_hf(names, layers).items() if not has_prefix or name.startswith(self.prefix)}
        return [name for name, own in own_names.items() if own not in read and not own.startswith(HEADS)]

    def _read_heads(self, names: Collection[str]) -> dict[str, str]:
        """Names of both heads, those of the head that the checkpoint has last: ModernBERT gives both the same names."""
        is_classifier = f"{self.classifier['heads.relevance.output.']}weight" in names and self.head["vocabulary_head.bias"] not in names
        return {**self.head, **self.classifier} if is_classifier else {**self.classifier, **self.head}

    def to_hf(self, name: str, *, has_head: bool) -> str:
        """Convert one of our names to the family's, as in its class with or without a head."""
        prefix = self.prefix if has_head else ""
        if name.startswith("vocabulary_head."):
            return _replace_prefix(name, self.head)
        if name.startswith("heads.relevance."):
            return _replace_prefix(name, self.classifier)
        if name.startswith("layers."):
            number, rest = name.removeprefix("layers.").split(".", 1)
            if self.final_norm is not None and rest.startswith("final_norm."):
                return prefix + self.final_norm + rest.removeprefix("final_norm.")
            return f"{prefix}{self.layer_prefix}{number}.{_replace_prefix(rest, self.layers)}"
        return prefix + _replace_prefix(name, self.model) if name.startswith(tuple(self.model)) else name


def _replace_prefix(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    return {hf: own for own, hf in names.items()}
