"""State needed to resume training: weights, optimiser moments, step, length of the metrics file, best weights."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from moeir.artifacts import atomic_write, manifests
from moeir.artifacts.unfinished import TRAINING_STATE
from moeir.backbones.families.weights_io import read_tensors, write_tensors
from moeir.backbones.layers import list_frozen
from moeir.errors import ArtifactError

STATE_FILE = TRAINING_STATE.name
WEIGHTS_FILE, OBJECTIVE = "weights.safetensors", "objective"
Tensors: TypeAlias = Mapping[str, Tensor]
NOTHING: Tensors = MappingProxyType({})


@dataclass
class BestTracker:
    """The best evaluation so far, the earliest of equal ones, and the number of evaluations since."""

    step: int = 0
    value: float = -1.0
    since: int = 0
    evaluations: int = 0

    def update(self, step: int, value: float, *, lower_is_better: bool = False) -> bool:
        """Record a value; true if it is the best. Any number is better than NaN."""
        self.evaluations += 1
        is_better = value < self.value if lower_is_better else value > self.value
        if self.evaluations > 1 and not is_better and not math.isnan(self.value):
            self.since += 1
            return False
        self.step, self.value, self.since = step, value, 0
        return True

    def should_stop(self, patience: int | None) -> bool:
        """Whether the last `patience` evaluations brought no better value."""
        return patience is not None and self.since >= patience


@dataclass(frozen=True)
class TrainingState:
    """Completed steps of `steps`, the bytes of `metrics.jsonl` that belong to them, the best evaluation among them, and how many processes
    shared each batch."""

    step: int
    metrics_bytes: int
    best: BestTracker = field(default_factory=BestTracker)
    steps: int | None = None
    processes: int | None = None


def save_state(folder: Path, model: nn.Module, optimiser: Optimizer, state: TrainingState, of_objective: Tensors = NOTHING) -> None:
    """Replace the saved state in `folder` atomically."""
    _replace_state(folder, model, asdict(state), optimiser, of_objective)


def load_state(folder: Path, model: nn.Module, optimiser: Optimizer, of_objective: Tensors = NOTHING) -> TrainingState:
    """Load what `save_state` wrote into model, optimiser and an objective's tensors; an empty folder means step 0. ArtifactError if a byte
    has changed."""
    if not (folder / STATE_FILE).exists():
        return TrainingState(0, 0)
    state = _read_state(folder)
    _load_trained(folder / WEIGHTS_FILE, model)
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in read_tensors(folder / "optimiser.safetensors").items():
        number, name = key.split(".", 1)
        if number == OBJECTIVE:
            of_objective[name].copy_(value)
        else:
            moments.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict(optimiser.state_dict() | {"state": moments})
    return TrainingState(state["step"], state["metrics_bytes"], BestTracker(**state["best"]), processes=state["processes"])


def save_best(folder: Path, model: nn.Module, step: int) -> None:
    """Replace the best weights in `folder` by those after `step` steps, atomically."""
    _replace_state(folder, model, {"step": step})


def load_best(folder: Path, model: nn.Module, step: int) -> None:
    """Load the best weights into the model; ArtifactError unless they were saved after `step` steps."""
    saved_step = _read_state(folder)["step"]
    if saved_step != step:
        raise ArtifactError(f"{folder}: holds the weights of step {saved_step}, step {step} was the best; start over with --force")
    _load_trained(folder / WEIGHTS_FILE, model)


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model without weights that do not train."""
    frozen = list_frozen(model)
    return {name: value for name, value in model.state_dict().items() if name not in frozen}


def _load_trained(file: Path, model: nn.Module) -> None:
    weights = read_tensors(file)
    if differing := sorted(weights.keys() ^ _trained_weights(model).keys()):
        raise ArtifactError(f"{file}: not the weights that are trained (first: {differing[0]}); --force starts the training over")
    model.load_state_dict(weights, strict=False)


def _read_state(folder: Path) -> dict[str, Any]:
    """What `_replace_state` wrote, after a check of its checksums."""
    advice = "--force starts the training over"
    try:
        text = (folder / STATE_FILE).read_text(encoding="utf-8")
        state = json.loads(text)
    except (FileNotFoundError, ValueError):
        text, state = "", None
    if not isinstance(state, dict) or "files" not in state or text != manifests.serialize_manifest(state):
        raise ArtifactError(f"{folder / STATE_FILE}: damaged: not a saved training state; {advice}")
    files = {folder / name: entry for name, entry in state["files"].items()}
    changed = (file for file, entry in files.items() if not file.is_file() or file.stat().st_size != entry["bytes"])
    if (file := next(changed, None) or manifests.first_mismatch(files)) is not None:
        raise ArtifactError(f"{file}: damaged: its checksum is not the one that was saved; {advice}")
    return state


def _replace_state(
    folder: Path, model: nn.Module, state: dict[str, Any], optimiser: Optimizer | None = None, of_objective: Tensors = NOTHING
) -> None:
    temporary = folder.with_name(folder.name + ".new")
    atomic_write.make_folder(temporary)
    write_tensors({name: value.detach().cpu().contiguous() for name, value in _trained_weights(model).items()}, temporary / WEIGHTS_FILE)
    if optimiser is not None:
        states = optimiser.state_dict()["state"].items()
        moments = {f"{number}.{name}": value for number, values in states for name, value in values.items()}
        moments |= {f"{OBJECTIVE}.{name}": value for name, value in of_objective.items()}
        write_tensors({name: value.cpu().contiguous() for name, value in moments.items()}, temporary / "optimiser.safetensors")
    files = sorted(temporary.glob("*.safetensors"))
    entries = {file.name: entry for file, entry in zip(files, manifests.compute_checksums(files), strict=True)}
    atomic_write.write_text_atomically(temporary / STATE_FILE, manifests.serialize_manifest(state | {"files": entries}))
    atomic_write.replace_folder(temporary, folder)
