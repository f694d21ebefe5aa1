"""The program for Ray, on a cluster of two nodes on this machine: a killed process, a killed node and two runs at once change no byte."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import moeir
from moeir.artifacts import manifests
from tests.examples.shell import EXAMPLES, load_program

cluster_utils = pytest.importorskip("ray.cluster_utils", reason="ray is not installed")
SHARDS, TURNS, SECONDS = 2, 120, 300


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """The toy texts repeated until encoding them takes seconds."""
    path = tmp_path_factory.mktemp("ray") / "corpus.jsonl"
    lines = (toy / "corpus.jsonl").read_text().splitlines()
    path.write_text("".join(line.replace('"_id": "', f'"_id": "{turn}-') + "\n" for turn in range(TURNS) for line in lines))
    return path


@pytest.fixture(scope="module")
def undisturbed(collection: Path, came_checkpoint: Path, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stages make, one after the other in this process."""
    work = tmp_path_factory.mktemp("undisturbed")
    indexes = [work / "idx" / f"{shard}-of-{SHARDS}" for shard in range(SHARDS)]
    for shard, index in enumerate(indexes):
        moeir.encode(model=came_checkpoint, corpus=collection, shard=f"{shard}/{SHARDS}", dtype="float32", output=work / "enc")
        moeir.index(encodings=work / "enc" / index.name, output=index)
    moeir.search(index=indexes, queries=toy / "test-queries.tsv", depth=20, output=work / "runs")
    return work


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a processor each, the head and one that can be removed."""
    environment = {name: os.environ.get(name) for name in ("RAY_ADDRESS", "PYTHONPATH")}
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    own_cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        own_cluster.add_node(num_cpus=1)
        yield own_cluster
    finally:
        own_cluster.shutdown()
        for name, value in environment.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def start_program(cluster: Any, work: Path, collection: Path, checkpoint: Path, toy: Path) -> subprocess.Popen[str]:
    sources = ["--model", checkpoint, "--corpus", collection, "--queries", toy / "test-queries.tsv", "--work", work]
    flags = ["--shards", SHARDS, "--dtype", "float32", "--depth", 20, "--gpus", 0, "--cpus", 1, "--address", cluster.address]
    command = [sys.executable, EXAMPLES / "ray/encode_index_search.py", *sources, *flags]
    return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)


def wait_until(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS} seconds"
        time.sleep(0.02)
    return value


def holders(lock: Path) -> list[int]:
    """The processes that hold a file open."""
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(link) == str(lock) for link in folder.iterdir()):
                found.append(int(folder.parent.name))
        except OSError:  # it has ended, or is another user's
            continue
    return found


def check_same_bytes(work: Path, undisturbed: Path) -> None:
    for shard in range(SHARDS):
        for folder, kind in {"enc": "encodings", "idx": "index"}.items():
            parts = [root / folder / f"{shard}-of-{SHARDS}" for root in (work, undisturbed)]
            made, expected = (manifests.verify_artifact(part, kind)["files"] for part in parts)
            assert made == expected, parts
    runs = {path.name: path.read_bytes() for path in (undisturbed / "runs").glob("*.trec")}
    assert len(runs) == 4 and {path.name: path.read_bytes() for path in (work / "runs").glob("*.trec")} == runs
    assert not [path for path in work.rglob(".*") if path.name != ".lock"]


def test_a_task_that_no_node_can_run_is_named() -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]
    program = load_program("ray/encode_index_search")
    assert program.missing_resources(argparse.Namespace(gpus=0.0, cpus=2.0), nodes) == []
    lines = program.missing_resources(argparse.Namespace(gpus=1.0, cpus=8.0), nodes)
    waits = "tasks wait for one that has, or start again with fewer"
    assert lines == [f"--gpus 1: no node has more than 0; {waits}", f"--cpus 8: no node has more than 2; {waits}"]


def test_an_error_of_a_task_is_one_line_that_names_it(cluster: Any, collection: Path, toy: Path, tmp_path: Path) -> None:
    program = start_program(cluster, tmp_path / "work", collection, tmp_path / "missing", toy)
    _, messages = program.communicate(timeout=SECONDS)
    last = messages.splitlines()[-1]
    assert program.returncode == 1 and last.startswith("encode ") and last.endswith("missing: no such checkpoint"), messages


@pytest.mark.parametrize("end", ["process", *(pytest.param(end, marks=pytest.mark.torture) for end in ("process of two runs", "node"))])
def test_a_killed_process_or_node_and_two_runs_at_once_end_in_the_bytes_of_an_undisturbed_run(
    end: str, cluster: Any, collection: Path, came_checkpoint: Path, toy: Path, undisturbed: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    programs = [start_program(cluster, work, collection, came_checkpoint, toy) for _ in range(1 + ("two" in end))]
    lock = work / "enc" / f".0-of-{SHARDS}.partial" / f"0-of-{SHARDS}.lock"
    victim = wait_until(lambda: holders(lock), "a process that encodes shard 0")[0]
    if end == "node":
        cluster.remove_node(*cluster.worker_nodes, allow_graceful=False)
    else:
        os.kill(victim, signal.SIGKILL)
    assert not (work / f"enc/0-of-{SHARDS}").exists(), "the process was killed before it had finished"
    for program in programs:
        _, messages = program.communicate(timeout=SECONDS)
        assert program.returncode == 0, messages
    check_same_bytes(work, undisturbed)
