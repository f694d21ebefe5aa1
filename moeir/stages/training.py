"""What `pretrain` and `finetune` share: how long and how fast, on what, how memory is saved, who is told."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir.errors import UsageError
from moeir.settings import as_dict, option, product
from moeir.stages.base import Stage
from moeir.stages.init import check_seed
from moeir.values import convert

if TYPE_CHECKING:
    from torch import nn

    from moeir.learning.distributed import World
    from moeir.learning.loop import Schedule
    from moeir.learning.trackers import Tracking

SCHEDULES = ("linear", "constant")


@dataclass(frozen=True, kw_only=True)
class Training(Stage):
    """A stage that walks `learning.loop`."""

    batch_size: int = option("Texts that meet in a batch, which all processes share.", 8)
    accumulate: int = option("Batches per step.", 1, names=("--gradient-accumulation-steps",))
    epochs: int = option("Times over the examples.", 1, names=("--num-train-epochs",))
    steps: int | None = option("Steps in all; wins over --epochs.", None, names=("--max-steps",))
    learning_rate: float = option("Highest learning rate (AdamW).", 1e-5)
    warmup: float = option("Ratio of the steps over which the learning rate rises.", 0.1, names=("--warmup-ratio",))
    schedule: str = option("After the rise: linear (falls to 0) or constant.", "linear", names=("--lr-scheduler-type",))
    group_rate: tuple[str, ...] = option("PATTERN=RATE: the highest rate of parameters with that in their names; repeat the flag.", ())
    weight_decay: float = option("Weight decay of matrices.", 0.0)
    clip: float = option("Largest gradient norm; 0 does not clip.", 1.0, names=("--max-grad-norm",))
    recompute: bool = option(
        "Keep each layer's input only, and compute the layer again for its gradient.",
        False,
        names=("--gradient-checkpointing",),
        affects_result=False,
    )
    attention_dropout: float | None = option(
        "Probability that an attention weight is dropped, in place of the weights' own [theirs]; 0 is fastest on a GPU.", None
    )
    seed: int = option("Seed of everything that is drawn.", 42)
    deterministic: bool = option("Give the same bytes again on the same GPU, which is slower; a CPU always does.", False)
    compile: bool = option("Compile the layers with torch.compile (CUDA only), for a minute or more at the start.", False)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    cache: Path | None = option("Folder of the tokens, read once [default: beside the unfinished product].", None, affects_result=False)
    save_minutes: float = option("Minutes between saves of the training state.", 5.0, affects_result=False)
    log_every: int | None = option(
        "Steps whose losses are read from the device at once; metrics.jsonl has every step [10 on a GPU, 1 on a CPU].",
        None,
        names=("--logging-steps",),
        affects_result=False,
    )
    stuck_minutes: float = option("Minutes after which a process that does not come to a step is given up.", 10.0, affects_result=False)
    track: tuple[str, ...] = option(
        "tensorboard or wandb, told of every step; files go to OUTPUT.tensorboard, …", (), names=("--report-to",), affects_result=False
    )
    output: Path = product("checkpoint", "Folder to write.")

    def check(self) -> None:
        from moeir.learning import trackers

        positive = {"--batch-size": self.batch_size, "--epochs": self.epochs, "--steps": self.steps, "--learning-rate": self.learning_rate}
        positive |= {"--accumulate": self.accumulate, "--stuck-minutes": self.stuck_minutes, "--log-every": self.log_every}
        for flag, value in positive.items():
            if value is not None and value <= 0:
                raise UsageError(f"{flag} {value}: expected more than 0")
        for flag, value in {"--weight-decay": self.weight_decay, "--clip": self.clip}.items():
            if value < 0:
                raise UsageError(f"{flag} {value}: expected 0 or more")
        if self.attention_dropout is not None and not 0 <= self.attention_dropout < 1:
            raise UsageError(f"--attention-dropout {self.attention_dropout}: expected 0 or more and less than 1")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"--warmup {self.warmup}: expected a ratio of the steps, 0 to 1")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"--schedule {self.schedule}: expected {' or '.join(SCHEDULES)}")
        _rates(self.group_rate)
        check_seed(self.seed)
        trackers.named(self.track)

    def world(self) -> "World":
        from moeir.backbones import precision
        from moeir.learning import distributed

        precision.set_determinism(precision.resolve_device(self.device), self.deterministic)
        process_group = distributed.joined(self.device)
        if self.compile and not process_group.device.startswith("cuda"):
            raise UsageError(f"--compile: is for CUDA devices, and this training runs on {process_group.device}; leave it out")
        return process_group

    def prepare_layers(self, model: "nn.Module") -> None:
        """What the flags say of the layers of all that learns."""
        from moeir.backbones import layers

        if self.attention_dropout is not None:
            layers.set_attention_dropout(model, self.attention_dropout)
        if self.compile:
            layers.compile_layers(model)

    def steps_of(self, batches_per_epoch: int) -> int:
        """Steps in all, where an epoch has so many batches; the last few batches that fill no step are left out."""
        return self.steps or max(1, self.epochs * batches_per_epoch // self.accumulate)

    def planned(self, batches_per_epoch: int, layer_decay: float = 1.0) -> "Schedule":
        """How long and how fast, where an epoch has so many batches."""
        from moeir.learning.loop import Schedule

        return Schedule(
            self.steps_of(batches_per_epoch),
            self.learning_rate,
            self.warmup,
            self.weight_decay,
            self.clip,
            self.seed,
            self.save_minutes,
            self.schedule,
            layer_decay,
            _rates(self.group_rate),
            self.accumulate,
        )

    def tracking(self) -> "Tracking | None":
        """Who else is told of every step."""
        from moeir.learning import trackers

        return trackers.tracking(self.track, self.output, as_dict(self, results_only=True))


def _rates(options: tuple[str, ...]) -> dict[str, float]:
    """Learning rates by pattern, from PATTERN=RATE."""
    rates = {}
    for option_text in options:
        pattern, equals, rate = option_text.rpartition("=")
        if not (pattern and equals):
            raise UsageError(f"--group-rate {option_text}: expected PATTERN=RATE, as in mixture=1e-4")
        rates[pattern] = convert(rate, "float", f"--group-rate {option_text}")
        if not 0 <= rates[pattern] < float("inf"):
            raise UsageError(f"--group-rate {option_text}: expected a rate of 0 or more")
    return rates
