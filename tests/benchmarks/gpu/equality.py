"""Parts 2 and 7: reproducibility of trainings, byte by byte on one device, in their losses on two."""

import filecmp
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.benchmarks.gpu import stages, texts
from tests.benchmarks.gpu.results import Context
from tests.benchmarks.gpu.steps import train_command

WEIGHTS = "model.safetensors"
TIMES = ("seconds", "tokens_per_second", "peak_memory_bytes", "peak_gib")
LARGEST_LOSS_DIFFERENCE = 1e-4


def compare_trainings(context: Context) -> None:
    """Two equal trainings and a killed one, of CAME and of a dense retriever, with --deterministic and without."""
    steps, killed_after = (4, 2) if context.toy else (40, 23)
    quickstart = texts.prepare_quickstart(context, context.folder / "quickstart", steps=steps)
    if quickstart is None:
        return
    context.piece.notes += [
        f"{steps} steps of 8 queries with 3 negatives from the quickstart's collection, dropout on; the killed one ends with SIGKILL "
        f"after step {killed_after}, saving its state after every step, and is run again.",
        "Equal: `cmp` of model.safetensors, and of metrics.jsonl without times and memory. With --deterministic it is demanded.",
    ]
    columns = ("training", "--deterministic", "beside the first", "weights", "metrics", "largest difference of a weight", "of a loss")
    table = context.table("Trainings beside the first of their kind:", *columns)
    came = quickstart.first("finetune")
    dense = {"--arch": "dense:pooling=mean,normalise=true", "--objective": "contrastive"}
    for name, command in {"came": came, "dense": stages.with_flags(came, dense)}.items():
        for deterministic in (True,) if context.toy else (True, False):
            if (context.toy and name == "dense") or not context.has_time(60, f"{name}, deterministic {deterministic}"):
                continue
            with context.attempt(f"{name}, deterministic {deterministic}"):
                folder = context.folder / f"{name}-{deterministic}"
                own = [*stages.with_flags(command, {"--device": "cuda"}), *(["--deterministic"] if deterministic else [])]
                outputs = train_three_times(context, own, folder, quickstart.folder, killed_after)
                for words, output in zip(("run again", "killed and resumed"), outputs[1:], strict=True):
                    equal = compare(outputs[0], output)
                    table.add(name, "yes" if deterministic else "no", words, *equal)
                    context.require(not deterministic or equal[:2] == ("equal", "equal"), f"{name}, {words}: differs with --deterministic")


def train_three_times(context: Context, command: Sequence[str], folder: Path, data: Path, killed_after: int) -> list[Path]:
    """The same training twice and once killed and resumed; their checkpoints."""
    outputs = [folder / name for name in ("one", "two", "killed")]
    one, two, killed = (stages.with_flags(command, {"--output": output, "--save-minutes": 0}) for output in outputs)
    running = [stages.start_stage(context, *own, folder=data) for own in (one, two)]
    dying = stages.start_stage(context, *killed, kill_after=killed_after, folder=data)
    stages.wait(context, dying, expected=-9)
    running.append(stages.start_stage(context, *killed, folder=data))
    for process in running:
        stages.wait(context, process)
    return outputs


def compare(one: Path, other: Path) -> tuple[str, ...]:
    """Whether weights and metrics are equal, and the largest difference of a weight and of a loss."""
    weights = filecmp.cmp(one / WEIGHTS, other / WEIGHTS, shallow=False)
    mine, theirs = (stages.read_metrics(place, without=TIMES) for place in (one, other))
    before, after = (load_file(place / WEIGHTS) for place in (one, other))
    apart = max(float((before[name].float() - after[name].float()).abs().max()) for name in before)
    losses = max(abs(here["loss"] - there["loss"]) for here, there in zip(mine, theirs, strict=True))
    return *("equal" if same else "differ" for same in (weights, mine == theirs)), f"{apart:.1e}", f"{losses:.1e}"


def compare_devices(context: Context) -> None:
    """One process and two that torchrun starts: losses without dropout in float32, then tokens a second in bfloat16."""
    cards, sizes = torch.cuda.device_count(), texts.sizes_of(context)
    if cards < 2:
        context.piece.skipped = f"there is {cards} device here, and this compares two with one"
        return
    device = "cpu" if context.pretend else "cuda"
    if context.pretend:
        context.piece.notes.append("Two processes on the CPU: what connects real devices cannot be pretended.")
    weights = texts.write_weights(context.folder / "weights", sizes, dropout=0.0)
    batch, steps = (4, 3) if context.toy else (64, 40)
    examples = texts.write_examples(context.folder / "examples", sizes, count=batch * steps)
    columns = ("architecture", "dtype", "steps", "largest difference of a loss", "tokens/s, one", "tokens/s, two", "times")
    table = context.table(f"{batch} queries with 8 documents each, divided among two processes:", *columns)
    rows = [("dense", "float32", 10), ("came", "float32", 10), ("dense", "bfloat16", steps), ("came", "bfloat16", steps)]
    for architecture, dtype, count in [("dense", "float32", steps)] if context.toy else rows:
        if not context.has_time(60, f"{architecture} in {dtype}"):
            continue
        with context.attempt(f"{architecture} in {dtype}"):
            flags = {"--model": weights, "--dtype": dtype, "--device": device, "--steps": count, "--batch-size": batch, "--log-every": 1}
            flags["--cache"] = context.folder / "tokens"
            command = stages.with_flags([*map(str, (*train_command(architecture, sizes), *examples.flags))], flags)
            one, two = train_on_one_and_two(context, command, context.folder / f"{architecture}-{dtype}")
            apart = max(abs(here["loss"] - there["loss"]) for here, there in zip(one, two, strict=True))
            equal = dtype != "float32" or apart <= LARGEST_LOSS_DIFFERENCE
            context.require(equal, f"{architecture}: losses of one and two processes differ by {apart:.1e}")
            speeds = [statistics.median(step["tokens_per_second"] for step in run[len(run) // 4 :]) for run in (one, two)]
            table.add(architecture, dtype, count, f"{apart:.1e}", *speeds, f"{speeds[1] / speeds[0]:.2f}")


def train_on_one_and_two(context: Context, command: list[str], folder: Path) -> list[list[dict[str, float]]]:
    """The metrics of the same training in one process, and in two."""
    outputs = [folder / "one", folder / "two"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for start, output in zip(([], torchrun), outputs, strict=True):
        stages.wait(context, stages.start([sys.executable, *start, "-m", "moeir", *command, "--output", str(output)]))
    return [stages.read_metrics(output) for output in outputs]
