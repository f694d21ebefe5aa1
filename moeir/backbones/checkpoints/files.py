"""Folders of weights: found, read into our encoder, and written back as the family lays them out."""

import importlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeir.backbones.encoder import Encoder
from moeir.backbones.shape import Shape
from moeir.errors import ArtifactError, MoeirError, UsageError

FAMILIES = tuple(sorted(file.stem for file in Path(__file__).parent.glob("*.py") if file.stem not in ("__init__", "files", "names")))
PAIR = "heads.relevance."  # how the names of what scores a pair begin
DROPPED = ("moeir_family", "transformers_version", "_name_or_path", "torch_dtype")  # keys of a config.json that we do not hand on
log = logging.getLogger(__name__)


def located(model: Path) -> Path:
    """The folder of `model`: itself, or what the hub (or its cache) has under that name."""
    if model.is_dir():
        return model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.txt", "*.safetensors", "1_Pooling/*"]
        return Path(snapshot_download(str(model), allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as problem:
        reason = str(problem).split("\n")[0]
        raise UsageError(f"{model}: not a folder, and the hub could not give it ({reason}); expected a folder of weights") from None


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a folder of weights."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError
    except FileNotFoundError:
        raise ArtifactError(f"{folder}: no config.json; expected a folder that transformers or moeir wrote") from None
    except ValueError:
        raise ArtifactError(f"{folder}/config.json: not a JSON object") from None
    return dict(config)


def family(config: Mapping[str, Any], folder: Path) -> ModuleType:
    """The module that knows a family's names."""
    name = str(config.get("moeir_family", config.get("model_type", ""))).replace("-", "_")
    if name not in FAMILIES:
        raise UsageError(f"{folder}: model_type is {name!r}; moeir reads {', '.join(FAMILIES)}")
    return importlib.import_module(f"moeir.backbones.checkpoints.{name}")


def shape_of(config: Mapping[str, Any], folder: Path) -> Shape:
    """The sizes that config.json of a folder says."""
    try:
        shape: Shape = family(config, folder).shape(config)
    except KeyError as problem:
        raise ArtifactError(f"{folder}/config.json: says no {problem}; expected the file that came with the weights") from None
    return shape


def read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every weight of a folder in float32, under our names."""
    names = _shards(folder)
    kin, last = family(config, folder), shape_of(config, folder).layers - 1
    weights: dict[str, Tensor] = {}
    for name in names:
        try:
            loaded = load_file(folder / name)
        except SafetensorError as problem:
            raise ArtifactError(f"{folder / name}: damaged: {problem}") from None
        named = ((kin.ours(key), value) for key, value in loaded.items())
        weights |= {_numbered(key, last): value.float() if value.is_floating_point() else value for key, value in named if key is not None}
    _untwin(folder, weights, kin.TIED)
    return _scoring(weights)


def _scoring(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """What scores pairs under its own name, where a family calls it as it does the vocabulary head (ModernBERT)."""
    if f"{PAIR}output.weight" not in weights or "vocabulary_head.bias" in weights:
        return weights
    own = {"vocabulary_head.transform.": f"{PAIR}dense.", "vocabulary_head.norm.": f"{PAIR}norm."}
    begun = {name: next((old for old in own if name.startswith(old)), "") for name in weights}
    return {own.get(old, "") + name.removeprefix(old): weights[name] for name, old in begun.items()}


def _numbered(name: str, last: int) -> str:
    """With its number, where a family's name of a weight says no more than that it is the last layer's."""
    return f"layers.{last}." + name.removeprefix("layers.last.") if name.startswith("layers.last.") else name


def _shards(folder: Path) -> list[str]:
    """The files that hold the weights: one, or those an index names."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").exists():
            raise ArtifactError(f"{folder}: no model.safetensors; convert other formats with transformers' save_pretrained first")
        return ["model.safetensors"]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ArtifactError(f"{index}: damaged: expected a weight_map of file names") from None
    if missing := [name for name in names if not (folder / name).exists()]:
        raise ArtifactError(f"{folder}: no {missing[0]}, which its index names ({len(missing)} of {len(names)} files are missing)")
    return names


def _untwin(folder: Path, weights: dict[str, Tensor], tied: Mapping[str, str]) -> None:
    """Leave out what some files repeat; ArtifactError for a twin that says something else."""
    for name, twin in tied.items():
        repeated = weights.pop(name, None)
        if repeated is not None and not torch.equal(repeated, weights.setdefault(twin, repeated)):
            raise ArtifactError(f"{folder}: {name} differs from {twin}; moeir reads a vocabulary head tied to the word embeddings")


def read_encoder(folder: Path, *, vocabulary_head: bool | None = False, pooler: bool = False) -> Encoder:
    """An encoder with the weights of a plain folder; `vocabulary_head=None` takes the head if the folder has one.

    ArtifactError for a weight that is missing or of another shape; a missing vocabulary head is left to the caller to start.
    """
    config = read_config(folder)
    weights = read_weights(folder, config)
    present = any(name.startswith("vocabulary_head.") for name in weights)
    head = present if vocabulary_head is None else vocabulary_head
    encoder = Encoder(shape_of(config, folder), vocabulary_head=head, pooler=pooler)
    wanted = encoder.state_dict()
    missing = [name for name in wanted if name not in weights and (present or not name.startswith("vocabulary_head."))]
    if missing:
        raise ArtifactError(f"{folder}: weights are missing, first {missing[0]} ({len(missing)} in all); expected a whole checkpoint")
    check_shapes(folder, wanted, weights)
    encoder.load_state_dict({name: weights[name] for name in wanted if name in weights}, strict=False)
    return encoder


def check_shapes(folder: Path, wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """ArtifactError if a weight has another shape than its place."""
    for name, place in wanted.items():
        if name in weights and weights[name].shape != place.shape:
            found, expected = list(weights[name].shape), list(place.shape)
            raise ArtifactError(f"{folder}: {name} has shape {found}; config.json says {expected}")


def has_vocabulary_head(folder: Path) -> bool:
    """Whether a folder of weights brings an MLM head."""
    return any(name.startswith("vocabulary_head.") for name in read_weights(folder, read_config(folder)))


def write(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], *, plain: bool) -> None:
    """config.json and model.safetensors. `plain` weights carry the family's class name and open in transformers;
    others say `moeir` as their model type, so that nothing opens half of them by mistake."""
    kin = family(config, folder)
    masked_lm, scoring = (any(name.startswith(part) for name in weights) for part in ("vocabulary_head.", PAIR))
    kept = {key: value for key, value in config.items() if key not in DROPPED}
    family_name = str(config.get("moeir_family", config["model_type"]))
    if plain:
        class_name = kin.class_name(masked_lm=masked_lm)
        if scoring:
            class_name = class_name.removesuffix("Model") + "ForSequenceClassification"
            kept |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        kept |= {"model_type": family_name, "architectures": [class_name]}
    else:
        kept |= {"model_type": "moeir", "moeir_family": family_name, "architectures": []}
    kept |= {"dtype": "float32"} | ({"tie_word_embeddings": True} if masked_lm else {})
    (folder / "config.json").write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    headed = masked_lm or scoring
    named = {kin.theirs(name, masked_lm=headed): value.detach().cpu().to(torch.float32).contiguous() for name, value in weights.items()}
    write_tensors(dict(sorted(named.items())), folder / "model.safetensors")


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A safetensors file; MoeirError if there is no room for it."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as problem:
        raise MoeirError(f"{path}: cannot be written: {problem}") from None
    path.chmod(0o666 & ~_umask())  # safetensors leaves a file that only its owner can read


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
