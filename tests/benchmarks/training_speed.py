"""A step of `moeir finetune` compared with other trainers: examples and tokens a second, memory, share of the peak rate, equal losses.

    python training_speed.py MODEL_FOLDER COLLECTION WORK_FOLDER --row dense|splade|colbert|came|bf16 [--steps 12 --rounds 5 ...]

Every way starts from the same weights and reads the same examples in the same order; each runs in a process of its own, in turns, and the
first step is not timed. Processor time is the more stable measure on a shared machine. Tokens count without padding. Peak memory is the
process's, beyond its memory before the first step. `theirs` is sentence-transformers' trainer with passages padded to the batch's
longest, `columns` the same with a forward pass for each column of passages, `plain` our loop with the head that keeps [B, L, V]; `came` is
compared with its three experts as three models. The share of the peak is that of our step's matrix products, as torch counts them, in the
processor time of each way. --same removes dropout from float32 models and prints the largest difference of the losses of ours and
theirs, with --row bf16 of bfloat16 and float32.
--before DIR compares ours with that of another checkout, and with nothing else.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from training_examples import prepared

from moeir import variants
from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.device import DTYPES
from moeir.heads.lexical import LexicalHead
from moeir.kernels import heap
from moeir.records import examples
from moeir.representations.sparse import Sparse
from moeir.training import retrieval_task, sampling, text_stream, token_cache, trainer

SEED, RATE, DIMENSION, BEFORE = 1, 2e-5, 128, "before"
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
PLAIN = {"contrastive": "contrastive:flops_ramp=1", "competitive": "competitive:flops_ramp=1,standardised=0"}
ARCHITECTURES = {
    "dense": "dense:pooling=cls,normalise=false",
    "splade": "splade",
    "colbert": f"colbert:normalise=true,dim={DIMENSION}",
    "cosine": "dense:pooling=mean,normalise=true,scale=20",
    "came": "came:shared_layers={shared}",
    "lexical": "splade",
    "local": "colbert",
    "global": "dense:pooling=cls,normalise=false",
}
ROWS = {
    "dense": ("ours", "theirs", "columns"),
    "splade": ("ours", "plain", "theirs"),
    "colbert": ("ours", "theirs", "columns"),
    "came": ("came", "lexical", "local", "global"),
    "bf16": ("bfloat16", "float32"),
}


def prepare_checkpoint(arguments: argparse.Namespace, way: str) -> Path:
    """The initial checkpoint of a way."""
    kind = way if arguments.row == "came" else arguments.arch if arguments.row == "bf16" else arguments.row
    folder: Path = arguments.work / f"{kind}-{arguments.shared}{'-same' if arguments.same else ''}{'-drawn' if arguments.drawn else ''}"
    if not (folder / "moeir.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shared = arguments.shared
        lengths = {"query_length": arguments.query_length, "document_length": arguments.length, "query_prefix": "", "document_prefix": ""}
        checkpoint = build_checkpoint(
            arguments.model, ARCHITECTURES[kind].format(shared=shared), lengths, seed=SEED, random_weights=arguments.drawn
        )
        checkpoint.save(folder)
        config = folder / "config.json"
        if arguments.same:  # the dropout of a checkpoint is in the family's own config file
            config.write_text(json.dumps(json.loads(config.read_text()) | dict.fromkeys(DROPOUTS, 0.0)))
    return folder


def examples_folder(arguments: argparse.Namespace) -> Path:
    """Folder of the examples."""
    folder: Path = arguments.work / f"examples-{arguments.steps * arguments.batch}-{arguments.negatives}"
    return folder


def make_sampler(arguments: argparse.Namespace, checkpoint: Any) -> tuple[sampling.EpochSampler, token_cache.TrainingTexts]:
    """The sampler and its tokens."""
    folder = examples_folder(arguments)
    all_examples = list(examples.read_examples(folder / "train.jsonl"))
    sampler = sampling.make_sampler(all_examples, batch_size=arguments.batch, negatives=arguments.negatives, seed=SEED, source=str(folder))
    needed = text_stream.collect_texts([all_examples], [str(folder)], queries=[folder / "queries.jsonl"], corpora=[folder / "corpus.jsonl"])
    return sampler, token_cache.build_token_cache(arguments.work / "tokens", needed, checkpoint)


class TimedTask(retrieval_task.RetrievalTask):
    """Our task, which records start, tokens and loss of each step."""

    noted: dict[str, list[Any]]

    def compute_loss(self, step: int) -> tuple[torch.Tensor, dict[str, float], int]:
        """Loss, metrics and tokens of the step."""
        began, busy = time.monotonic(), time.process_time()
        loss, facts, count = super().compute_loss(step)
        for name, value in (("times", began), ("clock", busy), ("tokens", count), ("losses", float(facts["loss"]))):
            self.noted[name].append(value)
        return loss, facts, count


def ours(arguments: argparse.Namespace, way: str) -> dict[str, Any]:
    """Our trainer."""
    checkpoint = open_checkpoint(prepare_checkpoint(arguments, way))
    if way == "plain":
        LexicalHead.forward = plain_head  # type: ignore[method-assign]
    sampler, dataset = make_sampler(arguments, checkpoint)
    dtype = DTYPES[way] if arguments.row == "bf16" else DTYPES[arguments.dtype]
    objective = variants.bind_variant(
        "training.objectives", PLAIN["competitive" if len(checkpoint.architecture.representation_kinds) > 1 else "contrastive"]
    )
    task = TimedTask(checkpoint, sampler, dataset, objective, arguments.steps, dtype)
    records: dict[str, list[Any]] = {"times": [], "clock": [], "tokens": [], "losses": []}
    object.__setattr__(task, "noted", records)
    schedule = trainer.Schedule(arguments.steps, RATE, 0.0, 0.0, 1.0, SEED, save_minutes=1e9)
    folder = arguments.work / "trained" / f"{arguments.row}-{way}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before = peak()
    with heap.tune_malloc(heap.KEEP_FREED):  # as `moeir finetune` does
        trainer.train(task, schedule, folder, device="cpu")
    measurements = records | {"before": before, "peak": peak(), "measured_peak": measure_peak_flops(dtype)}
    checkpoint.architecture.train()
    with FlopCounterMode(display=False) as counter:
        loss, _, count = retrieval_task.RetrievalTask.compute_loss(replace(task), 0)
        loss.backward()
    return measurements | {"flops_a_token": counter.get_total_flops() / count}


def plain_head(self: LexicalHead, states: torch.Tensor, packed: Any, encoder: Any) -> Sparse:
    """log(1 + relu(logit)) of [B, L, V], then the maximum."""
    padding = packed.layout.padding
    logits = encoder.logits(states[padding.rows]).view(*padding.attended.shape, -1)
    weights = (torch.log1p(torch.relu(logits)) * padding.attended[..., None]).amax(1)
    return Sparse.from_matrix(weights.float())


def theirs(arguments: argparse.Namespace, way: str) -> dict[str, Any]:
    """sentence-transformers' trainer."""
    from training_peers import trained

    checkpoint_folder = prepare_checkpoint(arguments, way)
    checkpoint = open_checkpoint(checkpoint_folder)
    sampler, _ = make_sampler(arguments, checkpoint)
    folder, projection = checkpoint_folder, None
    if arguments.row == "colbert":
        projection = checkpoint.architecture.heads["local"].projection.weight.detach().clone()
        folder = prepare_checkpoint(
            argparse.Namespace(**vars(arguments) | {"row": "dense"}), way
        )  # the same encoder, in its family's own format
    texts_by_side = {
        side: text_stream.texts.read_texts_by_id(examples_folder(arguments) / f"{side}.jsonl") for side in ("queries", "corpus")
    }
    steps = []
    for batch in map(sampler.batch_at, range(arguments.steps)):
        groups = [
            batch.documents[first : first + 1 + arguments.negatives] for first in range(0, len(batch.documents), 1 + arguments.negatives)
        ]
        rows = zip(batch.queries, groups, strict=True)
        steps.append(
            [[texts_by_side["queries"][query].content, *(texts_by_side["corpus"][one].content for one in group)] for query, group in rows]
        )
    del checkpoint, texts_by_side
    before: list[float] = []
    options = {"length": arguments.length, "rate": RATE, "bfloat16": arguments.dtype == "bfloat16", "merged": way == "theirs"}
    run = partial(trained, arguments.row, (folder, projection), steps, arguments.work / "trained" / f"{arguments.row}-{way}", **options)
    times, clock, losses = run(ready=lambda: before.append(peak()))
    return {"times": times, "clock": clock, "losses": losses, "before": before[0], "peak": peak()}


def measure_peak_flops(dtype):
    """FLOP/s of a matrix product, the best of five."""
    first, second = torch.randn(2, 2048, 2048, dtype=dtype)
    return 2 * 2048**3 / min(timeit.repeat(lambda: first @ second, number=1, repeat=5))


def peak() -> float:
    """Peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_way(arguments: argparse.Namespace, way: str) -> dict[str, Any]:
    """One run, in a process of its own; `before` is ours as another checkout has it."""
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if not way.startswith(("theirs", "columns")):
        environment["THP_MEM_ALLOC_ENABLE"] = "1"  # as the command line sets it
    command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
    if way == BEFORE:
        flag = sys.argv.index("--before")
        script = arguments.before.resolve() / "tests" / "benchmarks" / Path(__file__).name
        command = [sys.executable, str(script), *sys.argv[1:flag], *sys.argv[flag + 2 :], "--way", ROWS[arguments.row][0]]
        environment["PYTHONPATH"] = str(arguments.before.resolve())
    completed = subprocess.run(command, capture_output=True, text=True, env=environment)
    if completed.returncode:
        raise SystemExit(completed.stderr)
    measurements: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return measurements | {
        name: measurements[clock][-1] - measurements[clock][1] for name, clock in (("seconds", "times"), ("busy", "clock"))
    }


def compare_ways(arguments: argparse.Namespace, rounds: list[dict[str, dict[str, Any]]]) -> list[list[str]]:
    """A line for each way: its speed, its memory, the ratio of its time to the first's."""
    ways = ROWS[arguments.row]
    first, timed = ways[0], arguments.steps - 2
    read = sum(rounds[0][first]["tokens"][1:-1])
    flops = rounds[0][first]["flops_a_token"] * read
    top = max(one[first]["measured_peak"] for one in rounds) / arguments.threads
    lines = []
    apart = [("apart", ways[1:])] if arguments.row == "came" and arguments.before is None else []
    for name, parts in [(way, (way,)) for way in ways] + apart:
        seconds = [sum(one[part]["seconds"] for part in parts) for one in rounds]
        ratios = [[sum(one[part][clock] for part in parts) / one[first][clock] for one in rounds] for clock in ("seconds", "busy")]
        duration = statistics.median(seconds)
        memory = max(statistics.median(one[part]["peak"] - one[part]["before"] for one in rounds) for part in parts)
        busy = statistics.median(one[name]["busy"] for one in rounds) if len(parts) == 1 else 0.0
        share = f"{flops / busy / top:.1%}" if name in (first, "theirs", "columns", "plain") else ""
        spread = [f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in ratios]
        speed = [f"{1000 * duration / timed:.0f}", f"{timed * arguments.batch / duration:.2f}", f"{read / duration:.0f}"]
        lines.append([name, *speed, *spread, f"{memory:.0f}", share])
    return lines


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "collection", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--row", choices=ROWS, required=True)
    numbers = {"steps": 12, "rounds": 5, "threads": 2, "batch": 8, "negatives": 7, "length": 128, "query-length": 64, "shared": 4}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--queries", type=Path, help="queries of a collection without training judgements")
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--arch", default="dense", choices=("dense", "cosine", "came"), help="of --row bf16")
    parser.add_argument("--drawn", action="store_true", help="random weights in the sizes of MODEL_FOLDER")
    parser.add_argument("--same", action="store_true")
    parser.add_argument("--before", type=Path, help="another checkout, whose training is compared with this one's, and nothing else")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run the ways in turns and print the table."""
    arguments = parse_arguments()
    if arguments.before is not None:
        ROWS[arguments.row] = (ROWS[arguments.row][0], BEFORE)
    torch.set_num_threads(arguments.threads)
    if arguments.way:
        way: Callable[..., dict[str, Any]] = theirs if arguments.way in ("theirs", "columns") else ours
        print(json.dumps(way(arguments, arguments.way)))
        return
    prepared(
        arguments.collection,
        arguments.queries,
        examples_folder(arguments),
        count=arguments.steps * arguments.batch,
        negatives=arguments.negatives,
        seed=SEED,
    )
    if arguments.same:
        ways = ROWS["bf16"] if arguments.row == "bf16" else ("ours", "theirs")
        one, other = (run_way(arguments, way)["losses"] for way in ways)
        difference = max(abs(mine - yours) for mine, yours in zip(one, other, strict=True))
        print(f"losses of {arguments.steps} steps: {one[0]:.5f} -> {one[-1]:.5f}; largest difference {difference:.1e}")
        return
    rounds = [{way: run_way(arguments, way) for way in ROWS[arguments.row]} for _ in range(arguments.rounds)]
    print(f"peak {rounds[0][ROWS[arguments.row][0]]['measured_peak'] / 1e9:.0f} GFLOP/s")
    columns = ["way", "ms a step", "examples/s", "tokens/s", "time over the first's (least, most)", "processor time over the first's"]
    print(*columns, "MiB beyond the start", "share of peak", sep="\t")
    for line in compare_ways(arguments, rounds):
        print(*line, sep="\t")


if __name__ == "__main__":
    main()
