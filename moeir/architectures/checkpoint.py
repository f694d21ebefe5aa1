"""Checkpoint: an architecture with its weights, tokenizer and input configuration; saving, loading, encoding of texts."""

import json
import logging
import reprlib
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from moeir import variants
from moeir.architectures import adapter_files
from moeir.architectures.base import Architecture, EncoderOutput, concatenate_outputs
from moeir.architectures.cross_encoder import PairTokenizer
from moeir.architectures.input_config import InputConfig
from moeir.architectures.sentence_transformers_files import write_dense_files, write_json
from moeir.artifacts.atomic_write import link_file
from moeir.artifacts.identity import read_unchanged
from moeir.artifacts.unfinished import describe_unfinished
from moeir.backbones.config import EncoderConfig
from moeir.backbones.encoder import Encoder, pack_encoders
from moeir.backbones.families import weights_io
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.backbones.prefetch import map_batches
from moeir.backbones.tokenizer import TextTokenizer
from moeir.backbones.transformers_encoder import TransformersEncoder
from moeir.data_checks.truncation import count_truncation, describe_truncation
from moeir.errors import ArtifactError, UsageError
from moeir.heads.classification import WordLogitHead
from moeir.heads.pooling import PoolingHead
from moeir.kernels.packed_linear import supports_packing
from moeir.kernels.token_budget import split_by_tokens
from moeir.mixtures.embedding import EmbeddingMixture
from moeir.mixtures.feedforward import has_learned_router
from moeir.parsing import LARGEST_INTEGER, check_choice, check_count, format_value
from moeir.records.texts import parse_string

FORMAT_VERSION, MAX_SCALE = 1, 1e6
METADATA_FILE = "moeir.json"
TRAINED_FILE = "model.safetensors"  # with adapters: the weights of heads and routers, by their names in the architecture
log = logging.getLogger(__name__)
ONE_BATCH = RLock()  # of a model with a state, whatever thread runs it
TOKENS_AT_ONCE = 2048  # of a batch on one thread: products of more rows are no faster, and leave the cache


@dataclass(frozen=True)
class TokenBatches:
    """Texts as batches of tokens sorted by length; `order` [B] holds the rows that restore the order of the texts."""

    tokens: tuple[PackedTokens, ...]
    order: Tensor


@dataclass
class RetrievalModel:
    """An architecture with its tokenizer and input configuration, which encodes texts.

    `spec` names the architecture with every option; `path` is the folder it was opened from, so that it can stand for its path.
    `calibration` multiplies the experts' scores when texts are encoded, not in training; it is applied to queries, and is that of the
    architecture if none is given. `truncation` counts, for each side, the texts and tokens that were read and those that were cut.
    """

    architecture: Architecture
    tokenizer: TextTokenizer
    input_config: InputConfig
    spec: str
    config: dict[str, Any]
    path: Path | None = None
    calibration: dict[str, float] = field(default_factory=dict)
    trunk: adapter_files.Trunk | None = None  # the weights that its adapters belong to
    unfitted: set[str] = field(default_factory=set, init=False)  # what plain weights lack, until `initialize.fit_fresh_parts`
    truncation: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter), init=False)
    is_packed: bool = field(default=False, init=False)  # whether its layers have their form for inference on a CPU

    def __post_init__(self) -> None:
        self.calibration = self.calibration or dict(self.architecture.fusion_weights)
        for head in self.architecture.heads.values():
            if isinstance(head, WordLogitHead):
                head.find_words(self.tokenizer)

    def check_training_prompt(self, name: str) -> None:
        """UsageError for a prompt that queries of training cannot have instead of the query prefix."""
        self.input_config.find_query_prompt(name, "--query-prompt")
        if self.architecture.reads_pairs:
            raise UsageError(f"--query-prompt {name}: a cross-encoder has the query prefix only; set --query-prefix instead")

    def select_prompt(self, name: str) -> None:
        """Read queries with one of the checkpoint's prompts; UsageError if it has none of this name."""
        self.input_config = replace(self.input_config, query_prefix=self.input_config.find_query_prompt(name, "--prompt"))

    def __repr__(self) -> str:
        return f"RetrievalModel({self.path or 'unsaved'}: {self.spec})"

    def __fspath__(self) -> str:
        if self.path is None:
            raise UsageError("this checkpoint was not opened from a folder; save it, and give the path of the folder")
        return str(self.path)

    @property
    def device(self) -> torch.device:
        return next(self.architecture.parameters()).device

    @cached_property
    def pair_tokenizer(self) -> PairTokenizer:
        """Tokenizer of query-document pairs, for cross-encoders."""
        return PairTokenizer.from_architecture(self.tokenizer, self.input_config, self.architecture)

    def check_is_bi_encoder(self, source: object) -> None:
        """ArtifactError for a cross-encoder, which has no representation of a single text."""
        if self.architecture.reads_pairs:
            raise ArtifactError(f"{source}: a cross-encoder, which reads a query and a document together; moeir rerank uses it")

    def token_ids(self, texts: Sequence[str], side: str, prompt: str = "") -> tuple[list[list[int]], list[int] | None]:
        """Token ids by the input configuration, and the number of tokens at the end of each text that are not attended to. `prompt` names
        that of the queries, if it is not the query prefix."""
        length, pairs = self.input_config.max_length(side), self.architecture.reads_pairs
        if pairs:
            ids, sizes = self.pair_tokenizer.token_ids(texts, side)
            queries, special = self.truncation["query"], self.pair_tokenizer.template.special_token_count
            query_tokens = queries["tokens"] - queries["lost"]
            reserved = length - self.pair_tokenizer.query_budget
            others = reserved if side == "query" else special + query_tokens // max(1, queries["texts"])  # and a query of the mean length
        else:
            ids, sizes = self.tokenizer.encode_first(self.input_config.add_prefix(texts, side, prompt), length)
            others = int(self.architecture.markers)
        self.truncation[side].update(count_truncation(sizes, length - others))
        return (ids, None) if pairs else self.architecture.truncate_and_mark(ids, side, length)

    def log_truncation(self) -> None:
        """Log how many of the texts so far were cut, if any was."""
        log_truncation(self.input_config, self.truncation)

    def tokenize(self, texts: Sequence[str], side: str) -> PackedTokens:
        """Texts as packed tokens on the model's device."""
        ids, silent = self.token_ids(texts, side)
        return PackedTokens.from_lists(ids, side, silent).to(self.device)

    def encode(
        self, texts: Sequence[str], side: str = "document", *, max_tokens: int = 8192, experts: Collection[str] | None = None
    ) -> EncoderOutput:
        """Representations of texts, in their order, in float32; `side` is query or document. `experts`: only these, at their cost."""
        check_count(max_tokens, "encode: max_tokens", LARGEST_INTEGER)
        check_choice("encode: side", side, ("query", "document"))
        if isinstance(texts, str):
            raise UsageError("encode: expected a list of texts, found one text")
        texts = [parse_string(text, f"encode: text {number}") for number, text in enumerate(texts, 1)]
        if not len(texts):
            raise UsageError("encode: expected at least one text")
        self.check_is_bi_encoder("encode")
        kinds = self.architecture.representation_kinds
        if experts is not None and (isinstance(experts, str) or not experts or not kinds.keys() >= set(experts)):
            raise UsageError(f"encode: experts={experts!r}: expected a list of some of {', '.join(kinds)}")
        encoded = self.encode_batches(self.tokenize_batches(texts, side, max_tokens=max_tokens), experts).drop_zero_weights()
        return encoded.check_finite(lambda text: f"{side} {reprlib.repr(texts[text])}")

    def tokenize_batches(self, texts: Sequence[str], side: str, *, max_tokens: int) -> "TokenBatches":
        """Texts as batches of packed tokens in host memory, pinned if the model is on CUDA; each of at most `max_tokens` tokens or one
        text, sorted by length."""
        ids, silent = self.token_ids(texts, side)
        max_tokens = min(max_tokens, TOKENS_AT_ONCE) if self.is_concurrent else max_tokens
        rows = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        batches = []
        for first, last in split_by_tokens([len(ids[row]) for row in rows], max_tokens):
            batch = rows[first:last]
            tokens = PackedTokens.from_lists([ids[row] for row in batch], side, None if silent is None else [silent[row] for row in batch])
            batches.append(tokens.pin_memory() if self.device.type == "cuda" else tokens)
        order = torch.empty(len(rows), dtype=torch.int64)
        order[torch.tensor(rows, dtype=torch.int64)] = torch.arange(len(rows))
        return TokenBatches(tuple(batches), order.pin_memory() if self.device.type == "cuda" else order)

    def pack_for_inference(self, dtype: torch.dtype) -> None:
        """Give the layers their form for inference with products in `dtype`: same numbers up to rounding, faster, no gradient; to be used
        under `autocast(dtype)`. On a CPU with such products, and on CUDA in half precision only: elsewhere nothing changes."""
        self.architecture.eval().requires_grad_(True)  # autocast keeps its casts of such weights, and casts others in each layer anew
        if supports_packing(dtype, self.device):
            self.architecture.merge_adapters(torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
            pack_encoders(self.architecture, dtype)
            self.is_packed = self.device.type == "cpu"

    @property
    def is_stateless(self) -> bool:
        """Whether threads may run the model at once: not with learned routers, which remember their last decision, nor own code, nor a
        model of transformers that runs whole, which may keep tables for the lengths of its last texts."""
        parts = list(self.architecture.modules())
        has_routers = any(isinstance(part, EmbeddingMixture) or has_learned_router(part) for part in parts)
        runs_whole = any(isinstance(part, TransformersEncoder) and not part.layers for part in parts)
        return not (has_routers or runs_whole or variants.own_module(self.spec))

    @property
    def is_concurrent(self) -> bool:
        """Whether several batches are run at once: in the form for inference."""
        return self.is_packed and self.is_stateless

    @property
    def batches_at_once(self) -> int:
        """How many batches to run at once: as many as torch has threads, or one if it is not `is_concurrent`."""
        return torch.get_num_threads() if self.is_concurrent else 1

    def encode_batches(self, batches: "TokenBatches", experts: Collection[str] | None = None) -> EncoderOutput:
        """Representations in the order of the texts, on the model's device, of all experts or some; sparse ones may hold weights of 0 on
        CUDA."""
        if len(batches.tokens) >= self.batches_at_once > 1:
            (encoded,) = self.iterate_encoded([batches], experts)
            return encoded
        self.architecture.eval()
        parts, wanted = list[EncoderOutput](), self._wanted_experts(experts)
        with torch.no_grad(), nullcontext() if self.is_stateless else ONE_BATCH:
            for tokens in batches.tokens:
                parts.append(self.architecture(tokens.to(self.device), *wanted))
        return self._join_batches(parts, batches)

    def _wanted_experts(self, experts: Collection[str] | None) -> tuple[Collection[str], ...]:
        """The second argument of the architecture, left out for all experts: own code may override forward(tokens)."""
        return () if experts is None or self.architecture.representation_kinds.keys() <= set(experts) else (experts,)

    def _join_batches(self, parts: list[EncoderOutput], batches: "TokenBatches") -> EncoderOutput:
        """The representations of batches in the order of the texts."""
        encoded = concatenate_outputs(parts).select(batches.order.to(self.device, non_blocking=True), permutation=True)
        return encoded.scale(self.calibration) if self.calibration and batches.tokens[0].side == "query" else encoded

    def iterate_encoded(self, windows: Iterable["TokenBatches"], experts: Collection[str] | None = None) -> Iterator[EncoderOutput]:
        """`encode_batches` of each of many; the batches of several may run at once, `batches_at_once`."""
        self.architecture.eval()
        wanted = self._wanted_experts(experts)
        pending: deque[TokenBatches] = deque()

        def iterate_batches() -> Iterator[PackedTokens]:
            for window in windows:
                pending.append(window)
                yield from window.tokens

        def run(tokens: PackedTokens) -> EncoderOutput:
            with alone:
                output: EncoderOutput = self.architecture(tokens.to(self.device), *wanted)
                return output

        parts, alone = [], nullcontext() if self.is_stateless else ONE_BATCH
        for part in map_batches(run, iterate_batches(), self.batches_at_once):
            parts.append(part)
            if len(parts) == len(pending[0].tokens):
                yield self._join_batches(parts, pending.popleft())
                parts = []

    def save(self, folder: Path) -> None:
        """Write config.json, model.safetensors, tokenizer files and moeir.json into an existing folder; for a dense retriever with one
        encoder also what sentence-transformers reads."""
        weights = {name.removeprefix("encoder."): value for name, value in self.architecture.state_dict().items()}
        compatible, encoder = self.architecture.is_hf_compatible, self.architecture.encoder
        is_dense = variants.parse_spec(self.spec).name == "dense" and self.architecture.document_encoder is None
        if self.trunk is not None:
            adapter_files.write_adapters(folder, self.architecture, self.trunk, at_root=is_dense)
            trained = adapter_files.select_head_weights(self.architecture)
            weights_io.write_tensors({name: value.detach().cpu().contiguous() for name, value in trained.items()}, folder / TRAINED_FILE)
        else:
            names = {"file_names": encoder.file_names, "has_head": encoder.vocabulary_head is not None}
            weights_io.write_model(folder, self.config, weights, hf_compatible=compatible, **names)
        length = self.input_config.document_length if self.architecture.reads_pairs else None
        self.tokenizer.copy_files(folder, length, None if self.trunk is None else weights_io.find_tokenizer_class(self.config))
        if is_dense:
            head = self.architecture.heads["global"]
            assert isinstance(head, PoolingHead)
            write_dense_files(folder, self.input_config, self.architecture.encoder.config.hidden, head, self.architecture.dimension)
        kinds, scales = self.architecture.representation_kinds, self.architecture.scales
        metadata = {
            "format": FORMAT_VERSION,
            "architecture": self.spec,
            "reading": self.input_config.to_dict(),
            "experts": {name: {"representation": kind, "scale": scales.get(name, 1.0)} for name, kind in kinds.items()},
            "parameters": self.architecture.parameter_count(),
        }
        is_own = self.calibration != self.architecture.fusion_weights
        metadata |= {"trunk": self.trunk.to_dict(folder)} if self.trunk is not None else {}
        write_json(folder / METADATA_FILE, metadata | ({"calibration": self.calibration} if is_own else {}))


def log_truncation(input_config: InputConfig, truncation: Mapping[str, Mapping[str, int]]) -> None:
    """Log how many texts of each side were cut, in one line, if any was."""
    labels = {side: label for side, label in (("document", "documents"), ("query", "queries")) if truncation.get(side, {}).get("cut")}
    if labels:
        lines = [describe_truncation(truncation[side], label, input_config.max_length(side)) for side, label in labels.items()]
        flags = " and ".join(f"--{side}-length" for side in labels)
        log.info("%s; raise %s of init or finetune, or cut the texts with convert --passages", "; ".join(lines), flags)


def write_calibrated_copy(source: Path, files: Iterable[str], folder: Path, calibration: Mapping[str, float]) -> None:
    """Write the `files` of the checkpoint `source` into an existing folder, as hard links where it can, with another calibration."""
    for name in files:
        if name != METADATA_FILE:
            link_file(source / name, folder / name)
    write_json(folder / METADATA_FILE, read_metadata(source) | {"calibration": dict(calibration)})


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a moeir checkpoint rather than plain weights."""
    return (folder / METADATA_FILE).is_file()


def read_metadata(folder: Path) -> dict[str, Any]:
    """moeir.json of a checkpoint."""
    file = folder / METADATA_FILE
    try:
        metadata = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if words := describe_unfinished(folder):
            raise ArtifactError(f"{folder}: {words}") from None
        raise ArtifactError(f"{folder}: plain weights, not a checkpoint; moeir init --model {folder} --arch … makes one") from None
    except ValueError:
        metadata = None
    if isinstance(metadata, dict) and metadata.get("format") != FORMAT_VERSION:
        raise ArtifactError(f"{file}: format {metadata.get('format')}; this version of moeir reads format {FORMAT_VERSION}")
    if not _is_metadata(metadata):
        raise ArtifactError(f"{file}: damaged: not what moeir writes; make the checkpoint again")
    try:
        variants.resolve_spec("architectures", metadata["architecture"])
    except UsageError as problem:
        reason = "" if variants.own_module(metadata["architecture"]) else "damaged, or of another version of moeir: "
        raise ArtifactError(f"{file}: {reason}{problem}") from None
    return dict(metadata)


def _is_metadata(metadata: Any) -> bool:
    """Whether a value read from a file names an architecture, its reading and, if any, a positive number to calibrate each expert."""
    if not isinstance(metadata, dict) or not isinstance(metadata.get("architecture"), str) or not isinstance(metadata.get("reading"), dict):
        return False
    calibration, experts = metadata.get("calibration", {}), metadata.get("experts")
    if not isinstance(calibration, dict) or (calibration and (not isinstance(experts, dict) or calibration.keys() != experts.keys())):
        return False
    return all(isinstance(scale, int | float) and 0 < scale <= MAX_SCALE for scale in calibration.values())


@read_unchanged
def open_checkpoint(folder: Path | str, device: str = "cpu") -> RetrievalModel:
    """Load a checkpoint from its folder, its weights bit for bit as saved."""
    folder = Path(folder)
    metadata = read_metadata(folder)
    input_config = InputConfig.from_dict(metadata["reading"], f"{folder}/{METADATA_FILE}")
    try:
        model = load_with_spec(folder, metadata["architecture"], input_config, device)
        input_config.check(model.architecture.encoder.config.positions)
    except UsageError as problem:
        raise ArtifactError(f"{folder}/{METADATA_FILE}: damaged, or of another version of moeir: {problem}") from None
    model.path, model.calibration = folder, metadata.get("calibration") or model.calibration
    return model


def load_with_spec(folder: Path, spec: str, input_config: InputConfig, device: str = "cpu") -> RetrievalModel:
    """Load a checkpoint under `spec`, which may differ from its own in options that have no weights."""
    if (entry := read_metadata(folder).get("trunk")) is not None:
        return _load_adapters(folder, spec, input_config, entry, device)
    config, tokenizer = weights_io.read_config(folder), TextTokenizer(folder)
    weights = weights_io.read_weights(folder, config)
    head, encoder_config = any(name.startswith("vocabulary_head.") for name in weights), weights_io.parse_encoder_config(config, folder)
    if not variants.own_module(spec) and not weights_io.uses_transformers(config):  # own code may shape its layers otherwise
        weights_io.check_sizes(folder, encoder_config, weights)
        check_token_ids(folder, tokenizer, encoder_config)
    elif weights_io.uses_transformers(config):  # nothing of config.json's sizes is allocated before they are compared
        with torch.device("meta"):
            weights_io.check_shapes(folder, weights_io.make_encoder(dict(config), folder, vocabulary_head=head).state_dict(), weights)
    architecture = build_architecture(spec, weights_io.make_encoder(config, folder, vocabulary_head=head), tokenizer.special_tokens)
    state = architecture.state_dict()
    names = {name.removeprefix("encoder."): name for name in state}  # as in the file -> in the architecture
    _check_weights(folder, spec, {name: state[full_name] for name, full_name in names.items()}, weights)
    architecture.load_state_dict({names[name]: value for name, value in weights.items()})
    return RetrievalModel(architecture.to(device), tokenizer, input_config, canonical_spec(spec), config)


def _load_adapters(folder: Path, spec: str, input_config: InputConfig, entry: Mapping[str, Any], device: str) -> RetrievalModel:
    """A checkpoint with adapters, over the trunk that `entry` names."""
    trunk, trunk_folder = adapter_files.open_trunk(folder, entry)
    config, tokenizer = weights_io.read_config(trunk_folder), TextTokenizer(folder)
    weights_io.note_backbone(config, trunk.backbone)
    encoder = weights_io.read_encoder(trunk_folder, config=config)
    architecture = build_architecture(spec, encoder, tokenizer.special_tokens)
    weights = weights_io.read_tensors(folder / TRAINED_FILE)
    _check_weights(folder, spec, adapter_files.select_head_weights(architecture), weights)
    architecture.load_state_dict(weights, strict=False)
    is_dense = variants.parse_spec(spec).name == "dense" and architecture.document_encoder is None
    adapter_files.read_adapters(folder, architecture, at_root=is_dense)
    adapter_files.hold_trunk(architecture, trunk)
    return RetrievalModel(architecture.to(device), tokenizer, input_config, canonical_spec(spec), config, trunk=trunk)


def _check_weights(folder: Path, spec: str, expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """ArtifactError for weights with other names or shapes than those of an architecture."""
    if differing := sorted(expected.keys() ^ weights.keys()):
        raise ArtifactError(f"{folder}: its weights are not those of {spec} (first: {differing[0]}); start it from its base weights")
    weights_io.check_shapes(folder, expected, weights)


def check_token_ids(folder: Path, tokenizer: TextTokenizer, config: EncoderConfig) -> None:
    """ArtifactError for a tokenizer with ids beyond the word embeddings, or one of an encoder's family that adds no special tokens."""
    has_ends = tokenizer.special_tokens.leading and tokenizer.special_tokens.trailing
    if not has_ends and weights_io.find_family(weights_io.read_config(folder)) is not None:
        raise ArtifactError(f"{folder}: its tokenizer adds no special tokens; expected an encoder's tokenizer")
    if (tokens := tokenizer.vocabulary_size) > (rows := config.vocabulary):
        raise ArtifactError(
            f"{folder}: the tokenizer has ids up to {tokens - 1}, the weights only {rows} tokens; expected files of one model"
        )


def build_architecture(spec: str, encoder: Encoder, special_tokens: SpecialTokens) -> Architecture:
    """The architecture that a spec names, over an encoder; UsageError for a score scale out of range."""
    architecture: Architecture = variants.bind_variant("architectures", spec)(encoder, special_tokens)
    if not architecture.heads and not architecture.reads_pairs:
        raise UsageError(f"{spec}: has no expert; expected a module in `heads` for each")
    kinds = architecture.representation_kinds
    if encoder.vocabulary_head is None and any(kinds[name] == "sparse" and name not in architecture.token_terms for name in kinds):
        reason = "its lexical expert needs a vocabulary head, which these weights lack"
        raise UsageError(f"{spec}: {reason}; use an architecture, or experts, without one")
    for expert, scale in architecture.scales.items():
        if not 0 <= scale <= MAX_SCALE:
            raise UsageError(f"{spec}: the scale of the {expert} expert's scores is {scale:g}; expected 0 to {MAX_SCALE:g}")
    return architecture


def canonical_spec(spec: str) -> str:
    """A spec with every option spelt out, so that a changed default does not change old checkpoints."""
    variant, values = variants.resolve_spec("architectures", spec)
    options = {option.name: values.get(option.name, option.default) for option in variant.options}
    return str(variants.Spec(variant.name, tuple((name, format_value(value)) for name, value in options.items())))
