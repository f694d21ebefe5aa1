"""Checkpoint: an architecture with its weights, tokenizer and input configuration; saving, loading, encoding of texts."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeir import variants
from moeir.architectures.base import Architecture, Encoded, ReadingRules, gathered
from moeir.architectures.pairing import Pairing
from moeir.backbones.checkpoints import files
from moeir.backbones.encoder import Encoder
from moeir.backbones.tokenizer import TextReader
from moeir.backbones.tokens import Signs, Tokens
from moeir.errors import ArtifactError, UsageError
from moeir.values import render

FORMAT, LARGEST_SCALE = 1, 1e6
FACTS = "moeir.json"


@dataclass(frozen=True)
class TokenBatches:
    """Texts as batches of tokens sorted by length; `order` [B] holds the rows that restore the order of the texts."""

    tokens: tuple[Tokens, ...]
    order: Tensor


@dataclass
class OpenCheckpoint:
    """An architecture with its tokenizer and input configuration, which encodes texts. `spec` names the architecture with every option."""

    architecture: Architecture
    reader: TextReader
    rules: ReadingRules
    spec: str
    config: dict[str, Any]

    @property
    def device(self) -> torch.device:
        return next(self.architecture.parameters()).device

    @cached_property
    def pairing(self) -> Pairing:
        """Tokenizer of query-document pairs, for cross-encoders."""
        return Pairing.of(self.reader, self.rules, self.architecture)

    def check_encodes(self, source: object) -> None:
        """ArtifactError for a cross-encoder, which has no representation of a single text."""
        if self.architecture.pairs:
            raise ArtifactError(f"{source}: a cross-encoder, which reads a query and a document together; moeir rerank uses it")

    def ids(self, texts: Sequence[str], side: str) -> tuple[list[list[int]], list[int] | None]:
        """Token ids by the input configuration, and the number of tokens at the end of each text that are not attended to."""
        input_config = self.rules
        if self.architecture.pairs:
            return self.pairing.ids(texts, side), None
        return self.architecture.marked(self.reader.ids(input_config.prefixed(texts, side)), side, input_config.length(side))

    def read(self, texts: Sequence[str], side: str) -> Tokens:
        """Texts as packed tokens on the model's device."""
        ids, silent = self.ids(texts, side)
        return Tokens.pack(ids, side, silent).to(self.device)

    def encode(self, texts: Sequence[str], side: str = "document", *, max_tokens: int = 8192) -> Encoded:
        """Representations of texts, in their order, in float32; `side` is query or document."""
        if not texts:
            raise UsageError("encode: expected at least one text")
        self.check_encodes("encode")
        return self.encode_batches(self.read_batches(texts, side, max_tokens=max_tokens)).positive()

    def read_batches(self, texts: Sequence[str], side: str, *, max_tokens: int = 8192) -> "TokenBatches":
        """Texts as batches of packed tokens in host memory, pinned if the model is on CUDA; each of at most `max_tokens` tokens or one
        text, sorted by length."""
        ids, silent = self.ids(texts, side)
        lengths = [len(text) for text in ids]
        rows = sorted(range(len(ids)), key=lengths.__getitem__)
        batches = []
        for batch in budgeted(rows, lengths, max_tokens):
            tokens = Tokens.pack([ids[text] for text in batch], side, None if silent is None else [silent[text] for text in batch])
            batches.append(tokens.pinned() if self.device.type == "cuda" else tokens)
        order = torch.empty(len(rows), dtype=torch.int64)
        order[torch.tensor(rows, dtype=torch.int64)] = torch.arange(len(rows))
        return TokenBatches(tuple(batches), order.pin_memory() if self.device.type == "cuda" else order)

    @torch.no_grad()
    def encode_batches(self, batches: "TokenBatches") -> Encoded:
        """Representations in the order of the texts, on the model's device; sparse ones may hold weights of 0 on CUDA."""
        self.architecture.eval()
        parts = [self.architecture(tokens.to(self.device)) for tokens in batches.tokens]
        return gathered(parts).select(batches.order.to(self.device, non_blocking=True), permutation=True)

    def save(self, folder: Path) -> None:
        """Write config.json, model.safetensors, tokenizer files and moeir.json into an existing folder."""
        weights = {name.removeprefix("encoder."): value for name, value in self.architecture.state_dict().items()}
        files.write(folder, self.config, weights, plain=self.architecture.plain)
        self.reader.copy_to(folder)
        kinds, scales = self.architecture.kinds, self.architecture.scales
        metadata = {
            "format": FORMAT,
            "architecture": self.spec,
            "reading": asdict(self.rules),
            "experts": {name: {"representation": kind, "scale": scales.get(name, 1.0)} for name, kind in kinds.items()},
            "parameters": self.architecture.parameter_count(),
        }
        (folder / FACTS).write_text(json.dumps(metadata, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def budgeted(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split `order` into consecutive batches of at most `max_tokens` tokens; a longer text is a batch of its own.

    >>> budgeted([0, 1, 2], [3, 3, 5], 6)
    [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    budget = 0
    for text in order:
        if not batches or lengths[text] > budget:
            batches.append([])
            budget = max_tokens
        batches[-1].append(text)
        budget -= lengths[text]
    return batches


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a moeir checkpoint rather than plain weights."""
    return (folder / FACTS).is_file()


def facts_of(folder: Path) -> dict[str, Any]:
    """moeir.json of a checkpoint."""
    try:
        metadata = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{folder}: plain weights, not a checkpoint; moeir init --model {folder} --arch … makes one") from None
    except ValueError:
        raise ArtifactError(f"{folder}/{FACTS}: damaged: not JSON") from None
    if not isinstance(metadata, dict):
        raise ArtifactError(f"{folder}/{FACTS}: damaged: a JSON object was expected")
    if metadata.get("format") != FORMAT:
        raise ArtifactError(f"{folder}/{FACTS}: format {metadata.get('format')}; this version of moeir reads format {FORMAT}")
    if not isinstance(metadata.get("architecture"), str) or not isinstance(metadata.get("reading"), dict):
        raise ArtifactError(f"{folder}/{FACTS}: damaged: `architecture` or `reading` is missing or of a wrong type")
    try:
        variants.resolve("architectures", metadata["architecture"])
    except UsageError as problem:
        raise ArtifactError(f"{folder}/{FACTS}: damaged, or of another version of moeir: {problem}") from None
    return metadata


def open_checkpoint(folder: Path | str, device: str = "cpu") -> OpenCheckpoint:
    """Load a checkpoint from its folder, its weights bit for bit as saved."""
    folder = Path(folder)
    metadata = facts_of(folder)
    input_config = ReadingRules.from_dict(metadata["reading"], f"{folder}/{FACTS}")
    try:
        model = rebuilt(folder, metadata["architecture"], input_config, device)
        input_config.check(model.architecture.encoder.shape.positions)
    except UsageError as problem:
        raise ArtifactError(f"{folder}/{FACTS}: damaged, or of another version of moeir: {problem}") from None
    return model


def rebuilt(folder: Path, spec: str, input_config: ReadingRules, device: str = "cpu") -> OpenCheckpoint:
    """Load a checkpoint under `spec`, which may differ from its own in options that have no weights."""
    config, tokenizer = files.read_config(folder), TextReader(folder)
    weights = files.read_weights(folder, config)
    head = any(name.startswith("vocabulary_head.") for name in weights)
    encoder = Encoder(files.shape_of(config, folder), vocabulary_head=head)
    architecture = composed(spec, encoder, tokenizer.signs)
    expected = {name.removeprefix("encoder."): value for name, value in architecture.state_dict().items()}
    if set(expected) != set(weights):
        differing = sorted(set(expected) ^ set(weights))[0]
        raise ArtifactError(
            f"{folder}: its weights are not those of {spec} (first: {differing}); start {spec.split(':')[0]} from plain weights"
        )
    files.check_shapes(folder, expected, weights)
    names = {name: f"encoder.{name}" for name in weights if f"encoder.{name}" in architecture.state_dict()}
    architecture.load_state_dict({names.get(name, name): value for name, value in weights.items()})
    return OpenCheckpoint(architecture.to(device), tokenizer, input_config, full_spec(spec), config)


def composed(spec: str, encoder: Encoder, special_tokens: Signs) -> Architecture:
    """The architecture that a spec names, over an encoder; UsageError for a score scale out of range."""
    architecture: Architecture = variants.bind("architectures", spec)(encoder, special_tokens)
    for expert, scale in architecture.scales.items():
        if not 0 <= scale <= LARGEST_SCALE:
            raise UsageError(f"{spec}: the scale of the {expert} expert's scores is {scale:g}; expected 0 to {LARGEST_SCALE:g}")
    return architecture


def full_spec(spec: str) -> str:
    """A spec with every option spelt out, so that a changed default does not change old checkpoints."""
    variant, values = variants.resolve("architectures", spec)
    options = {option.name: values.get(option.name, option.default) for option in variant.options}
    return str(variants.Spec(variant.name, tuple((name, render(value)) for name, value in options.items())))
