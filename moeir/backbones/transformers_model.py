"""Models of transformers from folders: which class reads one, whether packed texts stay apart in it, and the names of its weights in files.

Weights are read and renamed by transformers; no code of a folder is ever run.
"""

import inspect
import json
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import no_init_weights
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES as TOKENIZER_MAPPING_NAMES
from transformers.utils.chat_template_utils import render_jinja_template

from moeir.backbones.families.weights_io import BACKBONE_KEY, FAMILIES, check_shapes, list_weight_files, read_header
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.transformers_encoder import (
    ATTENTION,
    DecoderPlaceholder,
    NotPackableError,
    StatesModel,
    TransformersConfig,
    TransformersEncoder,
    TransformersHead,
    packed_attention,
)
from moeir.errors import ArtifactError, UsageError, is_out_of_memory

GGUF_LINK = "model.gguf"
SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")  # of logits, in configurations
OWN_KEYS = (BACKBONE_KEY, "moeir_family", "model_type", "auto_map", "quantization_config")
HEAD_CLASSES = (auto.MODEL_FOR_MASKED_LM_MAPPING, auto.MODEL_FOR_CAUSAL_LM_MAPPING)
BASE_CLASSES = (auto.MODEL_FOR_TEXT_ENCODING_MAPPING, auto.MODEL_MAPPING)
UNREAD_HEADS = ("pooler.", "lm_head.", "cls.", "classifier.", "score.", "head.", "qa_outputs.")  # of a file without prefixes of a model
PROBE_LENGTHS = (5, 9)
PROBE_TOLERANCE = 1e-4  # of the largest state, after all layers; texts that mix differ by more than 1e-1
LAYER_TOLERANCE = 2e-5  # of one layer: a window of thousands of tokens that is off by one changes little
LONGEST_PROBE = 16_384  # tokens
log = logging.getLogger(__name__)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
AttentionInterface.register(ATTENTION, packed_attention)


@contextmanager
def refuse_transformers_errors(reason: str) -> Iterator[None]:
    """ArtifactError for whatever transformers raises on files that it does not expect, but for a lack of memory."""
    try:
        yield
    except Exception as problem:
        if is_out_of_memory(problem) or isinstance(problem, ArtifactError | UsageError | NotPackableError):
            raise
        raise ArtifactError(f"{reason}: {' '.join(str(problem).split())[:300]}") from None


def read_model_config(config: Mapping[str, Any], folder: Path) -> PreTrainedConfig:
    """The configuration of transformers that a folder's config.json holds; UsageError for a model that it does not have."""
    kind = str(config.get("moeir_family", config.get("model_type", "")))
    if kind not in transformers.CONFIG_MAPPING:
        ours, version = ", ".join(FAMILIES), f"transformers {transformers.__version__}"
        raise UsageError(f"{folder}: model_type is {kind!r}; moeir reads {ours} and all of {version}, and runs no code from a folder")
    fields = {name: value for name, value in config.items() if name not in OWN_KEYS}
    with refuse_transformers_errors(f"{folder}/config.json"):
        model_config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
    if model_config.get_text_config() is not model_config or find_class(model_config) is None:
        raise UsageError(f"{folder}: model_type {kind!r} is not that of a model of texts alone")
    if getattr(model_config, "attention_type", None) == "block_sparse":
        reason = "a text's states depend on the lengths of texts before it; set 'original_full'"
        raise UsageError(f"{folder}/config.json: attention_type is 'block_sparse', in which {reason}")
    model_config.use_cache = False
    return model_config


def render_chat(template: str, messages: list[dict[str, str]], options: Mapping[str, Any], folder: Path) -> str:
    """A chat in a template, rendered in the sandbox of transformers; ArtifactError if the template raises an error."""
    with refuse_transformers_errors(f"{folder}: its chat template cannot be rendered; --template gives another"):
        [text], _ = render_jinja_template([messages], chat_template=template, **options)
    return str(text)


def find_class(config: PreTrainedConfig, *, head: bool = False) -> type[PreTrainedModel] | None:
    """The class of transformers with or without a vocabulary head for a configuration, the first of several, None if there is none."""
    kind = next((group[type(config)] for group in (HEAD_CLASSES if head else BASE_CLASSES) if type(config) in group), None)
    return kind[0] if isinstance(kind, tuple) else kind


def choose_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that reads a model: that with a vocabulary head, if there is one with the model as a module."""
    kind = find_class(config, head=True)
    with torch.device("meta"):
        is_apart = kind is not None and (model := kind(config)).base_model is not model
    return kind if is_apart else find_class(config)


def parse_config(config: Mapping[str, Any], folder: Path) -> TransformersConfig:
    """The sizes of a folder's model."""
    model = read_model_config(config, folder)
    with refuse_transformers_errors(f"{folder}/config.json"):
        noted = config.get(BACKBONE_KEY, {})
        packed = noted.get("packed")
        if not isinstance(packed, bool | None):
            raise ArtifactError(f"{folder}/config.json: {BACKBONE_KEY}: packed is {packed!r}; expected true or false")
        if packed and noted.get("transformers") != transformers.__version__:
            packed = None  # another version may have changed a layer: probed again
        numbers = {name: getattr(model, name, None) for name in ("max_position_embeddings", "n_positions", "intermediate_size", "d_ff")}
        epsilons = (getattr(model, name, None) for name in ("layer_norm_eps", "rms_norm_eps", "norm_eps"))
        positions = (numbers["max_position_embeddings"] or numbers["n_positions"] or LONGEST_PROBE) - find_first_position(model)
        if max(*find_windows(model), find_rotary_limit(model)) >= LONGEST_PROBE:
            positions = min(positions, LONGEST_PROBE)
        inner = numbers["intermediate_size"] or numbers["d_ff"] or 4 * model.hidden_size
        return TransformersConfig(
            vocabulary=model.vocab_size,
            hidden=model.hidden_size,
            layers=model.num_hidden_layers,
            heads=model.num_attention_heads,
            intermediate_size=inner if isinstance(inner, int) else max(inner),
            epsilon=next((epsilon for epsilon in epsilons if epsilon), 1e-12),
            positions=positions,
            segments=getattr(model, "type_vocab_size", None) or 0,
            initializer_range=getattr(model, "initializer_range", 0.02),
            packed=packed,
        )


def find_first_position(config: PreTrainedConfig) -> int:
    """The position of a text's first token: after that of the padding token in models that count as RoBERTa does."""
    counts = "create_position_ids_from_input_ids" in inspect.getsource(inspect.getmodule(find_class(config)))
    return (config.pad_token_id or 0) + 1 if counts else 0


_temporary_folders = list[TemporaryDirectory[str]]()  # removed when the process ends


@cache
def unpack_gguf(file: Path, identity: object) -> Path:
    """A temporary folder with the configuration and the tokenizer in a GGUF file, and a link to it, made once for a file of this identity;
    UsageError without its packages."""
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise UsageError(f"{file}: reading GGUF needs {' and '.join(missing)}: pip install 'moeir[gguf]'")
    _temporary_folders.append(TemporaryDirectory(prefix="moeir-gguf-"))
    folder, options = Path(_temporary_folders[-1].name), {"gguf_file": file.name, "local_files_only": True}
    with refuse_transformers_errors(f"{file}: cannot be opened by transformers"):
        config = transformers.AutoConfig.from_pretrained(file.parent, **options)
        transformers.AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    _remove_foreign_tokens(folder / "tokenizer.json", config.get_text_config().vocab_size)
    config.to_json_file(folder / "config.json", use_diff=False)
    (folder / GGUF_LINK).symlink_to(file.resolve())
    return folder


def _remove_foreign_tokens(path: Path, vocabulary: int) -> None:
    """Remove tokens that transformers adds to those of a GGUF file, such as `<|endoftext|>`: the weights have no rows for them."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["id"] < vocabulary]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def make_transformers_encoder(config: MutableMapping[str, Any], folder: Path, *, initialize: bool = False) -> TransformersEncoder:
    """An encoder of a folder's sizes, without values of its weights, or with random ones; with a vocabulary head if its kind has one."""
    sizes = parse_config(config, folder)  # raises for sizes without bounds before anything has them
    model_config = read_model_config(config, folder)
    probe = initialize or (sizes.packed is None and torch.get_default_device().type != "meta")  # on random weights
    with nullcontext() if probe else no_init_weights(), refuse_transformers_errors(f"{folder}/config.json"):
        model = choose_class(model_config)(model_config)
        model.tie_weights()
    return _build_encoder(model, config, folder, has_head=True, probe=probe)


def read_transformers_encoder(folder: Path, config: MutableMapping[str, Any]) -> TransformersEncoder:
    """The model of a folder in float32, with its vocabulary head if it has one. What the probe finds is noted in `config`.

    ArtifactError for weights that are missing, that the model does not have, or that are no finite fractions.
    """
    parse_config(config, folder)
    model_config, is_gguf = read_model_config(config, folder), (folder / GGUF_LINK).exists()
    files = [] if is_gguf else list_weight_files(folder)
    header = {name: tensor for file in files for name, tensor in read_header(folder / file).items()}
    with refuse_transformers_errors(f"{folder}/config.json"):
        kind = choose_class(model_config)
    options = {"config": model_config, "dtype": torch.float32, "local_files_only": True, "output_loading_info": True}
    options |= {"gguf_file": GGUF_LINK} if is_gguf else {"use_safetensors": True}
    with refuse_transformers_errors(f"{folder}: cannot be opened by transformers"), redirect_stderr(StringIO()):  # a bar for GGUF
        model, loading = kind.from_pretrained(folder, **options)
    has_head = _check_loading(folder, model, loading)
    own, parameters = f"{kind.base_model_prefix}.", dict(model.named_parameters())
    bare = {name.removeprefix(own) for name in parameters}
    if whole := sorted(name for name, one in header.items() if name.removeprefix(own) in bare and not one.is_floating_point()):
        raise ArtifactError(f"{folder}: {whole[0]} holds whole numbers; moeir reads weights that are not quantised")
    check_shapes(folder, parameters, parameters)
    return _build_encoder(model, config, folder, has_head=has_head, probe=True)


def _check_loading(folder: Path, model: PreTrainedModel, loading: Mapping[str, Any]) -> bool:
    """Whether the vocabulary head was read; ArtifactError for other weights that are missing, and for those that are left over."""
    prefix = f"{model.base_model_prefix}." if model.base_model is not model else ""
    missing, unexpected = sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"])
    if missing_base := [name for name in missing if name.startswith(prefix) and not name.removeprefix(prefix).startswith("pooler.")]:
        reason = f"weights are missing, first {missing_base[0]} ({len(missing_base)} in all)"
        raise ArtifactError(f"{folder}: {reason}; expected a whole checkpoint")
    own = f"{type(model).base_model_prefix}."
    bare = [name.removeprefix(own) for name in unexpected if name.startswith(own) or not name.startswith(UNREAD_HEADS)]
    if left := [name for name in bare if not name.startswith("pooler.")]:
        reason = f"weights that {type(model).__name__} does not have, first {left[0]} ({len(left)} in all)"
        raise ArtifactError(f"{folder}: {reason}; moeir reads a model whole or not at all")
    return not missing


def _build_encoder(
    model: PreTrainedModel, config: MutableMapping[str, Any], folder: Path, *, has_head: bool, probe: bool
) -> TransformersEncoder:
    """An encoder over a model, cut into layers if the probe allows it."""
    names = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}  # of a tied weight the first
    base, sizes = model.base_model, parse_config(config, folder)
    _register_once(base)
    is_causal = getattr(base.config, "is_causal", True) and any(vars(part).get("is_causal") for part in base.modules())
    head = _take_head(model, base) if has_head and base is not model else None
    encoder = _cut_into_layers(base, sizes, probe=probe)
    encoder.vocabulary_head, encoder.is_causal = head, is_causal
    encoder.__dict__["word_head"] = head
    noted = {} if encoder.config.packed is None else {"packed": encoder.config.packed, "transformers": transformers.__version__}
    config[BACKBONE_KEY] = dict(config.get(BACKBONE_KEY, {})) | noted
    encoder.file_names = {own: names[id(tensor)] for own, tensor in encoder.state_dict(keep_vars=True).items()}
    if any(getattr(base.config, name, None) is not None for name in SOFT_CAPS):  # the largest logit is then no product alone
        encoder.vocabulary_head = None
    return encoder


def _register_once(model: nn.Module) -> None:
    """Leave each parameter of a model in one of the modules that share it, so that it has one name; the others keep it as an attribute."""
    seen = set[int]()
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) in seen:
                del module._parameters[name]
                module.__dict__[name] = parameter
            seen.add(id(parameter))


def _take_head(model: PreTrainedModel, base: PreTrainedModel) -> TransformersHead | None:
    """The vocabulary head of a model without the model; None where logits are not the decoder's map of what the head computes, or that
    capped."""
    decoder = model.get_output_embeddings()
    if decoder is None:
        return None
    name = next(name for name, module in model.named_modules() if module is decoder)
    owner, _, own_name = name.rpartition(".")
    setattr(model.get_submodule(owner), own_name, DecoderPlaceholder())
    setattr(model, model.base_model_prefix, StatesModel())
    for module in model.modules():
        for parameter_name, parameter in module._parameters.items():
            if parameter is decoder.bias:
                module._parameters[parameter_name] = None
    tied = decoder.weight is base.get_input_embeddings().weight
    head = TransformersHead(model, decoder.bias, None if tied else decoder.weight, len(decoder.weight))
    try:
        width = head(torch.zeros(1, base.config.hidden_size, device=base.device)).shape[-1]
    except (AttributeError, TypeError, ValueError, LookupError, RuntimeError) as problem:
        if is_out_of_memory(problem):
            raise
        return None
    return head if width == decoder.weight.shape[1] else None


def _cut_into_layers(base: PreTrainedModel, sizes: TransformersConfig, *, probe: bool) -> TransformersEncoder:
    """Cut a model into layers, unless it is known or found that packed texts do not stay apart in it."""
    first, own_attention = find_first_position(base.config), base.config._attn_implementation
    on_meta = base.device.type == "meta"
    probe = probe and sizes.packed is None and not on_meta
    if sizes.packed is not False:
        try:
            expected = _run_alone(base, draw_probe_texts(sizes)) if probe else []
            base.set_attn_implementation(ATTENTION)
            check = (lambda encoder: check_packing(encoder, expected, own_attention)) if probe else None
            packed = True if probe else sizes.packed
            return TransformersEncoder(replace(sizes, packed=packed), base, find_layers(base), first_position=first, check=check)
        except (NotPackableError, TypeError, ValueError, AttributeError, LookupError, RuntimeError, AssertionError) as problem:
            if is_out_of_memory(problem) or sizes.packed:
                raise
            base.set_attn_implementation(own_attention)
            reason = " ".join(str(problem).split())[:120]
            advice = "it runs whole over texts of one length, and cannot be cut into shared layers, towers or routed layers"
            log.warning("%s: texts do not stay apart in packed batches (%s); %s", type(base).__name__, reason, advice)
    encoder = TransformersEncoder(replace(sizes, packed=False), base, None, first_position=first)
    if probe:
        _check_whole(encoder)
    return encoder


@torch.no_grad()
def _check_whole(encoder: TransformersEncoder) -> None:
    """UsageError unless texts of one length have the states of each text alone, whenever they run."""
    model, texts = encoder.embeddings.model, draw_probe_texts(encoder.config, PROBE_LENGTHS[-1:] * 2)
    try:
        with refuse_transformers_errors(f"{type(model).__name__} cannot read a text of {PROBE_LENGTHS[-1]} tokens"):
            _check_close(encoder.eval()(_pack(texts, model.device)), torch.cat(_run_alone(model, texts)), PROBE_TOLERANCE)
    except NotPackableError as problem:
        raise UsageError(f"{type(model).__name__}: the states of a text depend on others, or on chance ({problem})") from None


def find_layers(model: PreTrainedModel) -> str:
    """The name of the list of a model's layers."""
    kinds = {name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    names = [name for name, part in kinds.items() if all(isinstance(layer, GradientCheckpointingLayer) for layer in part)]
    names = [name for name in names if len(kinds[name]) == model.config.num_hidden_layers]
    if not names:
        raise NotPackableError("it has no list of its layers")
    return min(names, key=lambda name: name.count("."))


def draw_probe_texts(sizes: TransformersConfig, lengths: tuple[int, ...] = PROBE_LENGTHS) -> list[list[int]]:
    """Texts of random ids, always the same, without those of the first, special tokens."""
    generator = torch.Generator().manual_seed(0)
    lowest = min(10, sizes.vocabulary - 1)
    return [torch.randint(lowest, sizes.vocabulary, (length,), generator=generator).tolist() for length in lengths]


def _run_alone(model: PreTrainedModel, texts: list[list[int]]) -> list[Tensor]:
    """The states of each text as transformers computes them."""
    model.eval()
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids], device=model.device)).last_hidden_state[0] for ids in texts]


@torch.no_grad()
def check_packing(encoder: TransformersEncoder, expected: list[Tensor], own_attention: str) -> None:
    """NotPackableError unless packed texts have the states of each text alone, whatever their lengths, and every layer calls our attention.

    Texts longer than windows run through a layer of each kind only, and those longer than rotary positions were trained for through none:
    the arguments of the layers must not depend on them.
    """
    encoder.eval()
    model = encoder.embeddings.model
    tokens = _pack(draw_probe_texts(encoder.config), model.device)
    states = encoder.embeddings(tokens)
    for layer in encoder.layers:
        states = layer(states, tokens, tokens.layout)
    for actual, alone in zip(states.split(PROBE_LENGTHS), expected, strict=True):
        _check_close(actual, alone, PROBE_TOLERANCE)
    window, limit = max(find_windows(model.config)), find_rotary_limit(model.config)
    if limit:
        _check_arguments(encoder, min(limit + 8, encoder.config.positions))
    if 0 < window < LONGEST_PROBE:
        _check_windows(encoder, min(window + 8, encoder.config.positions), own_attention)


def _pack(texts: list[list[int]], device: torch.device) -> PackedTokens:
    return PackedTokens.from_lists(texts, "document").to(device)


def _check_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    difference, largest = float((actual - expected).abs().max()), float(expected.abs().max())
    if not difference <= tolerance * largest:
        raise NotPackableError(f"states differ by {difference:.2g}, of {largest:.2g}")


def _check_arguments(encoder: TransformersEncoder, length: int) -> None:
    """NotPackableError if the arguments of a layer for a short text depend on a long one beside it."""
    long, short = draw_probe_texts(encoder.config, (length, PROBE_LENGTHS[0]))
    calls = []
    for texts in ([short], [long, short]):
        tokens = _pack(texts, encoder.embeddings.model.device)
        encoder.embeddings(tokens)
        calls.append([part for call in tokens.layer_calls for part in tree_leaves(call) if isinstance(part, Tensor)])
    for alone, together in zip(*calls, strict=True):
        _check_close(together[:, -len(short) :].float(), alone.float(), LAYER_TOLERANCE)


def _check_windows(encoder: TransformersEncoder, length: int, own_attention: str) -> None:
    """NotPackableError if a layer of some kind gives the tokens of a long text other states packed than alone."""
    model = encoder.embeddings.model
    kinds = getattr(model.config, "layer_types", None) or [None] * len(encoder.layers)
    long, short = draw_probe_texts(encoder.config, (length, PROBE_LENGTHS[0]))
    together, alone = _pack([short, long], model.device), _pack([long], model.device)
    encoder.embeddings(together)
    model.set_attn_implementation(own_attention)
    encoder.embeddings(alone)
    states = torch.randn(len(long), encoder.layers[0].hidden, generator=torch.Generator().manual_seed(0)).to(model.device)
    layers = [encoder.layers[kinds.index(kind)] for kind in dict.fromkeys(kinds)]
    expected = []
    for layer in layers:
        _, arguments, options = alone.layer_calls[layer.number]
        expected.append(layer.module(states[None], *arguments, **options)[0])
    model.set_attn_implementation(ATTENTION)
    for layer, output in zip(layers, expected, strict=True):
        normalised = output if layer.final_norm is None else layer.final_norm(output)
        actual = layer(torch.cat([states[: len(short)], states]), together, together.layout)
        _check_close(actual[len(short) :], normalised, LAYER_TOLERANCE)


def find_windows(config: PreTrainedConfig) -> list[int]:
    """Sizes of windows and chunks of attention that a configuration names, 0 among them."""
    names = ("window", "local_attention", "attention_chunk")
    return [0] + [value for name, value in config.to_dict().items() if type(value) is int and any(part in name for part in names)]


def find_rotary_limit(config: PreTrainedConfig) -> int:
    """The number of positions that rotary tables of a scaled kind were trained for, 0 without any."""
    tables = getattr(config, "rope_parameters", None) or {}
    tables = list(tables.values()) if all(isinstance(one, dict) for one in tables.values()) else [tables]
    scaled = [one for one in tables if one and one.get("rope_type", "default") not in ("default", "linear")]
    name = "original_max_position_embeddings"
    limits = [max(one.get(name) or config.max_position_embeddings, getattr(config, name, None) or 0) for one in scaled]
    return max(limits, default=0)


def to_files(
    config: Mapping[str, Any], folder: Path, weights: Mapping[str, Tensor], file_names: Mapping[str, str], *, has_head: bool = False
) -> tuple[str, dict[str, Tensor]]:
    """The name of a model's class, and its weights by the names that files have; `weights` are by ours, `file_names` the encoder's.
    `has_head`: with a vocabulary head, even if that has no weights of its own."""
    model_config, has_head = read_model_config(config, folder), has_head or any(name.startswith("vocabulary_head.") for name in weights)
    kind = choose_class(model_config) if has_head else find_class(model_config)
    prefix = "" if has_head else f"{kind.base_model_prefix}."
    with torch.device("meta"):
        model = kind(model_config)
    return kind.__name__, revert_weight_conversion(model, {file_names[own].removeprefix(prefix): tensor for own, tensor in weights.items()})
