"""Reading folders of weights into our encoder, and writing them in the family's layout."""

import importlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from moeir.artifacts.identity import read_identity
from moeir.backbones.config import EncoderConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.families.name_map import TIED
from moeir.backbones.json_fields import CheckedFields, read_json_object
from moeir.errors import ArtifactError, MoeirError, UsageError, is_out_of_memory

NOT_FAMILIES = ("__init__", "weights_io", "name_map")
FAMILIES = tuple(sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem not in NOT_FAMILIES))
CLASSIFIER_PREFIX = "heads.relevance."  # prefix of the classification head's weights
OMITTED_KEYS = ("moeir_family", "transformers_version", "_name_or_path", "torch_dtype", "quantization_config")  # of config.json, not copied
BACKBONE_KEY = "moeir_backbone"  # in config.json: that transformers' modules run the model, and what the probe of packed texts found
HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SHARD_BYTES = 5_000_000_000  # of a weight file; larger models have several, and an index
log = logging.getLogger(__name__)


def resolve_model(model: Path, extra_files: Iterable[str] = (), revision: str | None = None) -> Path:
    """The folder of a model: a path, or a name on the hub, downloaded or cached, with `extra_files` that no other model has.

    For a GGUF file a temporary folder.
    """
    if model.is_dir():
        return model
    if model.suffix == ".gguf" and model.is_file():
        unpacked: Path = import_transformers_model().unpack_gguf(model, read_identity(model))
        return unpacked
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.txt", "*.jinja", "*.safetensors", *extra_files]
        return Path(snapshot_download(str(model), revision=revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as problem:
        reason = str(problem).split("\n")[0]
        advice = "expected a folder of weights; without a network, download it elsewhere and name its folder"
        raise UsageError(f"{model}: not a folder, and it cannot be loaded from the hub ({reason}); {advice}") from None


def resolve_commit(model: str, revision: str, files: Iterable[str]) -> Path:
    """The folder of a commit of a model on the hub: the cached one, without a request, if it has these `files`, else downloaded."""
    from huggingface_hub import try_to_load_from_cache

    cached = [try_to_load_from_cache(model, name, revision=revision) for name in files]
    if cached and all(isinstance(path, str) for path in cached):
        return Path(str(cached[0])).parent
    return resolve_model(Path(model), revision=revision)


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a folder of weights."""
    try:
        return read_json_object(folder / "config.json")
    except FileNotFoundError:
        raise ArtifactError(f"{folder}: no config.json; expected a folder that transformers or moeir wrote") from None


def find_family(config: Mapping[str, Any]) -> str | None:
    """The family of a model with this config.json, None for one that is of none."""
    name = str(config.get("moeir_family", config.get("model_type", ""))).replace("-", "_")
    is_ours = name in FAMILIES and (name != "nomic_bert" or config.get("num_experts"))  # without experts transformers has it
    return name if is_ours else None


def import_family(config: Mapping[str, Any], folder: Path) -> ModuleType:
    """Import the module of a model's family."""
    if (name := find_family(config)) is None:
        raise UsageError(f"{folder}: model_type is {config.get('model_type')!r}; moeir's own layers read {', '.join(FAMILIES)}")
    return importlib.import_module(f"{__package__}.{name}")


def uses_transformers(config: Mapping[str, Any]) -> bool:
    """Whether transformers' own modules run a model: one of no family of ours, or one for which that was chosen."""
    return BACKBONE_KEY in config or find_family(config) is None


def note_backbone(config: MutableMapping[str, Any], backbone: str | None) -> None:
    """Note in a config.json whose layers run the model: those of `transformers` or of `moeir`; None leaves it as it is. With
    `bidirectional` those of transformers attend to later tokens as well, for which `TransformersEncoder.check_bidirectional` looks."""
    if backbone in ("transformers", "bidirectional"):
        config.setdefault(BACKBONE_KEY, {})
        config |= {"is_causal": False} if backbone == "bidirectional" else {}
    elif backbone == "moeir":
        config.pop(BACKBONE_KEY, None)


def import_transformers_model() -> ModuleType:
    """The module that opens models of transformers, imported when one is met: it takes a second."""
    return importlib.import_module("moeir.backbones.transformers_model")


def find_tokenizer_class(config: Mapping[str, Any]) -> str | None:
    """The class of transformers that reads the tokenizer of a model with this config.json, if its own files name none."""
    name: str | None = import_transformers_model().TOKENIZER_MAPPING_NAMES.get(config.get("moeir_family", config.get("model_type")))
    return name


def parse_encoder_config(config: Mapping[str, Any], folder: Path) -> EncoderConfig:
    """The encoder configuration of a folder's config.json."""
    if uses_transformers(config):
        sizes: EncoderConfig = import_transformers_model().parse_config(config, folder)
        return sizes
    family, fields = import_family(config, folder), CheckedFields(config, folder / "config.json")
    try:
        encoder_config: EncoderConfig = family.parse_config(fields)
    except KeyError as problem:
        raise ArtifactError(f"{folder}/config.json: key {problem} is missing; expected the file that came with the weights") from None
    except UsageError as problem:
        raise UsageError(f"{folder}/{problem}") from None
    return encoder_config


def read_weights(folder: Path, config: MutableMapping[str, Any], *, device: str = "cpu") -> dict[str, Tensor]:
    """Read all weights of a folder in float32, under our names; on `meta` only their shapes."""
    has_own_names = uses_transformers(config)
    if has_own_names and config.get("model_type") != "moeir":
        return dict(read_encoder(folder, config=config).state_dict())
    read_file = read_header if device == "meta" else read_tensors
    loaded = {key: tensor for name in list_weight_files(folder) for key, tensor in read_file(folder / name).items()}
    own_names = dict(zip(loaded, loaded, strict=True))
    if not has_own_names:
        own_names = import_family(config, folder).NAMES.from_hf(loaded.keys(), parse_encoder_config(config, folder).layers)
    weights = {own: value.float() if (value := loaded.pop(name)).is_floating_point() else value for name, own in own_names.items()}
    for name, original in TIED.items():
        duplicate = weights.pop(name, None)
        if duplicate is None:
            continue
        kept = weights.setdefault(original, duplicate)
        if device != "meta" and not torch.equal(duplicate, kept):
            raise ArtifactError(f"{folder}: {name} differs from {original}; moeir reads a vocabulary head tied to the word embeddings")
    return weights


def read_header(file: Path) -> dict[str, Tensor]:
    """The shapes of a safetensors file, on `meta`, in float32, or int64 for whole numbers."""
    with _translate_read_errors(file), safe_open(file, framework="pt") as tensors:
        parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
    whole = {name for name, part in parts.items() if part.get_dtype().startswith(("BOOL", "I", "U"))}
    dtypes = {name: torch.int64 if name in whole else torch.float32 for name in parts}
    return {name: torch.empty(part.get_shape(), dtype=dtypes[name], device="meta") for name, part in parts.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; ArtifactError if it is damaged, MoeirError if the system cannot open or map it."""
    with _translate_read_errors(path):
        return load_file(path)


@contextmanager
def _translate_read_errors(path: Path) -> Iterator[None]:
    """Raise the errors of safetensors and of torch, which maps the file, as ours; too little memory is left to the caller."""
    open(path, "rb").close()  # safetensors calls a file missing whatever the system says
    try:
        yield
    except SafetensorError as problem:
        raise ArtifactError(f"{path}: damaged: {problem}") from None
    except RuntimeError as problem:
        if is_out_of_memory(problem):
            raise
        raise MoeirError(f"{path}: cannot be read: {problem}") from None


def list_weight_files(folder: Path) -> list[str]:
    """Names of the weight files: model.safetensors, or those listed in an index."""
    if (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    if not (index := folder / "model.safetensors.index.json").exists():
        raise ArtifactError(f"{folder}: no model.safetensors; convert other formats with transformers' save_pretrained first")
    weight_map = read_json_object(index).get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) and all(isinstance(one, str) for one in weight_map.values()) else set()
    if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
        raise ArtifactError(f"{index}: damaged: expected a weight_map of .safetensors files beside it")
    if missing := sorted(name for name in names if not (folder / name).is_file()):
        raise ArtifactError(f"{folder}: no {missing[0]}, which its index names ({len(missing)} of {len(names)} files are missing)")
    return sorted(names)


def make_encoder(config: MutableMapping[str, Any], folder: Path, *, vocabulary_head: bool, initialize: bool = False) -> Encoder:
    """An encoder of the sizes in a folder's config.json, to be filled; with `initialize` its weights are random, as for a training.

    That of transformers always has a vocabulary head if its kind has one.
    """
    if uses_transformers(config):
        encoder: Encoder = import_transformers_model().make_transformers_encoder(config, folder, initialize=initialize)
        return encoder
    encoder = Encoder(parse_encoder_config(config, folder), vocabulary_head=vocabulary_head)
    encoder.name_map = import_family(config, folder).NAMES
    return encoder


def read_encoder(folder: Path, *, config: MutableMapping[str, Any] | None = None) -> Encoder:
    """Load an encoder with its vocabulary head from a folder of plain weights; a model of transformers has one only if its kind does.
    `config` is the folder's config.json if it is read already; what a probe finds is noted there.

    ArtifactError for a missing weight, one that the encoder does not have, or a wrong shape; initialising a vocabulary head that is missing
    is left to the caller.
    """
    config = read_config(folder) if config is None else config
    if uses_transformers(config):
        opened: Encoder = import_transformers_model().read_transformers_encoder(folder, config)
        return opened
    names = import_family(config, folder).NAMES
    weights = read_weights(folder, config)
    has_head = any(name.startswith("vocabulary_head.") for name in weights)
    encoder_config = parse_encoder_config(config, folder)
    check_sizes(folder, encoder_config, weights)
    encoder = Encoder(encoder_config, vocabulary_head=True)
    encoder.name_map = names
    expected = encoder.state_dict()
    needed = [name for name in expected if has_head or not name.startswith("vocabulary_head.")]
    if missing := [names.to_hf(name, has_head=False) for name in needed if name not in weights]:
        raise ArtifactError(f"{folder}: weights are missing, first {missing[0]} ({len(missing)} in all); expected a whole checkpoint")
    check_shapes(folder, expected, weights)
    in_files = [name for file in list_weight_files(folder) for name in read_header(folder / file)]
    if unread := names.find_unread(in_files, encoder_config.layers, expected):
        reason = "config.json describes an encoder without; expected files of one model"
        raise ArtifactError(f"{folder}: {len(unread)} weights are not read, first {unread[0]}: {reason}")
    encoder.load_state_dict({name: weights[name] for name in expected if name in weights}, strict=False)
    return encoder


def check_sizes(folder: Path, config: EncoderConfig, weights: Mapping[str, Tensor]) -> None:
    """ArtifactError if config.json has other sizes than the weights beside it: nothing of these sizes is allocated before."""
    if config.layers > len(weights):
        raise ArtifactError(f"{folder}/config.json: num_hidden_layers is {config.layers}, and there are only {len(weights)} weights")
    with torch.device("meta"), _SkipInit():
        check_shapes(folder, Encoder(config).state_dict(), weights)


class _SkipInit(TorchFunctionMode):
    """Makes modules without drawing normal numbers, for which torch imports its compiler on the device `meta`: a second."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if function is torch.nn.init.normal_ else function(*args, **(kwargs or {}))


def check_shapes(folder: Path, expected: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """ArtifactError if a weight's shape differs from the expected one, or if it holds whole numbers for fractions, NaN, or numbers at
    or near infinity."""
    for name, target in expected.items():
        if name in weights and target.is_floating_point() and not weights[name].is_floating_point():
            raise ArtifactError(f"{folder}: {name} is of {weights[name].dtype}; moeir reads weights that are not quantised")
        if name in weights and weights[name].shape != target.shape:
            actual, declared = list(weights[name].shape), list(target.shape)
            raise ArtifactError(f"{folder}: {name} has shape {actual}; config.json says {declared}")
        if name in weights and not target.is_meta and not bool(torch.linalg.vector_norm(weights[name].float()).isfinite()):
            raise ArtifactError(f"{folder}: {name} holds NaN, infinity or a number near it, as after a training that failed")


def has_vocabulary_head(folder: Path) -> bool:
    """Whether a folder of weights of one of our families has an MLM head."""
    return any(name.startswith("vocabulary_head.") for name in read_weights(folder, read_config(folder), device="meta"))


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    hf_compatible: bool,
    file_names: Mapping[str, str] | None = None,
    has_head: bool = False,
) -> None:
    """Write config.json and model.safetensors. `hf_compatible` weights have the family's class name and load in transformers;
    others have model type `moeir`, so that transformers does not load a part of them by mistake. `file_names` are the encoder's;
    `has_head`: with its vocabulary head, which may have no weights of its own.

    Weights that were read in half precision and still are numbers of it are written so; all others in float32.
    """
    masked_lm, has_classifier = (any(name.startswith(part) for name in weights) for part in ("vocabulary_head.", CLASSIFIER_PREFIX))
    written_config = {key: value for key, value in config.items() if key not in OMITTED_KEYS}
    family_name = str(config.get("moeir_family", config["model_type"]))
    if hf_compatible:
        if has_classifier:
            written_config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        task = "ForSequenceClassification" if has_classifier else "ForMaskedLM" if masked_lm else "Model"
        if file_names is None:
            class_name = import_family(config, folder).NAMES.class_prefix + task
        else:
            class_name, weights = import_transformers_model().to_files(config, folder, weights, file_names, has_head=has_head)
        written_config |= {"model_type": family_name, "architectures": [class_name]}
    else:
        written_config |= {"model_type": "moeir", "moeir_family": family_name, "architectures": []}
    if not uses_transformers(config):
        to_hf = import_family(config, folder).NAMES.to_hf
        weights = {to_hf(name, has_head=masked_lm or has_classifier): value for name, value in weights.items()}
        written_config |= {"tie_word_embeddings": True} if masked_lm else {}
    half = HALF_DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")))
    tensors = {name: _narrow(value.detach().cpu().to(torch.float32), half).contiguous() for name, value in sorted(weights.items())}
    first = {tensor.data_ptr(): name for name, tensor in reversed(tensors.items())}
    tensors = {name: tensor if first[tensor.data_ptr()] == name else tensor.clone() for name, tensor in tensors.items()}  # T5 ties some
    is_half = all(tensor.dtype == half for tensor in tensors.values())
    written_config["dtype"] = str(half).removeprefix("torch.") if is_half else "float32"
    (folder / "config.json").write_text(json.dumps(written_config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _write_shards(tensors, folder)


def _narrow(tensor: Tensor, half: torch.dtype | None) -> Tensor:
    """The tensor in half precision if that loses nothing."""
    narrow = tensor if half is None else tensor.to(half)
    return narrow if torch.equal(narrow.float(), tensor) else tensor


def _write_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write model.safetensors, or several files and their index."""
    split = split_torch_state_dict_into_shards(dict(tensors), max_shard_size=SHARD_BYTES)
    for name, members in split.filename_to_tensors.items():
        write_tensors({member: tensors[member] for member in members}, folder / name)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; MoeirError if writing fails. What the library left of an earlier, killed attempt is removed."""
    for abandoned in path.parent.glob(".tmp??????"):
        abandoned.unlink()
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as problem:
        raise MoeirError(f"{path}: cannot be written: {problem}") from None
    path.chmod(0o666 & ~_umask())  # safetensors creates a file that only its owner can read


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
