"""GPU costs of a training step and of a window of encoding: launched operations, host synchronizations, copies; on the pretended device.

    python tests/benchmarks/device_costs.py [--only dense came] [--where] [--lists] [--finetune="--log-every 10"]

The depth of BERT-base (12 layers, V = 30,522) at a small width, as counts do not depend on it; 8 queries with 8 documents each of mixed
lengths, bfloat16, with dropout unless the row names it. Counted are `moeir finetune` from the end of one update to the end of the next, and
`moeir encode`, in which a window of 256 texts is one batch: three windows minus two. `launches` count gradients clipped one by one, as
earlier tables did; with --lists as CUDA clips them, in a few kernels for all tensors. With --finetune="--compile" a compiled region is one
launch.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.device import guard

guard.load()

import torch  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

from tests.benchmarks.gpu import texts  # noqa: E402
from tests.conftest import run_in_process  # noqa: E402
from tests.device import fake_cuda, fake_torch_cuda  # noqa: E402
from tests.device.fused_regions import compile_for_counts  # noqa: E402
from tests.device.operation_counts import BACK, BLOCKING, COPY, LAUNCH, SYNC, OperationCounts  # noqa: E402

QUERIES, NEGATIVES, WINDOW = 8, 7, 256
SIZES = texts.Sizes(12, 64, 4, 128, 30_522, 512, document_words=(70, 120), query_words=(8, 12))
STEPS, MEASURED = 6, 3  # the step between the ends of updates 3 and 4, away from start and end
SIGNS = "normalise=true,markers=true,augmentation=true,punctuation=false"
FLOPS = "contrastive:flops_query=0.01,flops_document=0.01"
TRAININGS: dict[str, tuple[str, str, float]] = {  # architecture, objective, dropout
    "dense": ("dense", "contrastive", 0.1),
    "dense, no dropout": ("dense", "contrastive", 0.0),
    "came": ("came", "competitive", 0.1),
    "came, no dropout": ("came", "competitive", 0.0),
    "came, adapters": ("came:adapters=16", "competitive", 0.1),
    "splade max": ("splade", FLOPS, 0.1),
    "splade max, no dropout": ("splade", FLOPS, 0.0),
    "taser token": ("taser:routing=token", "contrastive", 0.1),
    "colbert": (f"colbert:{SIGNS}", "contrastive", 0.0),
}
ENCODINGS = {"encode dense": "dense", "encode splade": "splade", "encode came": "came"}


def write_texts(folder: Path) -> None:
    """Queries and documents with an example for each query; corpora of two and of three equal windows; weights with and without dropout."""
    texts.write_examples(folder, SIZES, count=STEPS * QUERIES, group=1 + NEGATIVES)
    window = texts.draw_texts(WINDOW, SIZES.document_words, SIZES.vocabulary, seed=4)
    for windows in (2, 3):
        texts.write_texts(folder / f"windows-{windows}.jsonl", "w", window * windows)
    for dropout in (0.0, 0.1):
        texts.write_weights(folder / f"weights-{dropout}", SIZES, dropout=dropout, few_terms=False)


def run_command(*arguments: object) -> None:
    """Run a command in this process; it must succeed."""
    result = run_in_process(*arguments)
    if result.code:
        raise SystemExit(result.stderr)


def count_step(machine: fake_cuda.FakeMachine, work: Callable[[], None]) -> OperationCounts:
    """Counts between the ends of two updates."""
    marks: list[OperationCounts] = []

    def note(*unused: Any) -> None:
        marks.append(machine.counts.copy())

    hook = register_optimizer_step_post_hook(note)
    try:
        work()
    finally:
        hook.remove()
    return marks[MEASURED].since(marks[MEASURED - 1])


def count_training(machine: fake_cuda.FakeMachine, work: Path, name: str, more: tuple[str, ...]) -> OperationCounts:
    """A step of `moeir finetune`."""
    arch, objective, dropout = TRAININGS[name]
    options = ["--batch-size", QUERIES, "--negatives", NEGATIVES, "--steps", STEPS, "--document-length", 180, "--dtype", "bfloat16"]
    files = ["--train", work / "train.jsonl", "--corpus", work / "corpus.jsonl", "--queries", work / "queries.jsonl"]
    flags = ["--model", work / f"weights-{dropout}", "--arch", arch, "--objective", objective, "--output", work / "trained", "--force"]
    return count_step(machine, lambda: run_command("finetune", *flags, *files, *options, "--device", "cuda", *more))


def count_encoding(machine: fake_cuda.FakeMachine, work: Path, name: str) -> OperationCounts:
    """A window of `moeir encode`."""
    checkpoint = work / f"init-{name}"
    if not checkpoint.exists():
        run_command("init", "--model", work / "weights-0.1", "--arch", ENCODINGS[name], "--document-length", 180, "--output", checkpoint)
    marks = []
    for windows in (2, 3):
        before = machine.counts.copy()
        flags = ["--model", checkpoint, "--corpus", work / f"windows-{windows}.jsonl", "--output", work / "encoded", "--force"]
        run_command("encode", *flags, "--dtype", "bfloat16", "--device", "cuda", "--max-tokens", 1 << 16)
        marks.append(machine.counts.copy().since(before))
    return marks[1].since(marks[0])


def measure_row(machine: fake_cuda.FakeMachine, work: Path, name: str, *finetune_flags: str) -> OperationCounts:
    """The counts of a row of the table."""
    if name in TRAININGS:
        return count_training(machine, work, name, finetune_flags)
    return count_encoding(machine, work, name)


def main() -> None:
    """Print the table."""
    from transformers.utils import logging

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], help="rows whose names begin so")
    parser.add_argument("--where", action="store_true", help="where operations are launched, and the host waits and copies")
    parser.add_argument("--lists", action="store_true", help="clip gradients as CUDA does, all in a few kernels")
    parser.add_argument("--finetune", default="", metavar="FLAGS", help='more flags of finetune, as in --finetune="--compile"')
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    if "--compile" in arguments.finetune:
        torch.compile = compile_for_counts  # type: ignore[assignment]
    print("| | launches | syncs | blocking copies | non-blocking copies | copies to the host |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, fake_cuda.activate(lists=arguments.lists) as machine:
        work = Path(folder)
        write_texts(work)
        for name in (name for name in (*TRAININGS, *ENCODINGS) if name.startswith(tuple(arguments.only))):
            fake_torch_cuda.offer_foreach(machine, arguments.lists)
            counts = measure_row(machine, work, name, *arguments.finetune.split())
            cells = (counts.launches, counts.syncs, counts.blocking, counts.copies, counts.count(BACK))
            print(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |", flush=True)
            for kind, operation, code_line, count in counts.source_lines(SYNC, BLOCKING, COPY, BACK, LAUNCH) if arguments.where else ():
                print(f"    {count:4} {kind}: {operation} at {code_line}")


if __name__ == "__main__":
    main()
