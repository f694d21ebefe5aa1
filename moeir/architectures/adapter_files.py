"""Adapters on disk: for each expert a folder in PEFT's layout, and the trunk that they belong to, which is named, not copied."""

import json
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from moeir.architectures.base import Architecture
from moeir.artifacts import atomic_write, manifests
from moeir.backbones.families import weights_io
from moeir.backbones.json_fields import read_json_object
from moeir.backbones.layers import FrozenEmbedding, FrozenLinear, is_plain_linear, list_frozen
from moeir.errors import ArtifactError, UsageError
from moeir.mixtures.adapters import Adapted, AdaptedEmbedding

FOLDER, CONFIG_FILE, WEIGHTS_FILE = "adapters", "adapter_config.json", "adapter_model.safetensors"
TRUNK_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OWN = ""  # of the adapter that a folder is: it belongs to the only expert of the architecture
ROLE_FOLDERS = {"query": "retrieval_query", "document": "retrieval_passage"}  # of jina's, with an adapter for each task
_WEIGHT = re.compile(r"base_model\.model\.(.+)\.lora_(?:([AB])\.weight|embedding_([AB]))")  # of a map, or a table
_READ = {"base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "use_rslora"}  # of adapter_config.json
_HARMLESS = {  # which maps have an adapter, the tensors say
    *("auto_mapping", "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "megatron_core", "peft_version"),
    *("qalora_group_size", "runtime_config", "target_modules", "task_type"),
}
_EXPECTED = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, "gaussian", "orthogonal")}  # of others, nothing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trunk:
    """The frozen weights of a checkpoint with adapters: a name on the hub and its `revision`, or the path of a folder; whose layers run it,
    moeir's or transformers'; the dtype in which linear maps and embeddings are held; size and checksum of config.json and the weights."""

    model: str
    revision: str | None
    backbone: str
    dtype: str
    files: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_folder(cls, model: Path, folder: Path, backbone: str, dtype: str) -> Self:
        """The trunk that a user calls `model`, in its `folder`; UsageError if that is a temporary one, unpacked from a GGUF file."""
        is_snapshot = folder.parent.name == "snapshots" and not model.is_dir()
        if not model.is_dir() and not is_snapshot:
            command = f"moeir init --model {model} --arch dense --output FOLDER"
            raise UsageError(f"{model}: adapters refer to a folder of weights; make one first: {command}")
        name, revision = (str(model), folder.name) if is_snapshot else (str(folder.resolve()), None)
        return cls(name, revision, backbone, dtype, _checksum_trunk(folder))

    @property
    def digest(self) -> str:
        """Digest of config.json and the weights, whatever the folder is called."""
        return manifests.digest_files(self.files)

    def to_dict(self, checkpoint: Path) -> dict[str, Any]:
        """The entry of moeir.json; the path of a folder is relative to the checkpoint."""
        product = atomic_write.final_path(checkpoint).resolve()
        return asdict(self) | {"model": self.model if self.revision else os.path.relpath(self.model, product)}


def _checksum_trunk(folder: Path) -> dict[str, dict[str, Any]]:
    files = [folder / name for name in ("config.json", *weights_io.list_weight_files(folder))]
    return {file.name: entry for file, entry in zip(files, manifests.compute_checksums(files), strict=True)}


def open_trunk(checkpoint: Path, entry: Mapping[str, Any]) -> tuple[Trunk, Path]:
    """The trunk that moeir.json of a checkpoint names, and its folder; ArtifactError if it is gone or another one."""
    try:
        trunk, folder = Trunk(**entry), Path(os.path.realpath(checkpoint / entry["model"]))
        files = dict(trunk.files)
        if trunk.dtype not in TRUNK_DTYPES:
            raise ValueError(trunk.dtype)
    except (TypeError, KeyError, ValueError):
        raise ArtifactError(f"{checkpoint}/moeir.json: damaged: not what moeir writes of a trunk; make the checkpoint again") from None
    if trunk.revision:
        folder = weights_io.resolve_commit(trunk.model, trunk.revision, files)
    elif not folder.is_dir():
        raise ArtifactError(f"{checkpoint}: the weights that its adapters belong to are gone from {folder}; put them, or a link, there")
    else:
        trunk = replace(trunk, model=str(folder))
    trunk = replace(trunk, files=_checksum_trunk(folder))
    if changed := sorted(name for name in files.keys() | trunk.files.keys() if files.get(name) != trunk.files.get(name)):
        raise ArtifactError(f"{folder}/{changed[0]}: not the file that the adapters of {checkpoint} were trained on; put that back")
    return trunk, folder


def hold_trunk(architecture: Architecture, trunk: Trunk) -> None:
    """Hold the frozen linear maps and embeddings of an architecture in the dtype of its trunk; what they give is in that of products, or
    float32. Word embeddings that a vocabulary head reads stay float32."""
    if (dtype := TRUNK_DTYPES[trunk.dtype]) == torch.float32:
        return
    frozen = list_frozen(architecture)
    for owner_name, owner in list(architecture.named_modules()):
        for name, part in list(owner.named_children()):
            if f"{owner_name}.{name}.weight".removeprefix(".") not in frozen:
                continue
            if is_plain_linear(part):
                part = FrozenLinear(part)  # type: ignore[arg-type]
            elif type(part) is nn.Embedding and architecture.encoder.vocabulary_head is None:
                part = FrozenEmbedding(part)
            if isinstance(part, FrozenLinear | FrozenEmbedding):
                for weight in (part.weight, part._parameters.get("bias")):
                    if weight is not None:
                        weight.data = weight.data.to(dtype)
                setattr(owner, name, part)


def select_head_weights(architecture: nn.Module) -> dict[str, Tensor]:
    """The weights of an architecture's heads and routers, by name: its state without frozen weights and adapters."""
    adapted = [name for name, module in architecture.named_modules() if isinstance(module, Adapted)]
    left_out = list_frozen(architecture) | {f"{name}.{part}" for name in adapted for part in ("down", "up")}
    return {name: value for name, value in architecture.state_dict().items() if name not in left_out}


def write_adapters(folder: Path, architecture: nn.Module, trunk: Trunk, *, at_root: bool) -> None:
    """Write each expert's adapters as PEFT does, in adapters/EXPERT, or those of the only expert `at_root`."""
    maps = [module for module in architecture.modules() if isinstance(module, Adapted)]
    for expert in dict.fromkeys(expert for module in maps for expert in module.experts):
        own = [(module, module.experts.index(expert)) for module in maps if expert in module.experts]
        first, rank = own[0][0], own[0][0].down.shape[1]
        config = {"peft_type": "LORA", "task_type": None, "base_model_name_or_path": trunk.model, "revision": trunk.revision}
        config |= {"r": rank, "lora_alpha": first.scaling * rank, "lora_dropout": first.dropout.p, "bias": "none", "inference_mode": True}
        config |= {"target_modules": sorted(module.path for module, _ in own), "fan_in_fan_out": False, "use_rslora": False}
        target = folder if at_root else folder / FOLDER / expert
        target.mkdir(parents=True, exist_ok=True)
        (target / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        weights = {}
        for module, number in sorted(own, key=lambda one: one[0].path):
            name = "lora_embedding_{}" if isinstance(module, AdaptedEmbedding) else "lora_{}.weight"
            for part, value in (("A", module.down), ("B", module.up)):
                weights[f"base_model.model.{module.path}.{name.format(part)}"] = value[number]
        weights_io.write_tensors({name: value.detach().cpu().contiguous() for name, value in weights.items()}, target / WEIGHTS_FILE)


class PeftAdapter(NamedTuple):
    """A folder in PEFT's layout: base model and revision, rank, the factor of its product, the rate of its dropout, and of each map or
    table, by its name in transformers, A [r, K] and B [N, r]."""

    folder: Path
    base: str
    revision: str | None
    rank: int
    scaling: float
    dropout: float
    weights: dict[str, tuple[Tensor, Tensor]]


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder holds an adapter in PEFT's layout."""
    return (folder / CONFIG_FILE).is_file()


def read_adapter(folder: Path) -> PeftAdapter:
    """Read an adapter in PEFT's layout; ArtifactError for one with more than the low-rank update of linear maps and tables.

    One that names no base belongs to the model in whose folder it lies.
    """
    source = folder / CONFIG_FILE
    config = read_json_object(source)
    for name, value in config.items():
        if value and (value not in _EXPECTED[name] if name in _EXPECTED else name not in _READ | _HARMLESS):
            raise ArtifactError(f"{source}: {name} is {value!r}; moeir reads low-rank updates (LORA) alone, without biases")
    rank, alpha, dropout, base = (config.get(name) for name in ("r", "lora_alpha", "lora_dropout", "base_model_name_or_path"))
    if base is None and (folder.resolve().parent / "config.json").is_file():
        base = str(folder.resolve().parent)
    if (
        not isinstance(rank, int)
        or rank < 1
        or not all(isinstance(one, int | float) for one in (alpha, dropout))
        or not isinstance(base, str)
    ):
        raise ArtifactError(f"{source}: expected r, lora_alpha, lora_dropout and base_model_name_or_path, as PEFT writes them")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in weights_io.read_tensors(folder / WEIGHTS_FILE).items():
        if (match := _WEIGHT.fullmatch(name)) is None:
            raise ArtifactError(f"{folder / WEIGHTS_FILE}: {name} is not read; expected low-rank updates of maps and embeddings alone")
        parts.setdefault(match[1], {})[match[2] or match[3]] = value.float()
    for path, pair in parts.items():
        if pair.keys() != {"A", "B"} or pair["A"].shape[0] != rank or pair["B"].shape[-1] != rank or pair["A"].ndim != 2:
            raise ArtifactError(f"{folder / WEIGHTS_FILE}: {path}: expected A [{rank}, inputs] and B [outputs, {rank}]")
    scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    weights = {path: (pair["A"], pair["B"]) for path, pair in parts.items()}
    return PeftAdapter(folder, base, config.get("revision"), rank, scaling, dropout, weights)


def find_adapters(folder: Path, arch: str, options: Mapping[str, str]) -> dict[str, PeftAdapter]:
    """The adapters that a folder of weights has for an architecture with these `options`, by expert: its own, or, for `mote:adapters=RANK`,
    those of the two roles of retrieval below a whole model. That of a pooler is left out, if no cross-encoder reads it.

    UsageError for options that differ from theirs.
    """
    if is_adapter_folder(folder):
        return {OWN: _read_published(folder, arch)}
    folders = {expert: folder / name for expert, name in ROLE_FOLDERS.items()}
    by_role = arch == "mote" and options.get("encoders", "mote") == "mote" and options.get("adapters", "0") != "0"
    if not by_role or not all(map(is_adapter_folder, folders.values())):
        return {}
    adapters = {expert: _read_published(one, arch) for expert, one in folders.items()}
    for adapter in adapters.values():
        for name, value in describe_options(adapter).items():
            if (own := options.get(name, describe_options(adapters["query"])[name])) != value:
                raise UsageError(f"{adapter.folder}: an adapter with {name}={value}, where {own} is expected; leave {name} out")
    log.info("%s: experts start from %s", folder, " and ".join(ROLE_FOLDERS.values()))
    return adapters


def _read_published(folder: Path, arch: str) -> PeftAdapter:
    adapter = read_adapter(folder)
    if arch == "cross-encoder":
        return adapter
    return adapter._replace(weights={path: pair for path, pair in adapter.weights.items() if not path.startswith("pooler.")})


@torch.no_grad()
def copy_adapter(adapter: PeftAdapter, architecture: nn.Module, expert: str) -> None:
    """Copy an adapter into those of an expert, or of the only one (`OWN`); ArtifactError unless it has the same maps, sizes and scale."""
    folder, adapted = adapter.folder, [part for part in architecture.modules() if isinstance(part, Adapted)]
    modules = {part.path: part for part in adapted if expert in part.experts or (expert == OWN and len(part.experts) == 1)}
    if differing := sorted(modules.keys() ^ adapter.weights.keys()):
        raise ArtifactError(f"{folder}: its maps are not those that the architecture adapts (first: {differing[0]})")
    for path, module in modules.items():
        number = 0 if expert == OWN else module.experts.index(expert)
        targets = {f"{path} A": module.down[number], f"{path} B": module.up[number]}
        weights = dict(zip(targets, adapter.weights[path], strict=True))
        weights_io.check_shapes(folder, targets, weights)
        if not math.isclose(module.scaling, adapter.scaling, rel_tol=1e-6):
            raise ArtifactError(
                f"{folder}: lora_alpha / r is {adapter.scaling:g}; the architecture has adapter_alpha / adapters {module.scaling:g}"
            )
        for name, target in targets.items():
            target.copy_(weights[name])


def read_adapters(checkpoint: Path, architecture: nn.Module, *, at_root: bool) -> None:
    """Copy the adapters of a checkpoint's experts into an architecture."""
    experts = dict.fromkeys(expert for part in architecture.modules() if isinstance(part, Adapted) for expert in part.experts)
    for expert in experts:
        folder = checkpoint if at_root else checkpoint / FOLDER / expert
        copy_adapter(read_adapter(folder), architecture, expert)


def describe_options(adapter: PeftAdapter) -> dict[str, str]:
    """The options of an architecture that has the adapters of a folder; the maps are named by their last parts."""
    maps = sorted({path.rpartition(".")[2] for path in adapter.weights})
    options = {"adapters": str(adapter.rank), "adapter_alpha": f"{adapter.scaling * adapter.rank:g}", "adapter_maps": "+".join(maps)}
    return options | ({"adapter_dropout": f"{adapter.dropout:g}"} if adapter.dropout else {})
