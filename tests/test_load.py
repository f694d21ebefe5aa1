"""Load: many shards, steps and queries need no more memory than few, and give the same bytes."""

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import TOY, run_moeir
from tests.stage_scenarios import EXAMPLES, read_product, working_folder, write_inputs

MIB = 2**20
SECONDS_BETWEEN_SAMPLES = 0.05
SHARDS = 200
FEW = {"steps": 600, "queries": 10_000}
MANY = {"steps": 200_000, "queries": 7_000_000}  # steps: what a training of 24 hours takes at 2 to 3 a second


def both(name: str) -> pytest.MarkDecorator:
    """The test at the size of every run, and at that of `make torture`."""
    return pytest.mark.parametrize(name, [FEW[name], pytest.param(MANY[name], marks=pytest.mark.torture)])


@pytest.fixture(scope="module")
def inputs(stage_inputs: Path) -> Path:
    write_inputs(stage_inputs, ["in/tiny in/toy in/train.jsonl in/came in/bm25 in/long.jsonl"])
    return stage_inputs


def own_bytes(process: int) -> int:
    """The memory that a process has allocated itself, 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def sample_memory(*arguments: object, folder: Path) -> list[int]:
    """Own bytes of `moeir ARGUMENTS`, which must succeed, at moments of equal distance."""
    samples = []
    with subprocess.Popen(
        [sys.executable, "-m", "moeir", *map(str, arguments)],
        cwd=folder,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(folder), "MALLOC_ARENA_MAX": "2"},
    ) as process:
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        messages = b""
        while process.poll() is None:
            samples.append(own_bytes(process.pid))
            messages += process.stderr.read() or b""
            time.sleep(SECONDS_BETWEEN_SAMPLES)
    assert process.returncode == 0, messages.decode()
    return samples


def write_queries(path: Path, count: int) -> None:
    """Write queries of two to four words of the toy texts."""
    words = " ".join(json.loads(line)["text"] for line in (TOY / "corpus.jsonl").read_text().splitlines()).split()
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{row}\t{' '.join(words[row % 60 : row % 60 + 2 + row % 3])}\n" for row in range(count))


@pytest.mark.torture
def test_many_shards_are_indexed_as_one_encoding(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with working_folder(tmp_path, inputs):
        monkeypatch.setattr("moeir.stages.encode.CHUNK", 600 // SHARDS)  # each shard of the 600 texts is a window
        encode = ("encode", "--model", "in/came", "--corpus", "in/long.jsonl", "--dtype", "float32")
        run_moeir(*encode, "--output", "whole")
        for number in range(SHARDS):
            run_moeir(*encode, "--shard", f"{number}/{SHARDS}", "--output", "shards")
        for name in ("whole", "shards"):
            run_moeir("index", "--encodings", name, "--output", f"{name}-index")
        assert read_product(tmp_path / "whole-index") == read_product(tmp_path / "shards-index")


@both("steps")
def test_a_long_training_has_the_memory_of_a_short_one(inputs: Path, tmp_path: Path, steps: int) -> None:
    """At its end it has no more than at half of its time, medians of a twentieth of it."""
    with working_folder(tmp_path, inputs):
        training = "finetune --model in/tiny --arch dense --document-length 8 --query-length 8 --dtype float32 --log-every 100"
        sizes = f"--batch-size 1 --negatives 1 --steps {steps}"
        samples = sample_memory(*shlex.split(f"{training} {EXAMPLES} {sizes} --output ckpt"), folder=tmp_path)
        window = max(1, len(samples) // 20)
        growth = statistics.median(samples[-2 * window : -window]) - statistics.median(samples[len(samples) // 2 :][:window])
        assert growth < 6 * MIB + 8 * steps, growth  # noise, of which 4.2 were seen beside other tests; a number a step


@both("queries")
def test_many_queries_are_searched_in_the_memory_of_few(inputs: Path, tmp_path: Path, queries: int) -> None:
    with working_folder(tmp_path, inputs):
        peaks = {}
        for count in (queries // 10, queries):
            write_queries(tmp_path / "queries.tsv", count)
            search = ("search", "--index", "in/bm25", "--queries", "queries.tsv", "--depth", 5, "--output", f"{count}.trec")
            peaks[count] = max(sample_memory(*search, folder=tmp_path))
        lines = (line.split()[0] for line in open(tmp_path / f"{queries}.trec", encoding="utf-8"))  # noqa: SIM115
        assert sum(1 for _ in dict.fromkeys(lines)) > 0.9 * queries
        growth = peaks[queries] - peaks[queries // 10]
        assert growth < 16 * MIB + 250 * queries, growth  # the ids, to find one that is there twice
