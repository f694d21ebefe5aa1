"""Parts 3a and 3b: a training step of BERT-base's sizes, compared with transformers' BertModel and sentence-transformers' trainer.

Every way reads the same queries and documents in bfloat16 under autocast, with AdamW and gradients clipped by their norm. A token is a real
one: padding counts for nobody, and the share of the peak is of the products that the real tokens need. Ways run in turns, as often as the
minutes allow; ratios are within a turn.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from tests.benchmarks.gpu import peers, stages, texts
from tests.benchmarks.gpu.results import Context, Table, format_number, spread

ARCHITECTURES = {
    "dense": ("dense:pooling=cls,normalise=false", "contrastive"),
    "came": ("came:shared_layers={shared}", "competitive:standardised=0"),
    "splade": ("splade", "contrastive"),
    "cross-encoder": ("cross-encoder", "lce"),
}
NO_ATTENTION_DROPOUT = ("--attention-dropout", "0")
OURS, THEIRS = "moeir", "transformers"
KERNELS, PROFILED_STEPS = 25, 3
NOT_KERNELS = ("ProfilerStep", "Optimizer.", "## ")


def train_command(architecture: str, sizes: texts.Sizes) -> list[object]:
    """Flags of finetune for an architecture, its objective and its lengths, without data."""
    spec, objective = ARCHITECTURES[architecture]
    queries, documents = sizes.query_words[1] + 2, sizes.document_words[1] + 2
    pair = queries + documents if architecture == "cross-encoder" else documents
    lengths = ["--query-length", queries, "--document-length", min(pair, sizes.positions)]
    return ["finetune", "--arch", spec.format(shared=max(1, sizes.layers - 2)), "--objective", objective, *lengths]


@dataclass(frozen=True)
class Plan:
    """The inputs of every way: weights, examples, number of steps and of warm-up steps."""

    context: Context
    sizes: texts.Sizes
    weights: Path
    examples: texts.Examples
    steps: int
    warm: int

    def train(self, architecture: str, batch: int, *flags: object) -> None:
        """Train with moeir."""
        command = [*train_command(architecture, self.sizes), "--model", self.weights, *self.examples.flags]
        command += ["--steps", self.steps, "--batch-size", batch, "--dtype", "bfloat16", "--device", "cuda", "--save-minutes", 60]
        command += ["--cache", self.context.folder / "tokens", "--force", "--output", self.context.folder / "trained"]
        stages.run_stage(*command, *flags)

    def train_bert(self, architecture: str, batch: int, attention_dropout: float | None = None) -> None:
        """Train with transformers."""
        batches = [self.examples.batch(step, batch) for step in range(self.steps)]
        peers.train_bert(architecture, self.weights, batches, group=self.examples.group, attention_dropout=attention_dropout)
        stages.release_memory()

    def train_sentence_transformer(self, architecture: str, batch: int) -> None:
        """Train with sentence-transformers' trainer."""
        batches = [self.examples.batch(step, batch) for step in range(self.steps)]
        peers.train_sentence_transformer(architecture, self.weights, batches, self.context.folder / "theirs", self.sizes)
        stages.release_memory()

    def flops_and_tokens(self, architecture: str, batch: int) -> tuple[float, float]:
        """Multiplications and additions of a mean step, and its tokens."""
        queries, documents = self.examples.lengths(self.steps * batch)
        own = np.concatenate([queries, documents])
        if architecture == "cross-encoder":
            own = np.repeat(queries - 1, self.examples.group) + documents
        layers = texts.layers_of(architecture, self.sizes)
        flops = texts.training_flops(self.sizes, own, layers=layers, vocabulary=architecture in ("came", "splade"))
        return flops / self.steps, float(own.sum()) / self.steps


@dataclass(frozen=True)
class Way:
    """One way to train an architecture on batches of so many queries, and the way of the same batches that its time is divided by."""

    architecture: str
    batch: int
    name: str
    train: Callable[[], None]
    beside: tuple[str, str]

    @property
    def key(self) -> tuple[str, int, str]:
        """Key of the way."""
        return self.architecture, self.batch, self.name


def make_plan(context: Context, batch: int, steps: int, warm: int) -> Plan:
    """Weights and examples for a number of steps of a number of queries."""
    sizes = texts.sizes_of(context)
    examples = texts.write_examples(context.folder / "examples", sizes, count=batch * steps)
    return Plan(context, sizes, texts.write_weights(context.folder / "weights", sizes), examples, steps, warm)


def measure_steps(context: Context) -> None:
    """Dense, CAME, SPLADE and cross-encoder, small batches and large ones, with dropout and without that of attention; and two profiles."""
    batches, steps, warm = ((2,), 3, 1) if context.toy else ((8, 64), 40, 10)
    plan = make_plan(context, batches[-1], steps, warm)
    ways = [way for batch in reversed(batches) for way in ways_to_train(plan, batch, every=batch == batches[-1])]
    measured = measure_in_turns(context, plan, ways, seconds_to_keep=10 if context.toy else 60)
    write_table(context, plan, ways, measured, stages.measure_peak(context.toy))
    context.piece.notes += [
        f"8 documents a query; each run has {steps} steps, the first {warm} not counted; a step's time is the median, and in parentheses "
        "the least and the largest of the runs' medians. Dropout is 0.1 unless said. Random weights; lengths are spread as MS MARCO's are.",
        "transformers: BertModel with sdpa attention, its batches padded to the longest text and in pinned memory before the clock starts. "
        "sentence-transformers: its own trainer, which tokenises as it goes; moeir reads tokens, made at a collection's first use.",
    ]
    for architecture in ("dense", "came"):
        with context.attempt(f"profile of {architecture}"):
            write_profile(context, plan, architecture, batches[-1])


def ways_to_train(plan: Plan, batch: int, *, every: bool) -> list[Way]:
    """The ways of one batch size; all of them, or the plain ones."""
    ways, quiet = [], " ".join([OURS, *NO_ATTENTION_DROPOUT])
    for architecture in ARCHITECTURES:
        beside = (architecture, THEIRS) if architecture in peers.BERT_ARCHITECTURES else ("dense", OURS)
        if beside[1] == THEIRS:
            ways.append(Way(architecture, batch, THEIRS, partial(plan.train_bert, architecture, batch), beside))
        ways.append(Way(architecture, batch, OURS, partial(plan.train, architecture, batch), beside))
        if every:
            ways.append(Way(architecture, batch, quiet, partial(plan.train, architecture, batch, *NO_ATTENTION_DROPOUT), beside))
    if every:
        beside = ("dense", THEIRS)
        ways.append(Way("dense", batch, f"{THEIRS}, attention dropout 0", partial(plan.train_bert, "dense", batch, 0.0), beside))
        for name in peers.TRAINER_ARCHITECTURES if peers.has_sentence_transformers() else ():
            train = partial(plan.train_sentence_transformer, name, batch)
            ways.append(Way(name, batch, "sentence-transformers", train, (name, THEIRS)))
    return ways


def measure_in_turns(context: Context, plan: Plan, ways: Sequence[Way], *, seconds_to_keep: float) -> dict[Any, list[dict[str, float]]]:
    """Of each run of each way the median step, peak memory, and total seconds."""

    def measure(way: Way) -> dict[str, float]:
        with stages.StepTimes() as times:
            way.train()
        return {"seconds": statistics.median(times.seconds(plan.warm)), "bytes": times.peak_bytes}

    return stages.take_turns(context, {way.key: partial(measure, way) for way in ways}, seconds_to_keep=seconds_to_keep)


def write_table(context: Context, plan: Plan, ways: Sequence[Way], measured: dict[Any, list[dict[str, float]]], peak: float) -> Table:
    """A line for each way that was measured."""
    columns = ["architecture", "queries", "way", "ms a step", "tokens/s", "time over another's", "of the peak", "peak memory, GiB"]
    table = context.table(f"Training steps; the peak is {format_number(peak / 1e12)} TFLOP/s:", *columns, "runs")
    for way in ways:
        if not (runs := measured[way.key]):
            continue
        other = measured.get((way.beside[0], way.batch, way.beside[1])) if (way.architecture, way.name) != way.beside else None
        seconds = [run["seconds"] for run in runs]
        took = statistics.median(seconds)
        flops, tokens = plan.flops_and_tokens(way.architecture, way.batch)
        ratios = [run["seconds"] / peer["seconds"] for run, peer in zip(runs, other or [], strict=False)]
        words = f"{format_number(took * 1000)} {spread([1000 * one for one in seconds])}"
        over = f"{statistics.median(ratios):.2f} ({', '.join(way.beside)})" if ratios else ""
        memory = stages.gib(max(run["bytes"] for run in runs))
        table.add(way.architecture, way.batch, way.name, words, tokens / took, over, f"{flops / took / peak:.1%}", memory, len(runs))
    return table


def write_profile(context: Context, plan: Plan, architecture: str, batch: int) -> None:
    """The kernels that take most of the device's time in a few steps."""
    if not context.has_time(30, f"the profile of {architecture}"):
        return
    activities = [ProfilerActivity.CPU, *([] if context.pretend else [ProfilerActivity.CUDA])]
    active = 1 if context.toy else PROFILED_STEPS
    moments = schedule(wait=plan.steps - active - 2, warmup=1, active=active, repeat=1)
    with profile(activities=activities, schedule=moments) as profiler, stages.StepTimes(on_step=profiler.step):
        plan.train(architecture, batch)
    kernels = list_kernels(profiler, pretend=context.pretend)
    whole, launches = sum(seconds for _, _, seconds in kernels), sum(count for _, count, _ in kernels)
    title = f"Kernels of a step, {architecture}, {batch} queries: {1000 * whole / active:.1f} ms, {launches // active:,} launches:"
    table = context.table(title, "kernel", "launches", "ms", "share")
    for name, count, seconds in kernels[:KERNELS]:
        table.add(f"`{name[:110]}`", f"{count / active:.0f}", 1000 * seconds / active, f"{seconds / whole:.1%}")


def list_kernels(profiler: profile, *, pretend: bool) -> list[tuple[str, int, float]]:
    """Name, launches and seconds of each kernel, longest first; of the host's operations where the device is pretended."""
    wanted = DeviceType.CPU if pretend else DeviceType.CUDA
    rows = []
    for event in profiler.key_averages():
        if event.device_type == wanted and not event.key.startswith(NOT_KERNELS):
            microseconds = event.self_cpu_time_total if pretend else event.self_device_time_total
            rows.append((event.key, event.count, microseconds / 1e6))
    return sorted(rows, key=lambda row: -row[2])


def measure_compiled(context: Context) -> None:
    """The same steps with and without --compile, with dropout and without that of attention."""
    batches, steps, warm = ((2,), 3, 1) if context.toy else ((8, 64), 60, 30)
    plan = make_plan(context, batches[-1], steps, warm)
    compiled = () if context.pretend else ("--compile",)  # the compiler does not know the pretended device
    ways = []
    for batch in reversed(batches):
        for architecture in ("dense",) if context.toy else ARCHITECTURES:
            for flags in ((), NO_ATTENTION_DROPOUT):
                plain, other = " ".join([OURS, *flags]), " ".join([OURS, "--compile", *flags])
                train, beside = partial(plan.train, architecture, batch), (architecture, plain)
                ways.append(Way(architecture, batch, plain, partial(train, *flags), beside))
                ways.append(Way(architecture, batch, other, partial(train, *compiled, *flags), beside))
    if context.pretend:
        context.piece.notes.append("Nothing was compiled: the compiler does not know the pretended device.")
    measured = measure_in_turns(context, plan, ways, seconds_to_keep=10)
    table = write_table(context, plan, ways, measured, stages.measure_peak(context.toy))
    table.columns.append("seconds of the first run")
    for row, way in zip(table.rows, [way for way in ways if measured[way.key]], strict=True):
        row.append(format_number(measured[way.key][0]["run"]))
    words = f"8 documents a query, {steps} steps, the first {warm} not counted: in these the compiler works, anew for other shapes;"
    context.piece.notes.append(f"{words} the first run's seconds are of all of it, the model's loading too.")
