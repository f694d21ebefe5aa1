"""What the stages that make a checkpoint share: reading rules as flags, texts to fit a head on, and the options of training."""

import glob
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from moeir.artifacts import atomic_write, manifests
from moeir.artifacts.unfinished import WorkFolder
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.parsing import is_count, parse_value
from moeir.settings import option, output_field, to_dict, to_yaml
from moeir.stages.base import DEVICE, DTYPE, KEEP_EMPTY, MAX_SEED, Facts, Stage
from moeir.training import trackers

if TYPE_CHECKING:
    from torch import nn

    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.distributed import ProcessGroup
    from moeir.training.trainer import Schedule

RESERVED = ("query", "document", "passage", "corpus")  # names of prompts that are prefixes of a side
SaveCheckpoint: TypeAlias = Callable[[Path, dict[str, Any]], dict[str, Any]]  # into a folder; returns the counts for the manifest
training_option = partial(option, group="Training")
speed_option = partial(option, group="Speed and memory")
logging_option = partial(option, group="Saving and logging", affects_result=False)
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class InputOptions(Stage):
    """The prefixes, prompts and lengths of a checkpoint's texts."""

    query_prefix: str | None = option("Text prepended to every query.", None, group="Model")
    document_prefix: str | None = option("Text prepended to every document.", None, group="Model")
    prompt: tuple[str, ...] = option(
        "NAME=TEXT: a prompt of queries beside --query-prefix, which training and search may name; repeat the flag.", (), group="Model"
    )
    template: str | None = option(
        "For cross-encoder:head=yes-no: the text of a pair, with {query}, {document} and perhaps {instruction} [default: the chat template "
        "of the weights].",
        None,
        group="Model",
    )
    instruction: str | None = option("The {instruction} in a template [default: that of the chat template].", None, group="Model")
    query_length: int | None = option(
        "Maximum tokens of a query [default: that of the weights, or 64; cross-encoder: half a pair].", None, group="Model"
    )
    document_length: int | None = option(
        "Maximum tokens of a document, or of a pair [default: that of the weights, or 256; pair: 512].", None, group="Model"
    )

    def input_options(self) -> dict[str, Any]:
        """The prefixes, prompts and lengths that are given as flags."""
        prompts = {}
        for one in self.prompt:
            name, equals, prompts[name] = one.partition("=")
            if not equals or name in ("", *RESERVED):
                expected = f"NAME=TEXT, with a NAME that is none of {', '.join(RESERVED)} (see --query-prefix, --document-prefix)"
                raise UsageError(f"--prompt {one}: expected {expected}")
        names = ("query_prefix", "document_prefix", "template", "instruction", "query_length", "document_length")
        fields = {name: value for name in names if (value := getattr(self, name)) is not None}
        return fields | ({"prompts": prompts} if prompts else {})


def suggest_after_checkpoint(model: Path, arch: str | None) -> str:
    """The command that uses a new checkpoint: rerank for a cross-encoder, which reads pairs, else encode."""
    from moeir.architectures.initialize import is_cross_encoder

    if is_cross_encoder(model, arch):
        return "rerank --model OUTPUT --run RUN --queries QUERIES@test --corpus CORPUS --output reranked.trec"
    return "encode --model OUTPUT --corpus CORPUS --output enc"


def read_first_texts(corpus: Path | None, count: int = 4000) -> list[str]:
    """The non-empty ones of the first `count` texts of a corpus; none without a corpus."""
    from moeir.records import texts

    return [text.content for text in islice(texts.read_texts(corpus, keep_empty=True), count) if text.content] if corpus else []


@dataclass(frozen=True, kw_only=True)
class TrainingStage(Stage):
    """A stage that runs the trainer (`training.trainer`)."""

    accumulate: int = training_option(
        "Batches per optimizer step, each with negatives of its own.", 1, minimum=1, aliases=("--gradient-accumulation-steps",)
    )
    epochs: int = training_option("Passes over the examples.", 1, minimum=1, aliases=("--num-train-epochs",))
    steps: int | None = training_option("Total optimizer steps; overrides --epochs.", None, minimum=1, aliases=("--max-steps",))
    learning_rate: float = training_option("Peak learning rate (AdamW).", 1e-5, above=0)
    warmup: float = training_option("Warmup steps as a fraction of all steps.", 0.1, minimum=0, maximum=1, aliases=("--warmup-ratio",))
    schedule: str = training_option(
        "Learning rate after warmup; linear decays to 0.", "linear", choices=("linear", "constant"), aliases=("--lr-scheduler-type",)
    )
    group_rate: tuple[str, ...] = training_option(
        "PATTERN=RATE: peak learning rate of parameters whose names contain PATTERN; repeat the flag.", ()
    )
    weight_decay: float = training_option("Weight decay of weight matrices.", 0.0, minimum=0)
    clip: float = training_option("Maximum gradient norm; 0 disables clipping.", 1.0, minimum=0, aliases=("--max-grad-norm",))
    recompute: bool = speed_option(
        "Gradient checkpointing: store only each layer's input and recompute the layer in the backward pass.",
        False,
        aliases=("--gradient-checkpointing",),
        affects_result=False,
    )
    attention_dropout: float | None = training_option(
        "Attention dropout probability [default: that of the weights]; 0 is fastest on a GPU.", None, minimum=0, below=1
    )
    seed: int = training_option("Random seed.", 42, minimum=0, maximum=MAX_SEED)
    deterministic: bool = speed_option(
        "Make results bit-identical on the same GPU, at some cost in speed; on a CPU they always are.", False
    )
    compile: bool = speed_option("Compile the layers with torch.compile (CUDA only); takes a minute or more at the start.", False)
    dtype: str = speed_option(**DTYPE)
    device: str = speed_option(**DEVICE)
    keep_empty: bool = option(**KEEP_EMPTY, group="Inputs")
    cache: Path | None = speed_option(
        "Folder of the token cache, which several trainings can share [default: in the unfinished output].",
        None,
        affects_result=False,
    )
    save_minutes: float = logging_option("Minutes between saves of the training state.", 5.0)
    checkpoint_every: int | None = logging_option(
        "Steps between checkpoints that are kept beside the output, OUTPUT-step-N, each as large as the output.",
        None,
        minimum=1,
        aliases=("--save-steps",),
    )
    log_every: int | None = logging_option(
        "Steps between reads of the losses from the device; metrics.jsonl has every step [default: 10 on a GPU, 1 on a CPU].",
        None,
        minimum=1,
        aliases=("--logging-steps",),
    )
    stuck_minutes: float = logging_option("Timeout in minutes for a process to reach the next step.", 10.0, above=0)
    track: tuple[str, ...] = logging_option(
        "Tracker to log every step to, in files OUTPUT.NAME; repeat the flag.",
        (),
        choices=tuple(trackers.PACKAGES),
        aliases=("--report-to",),
    )
    output: Path = output_field("checkpoint", "Folder to write.")

    def check(self) -> None:
        if self.cache is not None and self.cache.resolve().is_relative_to(self.output.resolve()):
            raise UsageError(f"--cache {self.cache}: is inside the folder that --output replaces; name another folder")
        _parse_group_rates(self.group_rate)
        trackers.check_installed(self.track)

    def summary(self, counts: Facts) -> str:
        figure = f"{format_count(counts['steps'], 'step')}, loss {counts['last']['loss']:.3f}"
        if best := counts.get("development"):
            figure += f", development {best['measure']} {best['value']:.4f} after step {best['step']}"
        return figure

    def process_group(self) -> "ProcessGroup":
        from moeir import distributed
        from moeir.backbones.device import resolve_device, set_determinism

        set_determinism(resolve_device(self.device), self.deterministic)
        process_group = distributed.init_process_group(self.device)
        if self.compile and not process_group.device.startswith("cuda"):
            raise UsageError(f"--compile: needs a CUDA device, but this training runs on {process_group.device}; leave it out")
        return process_group

    def prepare_layers(self, model: "nn.Module") -> None:
        """Apply the flags about layers (attention dropout, compilation) to `model`."""
        from moeir.backbones import layers

        if self.attention_dropout is not None:
            layers.set_attention_dropout(model, self.attention_dropout)
        if self.compile:
            layers.compile_layers(model)

    def compare_trunks(self, process_group: "ProcessGroup", checkpoint: "RetrievalModel") -> None:
        """MoeirError unless the frozen weights under adapters, and their config.json, are the same in all processes."""
        if checkpoint.trunk is not None:
            process_group.check_same({"the digest of the trunk": checkpoint.trunk.digest[:16]})

    def check_parameters(self, model: "nn.Module") -> None:
        """UsageError for flags that do not fit the parameters of a model."""
        from moeir.training import param_groups

        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        param_groups.match_rates(trained, _parse_group_rates(self.group_rate))

    def total_steps(self, batches_per_epoch: int) -> int:
        """Total optimizer steps; last batches that do not fill a step are dropped."""
        return self.steps or max(1, self.epochs * batches_per_epoch // self.accumulate)

    def make_schedule(self, batches_per_epoch: int, layer_decay: float = 1.0) -> "Schedule":
        """The training schedule for epochs of so many batches."""
        from moeir.training.trainer import Schedule

        return Schedule(
            self.total_steps(batches_per_epoch),
            self.learning_rate,
            self.warmup,
            self.weight_decay,
            self.clip,
            self.seed,
            self.save_minutes,
            self.schedule,
            layer_decay,
            _parse_group_rates(self.group_rate),
            self.accumulate,
        )

    def check_outputs(self, provenance: Mapping[str, Any], *, force: bool) -> None:
        """Refuse to replace other things by checkpoints of `checkpoint_every`; with `force`, only sources and what moeir did not make."""
        sources = {path for _, source in self.sources() for path in (source.resolve(), *source.resolve().parents)}
        for path in self.output.parent.glob(f"{glob.escape(self.output.name)}-step-*"):
            step = path.name.rpartition("-")[2]
            if self.checkpoint_every is None or not is_count(step) or int(step) % self.checkpoint_every:
                continue
            if path.resolve() in sources:
                raise UsageError(f"{path}: is read here, and --checkpoint-every {self.checkpoint_every} would replace it; write elsewhere")
            record = _make_step_record(provenance, int(step))
            atomic_write.check_overwrite(path, record, force=force or manifests.is_up_to_date(path, record))

    def write_step(self, save: SaveCheckpoint, examples: int, step: int) -> None:
        """Write the checkpoint after `step` steps beside the output, as complete as that."""
        from moeir.analysis.training_monitor import METRICS_FILE

        output = atomic_write.final_path(self.output)
        path, record = output.with_name(f"{output.name}-step-{step}"), _make_step_record(WorkFolder(output).read_record() or {}, step)
        with atomic_write.atomic_output(path, "checkpoint", record, force=True, folder=True) as (partial_path, counts):
            shutil.copyfile(self.output / METRICS_FILE, partial_path / METRICS_FILE)
            counts.update(save(partial_path, {"steps": step, "examples": examples}))
            atomic_write.write_text_atomically(partial_path / "settings.yaml", to_yaml(replace(self, output=path)))
        log.info("made %s", path)

    def trainer_options(self, process_group: "ProcessGroup", examples: int, save: SaveCheckpoint) -> dict[str, Any]:
        """The options of `trainer.train` that the flags and the processes set; `save` writes a checkpoint of `examples` into a folder."""
        return {
            "device": process_group.device,
            "track": partial(
                trackers.track,
                self.track if process_group.is_main else (),
                atomic_write.final_path(self.output),
                to_dict(self, results_only=True),
            ),
            "process_group": process_group,
            "log_every": self.log_every,
            "checkpoint": None if self.checkpoint_every is None else (self.checkpoint_every, partial(self.write_step, save, examples)),
        }

    def save_checkpoint(
        self, checkpoint: "RetrievalModel", base: Path, objective: str, folder: Path, counts: dict[str, Any]
    ) -> dict[str, Any]:
        """Write the checkpoint, trained from the weights `base`, and its model card; returns the counts for the manifest."""
        from moeir.architectures.model_card import write_model_card

        checkpoint.save(folder)
        write_model_card(folder, checkpoint, base=base, training={"objective": objective, **counts})
        return {"parameters": checkpoint.architecture.parameter_count(), **counts}


def _make_step_record(provenance: Mapping[str, Any], step: int) -> dict[str, Any]:
    """The record of the checkpoint after `step` steps of a training."""
    return {**provenance, "settings": {**provenance["settings"], "step": step}}


def _parse_group_rates(options: tuple[str, ...]) -> dict[str, float]:
    """Learning rates by pattern, from PATTERN=RATE."""
    rates = {}
    for option_text in options:
        pattern, equals, rate = option_text.rpartition("=")
        if not (pattern and equals):
            raise UsageError(f"--group-rate {option_text}: expected PATTERN=RATE, as in mixture=1e-4")
        rates[pattern] = parse_value(rate, "float", f"--group-rate {option_text}")
        if not 0 <= rates[pattern] < float("inf"):
            raise UsageError(f"--group-rate {option_text}: expected a rate of 0 or more")
    return rates
