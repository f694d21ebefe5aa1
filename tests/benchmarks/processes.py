"""`moeir finetune` with one process and with several that share each batch: equality of the losses, and waiting times.

    python processes.py MODEL_FOLDER EXAMPLES_FOLDER WORK_FOLDER [--sizes 1 2 --steps 8 --arch came:shared_layers=4 --dtype float32 ...]

EXAMPLES_FOLDER holds train.jsonl, queries.jsonl and corpus.jsonl (`training_examples.py` draws them from a collection). Every process has
one thread. Waiting is the time a process spends in `all_gather_object`; the first step is not counted.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from moeir import cli
from moeir.analysis.training_monitor import METRICS_FILE
from moeir.distributed import ProcessGroup


def run_process(note: Path, arguments: list[str]) -> None:
    """Run the command as one of the processes, and write its waiting times."""
    original, waits = ProcessGroup.all_gather_object, []

    def timed(self: ProcessGroup, words: object, moment: str) -> list[object]:
        began = time.monotonic()
        values: list[object] = original(self, words, moment)
        waits.append((moment, time.monotonic() - began, self.rank))
        return values

    ProcessGroup.all_gather_object = timed  # type: ignore[method-assign]
    code = cli._exit_code(arguments)
    rank = waits[0][2] if waits else 0
    Path(f"{note}.{rank}").write_text(json.dumps([(moment, seconds) for moment, seconds, _ in waits]))
    sys.exit(code)


def run_training(arguments: argparse.Namespace, size: int) -> list[dict[str, float]]:
    """The metrics of every step of a training by `size` processes, which write their waiting times."""
    output = arguments.work / f"processes-{size}"
    texts = [part for name in ("train", "corpus", "queries") for part in (f"--{name}", arguments.examples / f"{name}.jsonl")]
    command = ["finetune", "--model", arguments.model, "--arch", arguments.arch, "--objective", arguments.objective, *texts]
    command += ["--batch-size", arguments.batch]
    command += ["--negatives", arguments.negatives, "--steps", arguments.steps, "--dtype", arguments.dtype, "--device", "cpu", "--force"]
    command += ["--query-length", 32, "--document-length", arguments.length, "--cache", arguments.work / "tokens", "--output", output]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(size)] if size > 1 else []
    program = [sys.executable, *launch, __file__, "--note", arguments.work / f"waits-{size}", "--", *command]
    subprocess.run([str(part) for part in program], check=True, stderr=subprocess.DEVNULL)
    return [json.loads(line) for line in (output / METRICS_FILE).read_text().splitlines()]


def main() -> None:
    """Train with each number of processes and print the table."""
    if "--note" in sys.argv:
        at = sys.argv.index("--note")
        run_process(Path(sys.argv[at + 1]), sys.argv[at + 3 :])
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "examples", "work"):
        parser.add_argument(name, type=Path)
    for name, default in {"steps": 8, "batch": 8, "negatives": 7, "length": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--arch", default="came:shared_layers=4")
    parser.add_argument("--objective", default="competitive:standardised=0.25,flops_ramp=8")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    metrics_by_size = {size: run_training(arguments, size) for size in arguments.sizes}
    first = metrics_by_size[arguments.sizes[0]]
    print("processes\tloss of the first and last step\tlargest difference of a loss\ts a step\tshare of the time each waits")
    for size, facts in metrics_by_size.items():
        difference = max(abs(one["loss"] - other["loss"]) for one, other in zip(facts, first, strict=True))
        seconds = sum(step["seconds"] for step in facts[1:])
        waits = [json.loads(Path(f"{arguments.work}/waits-{size}.{rank}").read_text()) for rank in range(size)] if size > 1 else []
        step_waits = [[time for moment, time in rank if " of step " in moment and not moment.endswith(" of step 1")] for rank in waits]
        shares = [sum(rank) / seconds for rank in step_waits]
        share_texts = ", ".join(f"{share:.1%}" for share in shares) or "-"
        print(f"{size}\t{facts[0]['loss']:.6f}, {facts[-1]['loss']:.6f}\t{difference:.1e}\t{seconds / (len(facts) - 1):.2f}\t{share_texts}")


if __name__ == "__main__":
    main()
