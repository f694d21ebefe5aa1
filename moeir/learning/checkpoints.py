"""State needed to resume training: weights, optimiser moments, step, length of the metrics file, best weights."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from moeir.artifacts import making
from moeir.backbones.checkpoints.files import write_tensors
from moeir.errors import ArtifactError
from moeir.learning.validation import Best

STATE = "state.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Standing:
    """Completed steps, the bytes of `metrics.jsonl` that belong to them, and the best evaluation among them."""

    step: int
    metrics_bytes: int
    best: Best = field(default_factory=Best)


def save(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, standing: Standing) -> None:
    """Replace the saved state in `folder` atomically."""
    temporary = folder.with_name(folder.name + ".new")
    temporary.mkdir(parents=True, exist_ok=True)
    _write_weights(model, temporary)
    write_tensors(_moments(optimiser), temporary / "optimiser.safetensors")
    making.write_text(temporary / STATE, json.dumps(asdict(standing)) + "\n")
    making.replace_folder(temporary, folder)


def load(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Standing:
    """Load what `save_state` wrote into model and optimiser; an empty folder means step 0."""
    if not (folder / STATE).exists():
        return Standing(0, 0)
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    model.load_state_dict(load_file(folder / WEIGHTS))
    _restore(optimiser, load_file(folder / "optimiser.safetensors"))
    return Standing(state["step"], state["metrics_bytes"], Best(**state["best"]))


def keep(folder: Path, model: nn.Module, step: int) -> None:
    """Replace the best weights in `folder` by those after `step` steps, atomically."""
    temporary = folder.with_name(folder.name + ".new")
    temporary.mkdir(parents=True, exist_ok=True)
    _write_weights(model, temporary)
    making.write_text(temporary / STATE, json.dumps({"step": step}) + "\n")
    making.replace_folder(temporary, folder)


def bring_back(folder: Path, model: nn.Module, step: int) -> None:
    """Load the best weights into the model; ArtifactError unless they were saved after `step` steps."""
    saved_step = json.loads((folder / STATE).read_text(encoding="utf-8"))["step"]
    if saved_step != step:
        raise ArtifactError(f"{folder}: holds the weights of step {saved_step}, step {step} was the best; start over with --force")
    model.load_state_dict(load_file(folder / WEIGHTS))


def _write_weights(model: nn.Module, folder: Path) -> None:
    write_tensors({name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}, folder / WEIGHTS)


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
