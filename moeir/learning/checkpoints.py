"""What a training needs to go on where it stopped: weights, moments of the optimiser, step, length of the metrics so far."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from moeir.artifacts import making
from moeir.backbones.checkpoints.files import write_tensors

STATE = "state.json"


@dataclass(frozen=True)
class Standing:
    """Steps done, and the bytes of `metrics.jsonl` that belong to them."""

    step: int
    metrics_bytes: int


def save(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, standing: Standing) -> None:
    """Replace the saved state in `folder`, whole or not at all."""
    beside = folder.with_name(folder.name + ".new")
    beside.mkdir(parents=True, exist_ok=True)
    write_tensors({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}, beside / "weights.safetensors")
    write_tensors(_moments(optimiser), beside / "optimiser.safetensors")
    making.write_text(beside / STATE, json.dumps({"step": standing.step, "metrics_bytes": standing.metrics_bytes}) + "\n")
    making.replace_folder(beside, folder)


def load(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Standing:
    """Bring back what `save` wrote; nothing there means step 0."""
    if not (folder / STATE).exists():
        return Standing(0, 0)
    said = json.loads((folder / STATE).read_text(encoding="utf-8"))
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    _restore(optimiser, load_file(folder / "optimiser.safetensors"))
    return Standing(said["step"], said["metrics_bytes"])


def _parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    states = ((number, optimiser.state.get(parameter, {})) for number, parameter in enumerate(_parameters(optimiser)))
    return {f"{number}.{name}": value.detach().cpu().contiguous() for number, state in states for name, value in state.items()}


def _restore(optimiser: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    parameters = _parameters(optimiser)
    for key, value in moments.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        on_device = name != "step" or any(group.get("fused") for group in optimiser.param_groups)
        optimiser.state[parameter][name] = value.to(parameter.device) if on_device else value
