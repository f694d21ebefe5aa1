"""A collection on a Ray cluster: encode and index its parts, a task each, and search all parts as one.

    pip install ray                  # on every node, beside moeir
    python examples/ray/encode_index_search.py --model ckpt/came --corpus corpus.jsonl --queries dev.jsonl --work /shared/came \\
        --shards 16 --gpus 1 --cpus 8 --memory-gb 32

Paths are on a file system that all nodes share. A task whose process or node dies is run again, on another node if need be, and goes on
where it was; one that is run twice at the same time waits for the other. Run the same command again, and only what is missing is made.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, WorkerCrashedError

import moeir
from moeir.errors import MoeirError, OutputInUse

WAIT_SECONDS = 5.0  # before asking again whether another process still writes an output


@ray.remote
def run_stage(stage: str, settings: dict[str, Any], *earlier: str) -> str:
    """Run a stage of moeir after the `earlier` tasks; while another process writes its output, wait for that one to end or to die."""
    while True:
        try:
            getattr(moeir, stage)(**settings)
            return str(settings["output"])
        except OutputInUse:
            time.sleep(WAIT_SECONDS)


def submit_tasks(options: argparse.Namespace) -> dict[Any, str]:
    """Submit the tasks of all stages, each after those that it reads from: task → name."""
    resources = {"num_cpus": options.cpus, "max_retries": options.retries, "memory": int(options.memory_gb * 2**30) or None}
    work, names = options.work.resolve(), {}
    indexes, index_tasks = [], []
    for shard in range(options.shards):
        part, name = f"{shard}-of-{options.shards}", f"{shard}/{options.shards}"
        encode = {"model": options.model.resolve(), "corpus": options.corpus.resolve(), "shard": name, "dtype": options.dtype}
        encode_task = run_stage.options(num_gpus=options.gpus, **resources).remote("encode", encode | {"output": work / "enc"})
        indexes.append(work / "idx" / part)
        settings = {"encodings": work / "enc" / part, "engine": options.engine, "output": indexes[-1]}
        index_tasks.append(run_stage.options(**resources).remote("index", settings, encode_task))
        names |= {encode_task: f"encode {name}", index_tasks[-1]: f"index {name}"}
    search = {"index": indexes, "queries": options.queries.resolve(), "depth": options.depth, "output": work / "runs"}
    return names | {run_stage.options(**resources).remote("search", search, *index_tasks): "search"}


def missing_resources(options: argparse.Namespace, nodes: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each kind of processor of which no node has as many as a task asks for: Ray itself waits without a word."""
    most = {kind: max((node["Resources"].get(kind, 0.0) for node in nodes if node["Alive"]), default=0.0) for kind in ("GPU", "CPU")}
    asked = {"GPU": options.gpus, "CPU": options.cpus}
    return [
        f"--{kind.lower()}s {asked[kind]:g}: no node has more than {most[kind]:g}; tasks wait for one that has, or start again with fewer"
        for kind in most
        if asked[kind] > most[kind]
    ]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint")
    parser.add_argument("--corpus", type=Path, required=True, help="documents; each shard first counts its lines")
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of encodings, indexes and runs, which all nodes share")
    parser.add_argument("--shards", type=int, default=8, help="parts of the collection")
    parser.add_argument("--engine", action="append", default=[], help="[EXPERT=]SPEC of moeir index; repeat the flag")
    parser.add_argument("--depth", type=int, default=1000, help="documents for a query and expert")
    parser.add_argument("--dtype", default="auto", help="name one where nodes differ: auto may choose another on each")
    parser.add_argument("--gpus", type=float, default=1, help="of a task that encodes; 0 on a cluster without")
    parser.add_argument("--cpus", type=float, default=8, help="of any task")
    parser.add_argument("--memory-gb", type=float, default=0, help="of any task, reserved by Ray; 0: not counted")
    parser.add_argument("--retries", type=int, default=10, help="of a task whose process or node dies; -1: without end")
    parser.add_argument("--address", help="of the cluster [default: RAY_ADDRESS, a cluster of this machine, or a new one on it]")
    return parser.parse_args()


def main() -> None:
    """Wait for all tasks; the first error of moeir ends the program, with one line that names the task."""
    options = parse_options()
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of the tasks that were to follow
    ray.init(address=options.address, log_to_driver=False)
    sys.stderr.writelines(f"{line}\n" for line in missing_resources(options, ray.nodes()))
    names = submit_tasks(options)
    waiting = list(names)
    while waiting:
        done, waiting = ray.wait(waiting)
        try:
            sys.stderr.write(f"{names[done[0]]}: {ray.get(done[0])}\n")
        except (MoeirError, WorkerCrashedError, OutOfMemoryError) as problem:
            raise SystemExit(f"{names[done[0]]}: {getattr(problem, 'cause', problem)}") from None


if __name__ == "__main__":
    main()
