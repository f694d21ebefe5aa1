"""Cluster jobs: the whole Slurm chain on toy data with a fake sbatch, and every torchrun command."""

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from moeir import cli, settings
from moeir.stages import base
from tests.conftest import run_moeir
from tests.examples.shell import EXAMPLES, CommandServer, run_script

SUBMIT = "slurm/submit.sh"
SBATCH = """#!/bin/sh
# Runs the tasks of a job one after another, as Slurm would on a cluster of one processor.
last=0
for word in "$@"; do
  case $word in --array=0-*) last=${word#--array=0-} ;; *.sbatch) script=$word ;; esac
done
SLURM_SUBMIT_DIR=$PWD SLURM_ARRAY_TASK_COUNT=$((last + 1))
export SLURM_SUBMIT_DIR SLURM_ARRAY_TASK_COUNT
for task in $(seq 0 "$last"); do SLURM_ARRAY_TASK_ID=$task bash "$script" >&2 || exit 1; done
echo 17
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """The toy texts repeated until they fill two shards."""
    path = tmp_path_factory.mktemp("cluster") / "corpus.jsonl"
    lines = (toy / "corpus.jsonl").read_text().splitlines()
    path.write_text("".join(line.replace('"_id": "', f'"_id": "{turn}-') + "\n" for turn in range(50) for line in lines))
    return path


def check_runs(work: Path, toy: Path) -> None:
    """The runs of the chain are those of one index of all documents, and those of two indexes searched as one."""
    queries = ("--queries", toy / "test-queries.tsv", "--depth", 20)
    parts = ("--index", work / "idx/0-of-2", "--index", work / "idx/1-of-2")
    for command in (
        ("index", "--encodings", work / "enc", "--output", work / "whole"),
        ("search", "--index", work / "whole", *queries, "--output", work / "one"),
        ("search", *parts, *queries, "--output", work / "two"),
    ):
        run_moeir(*command)
    for name in ("lexical", "local", "global", "fused"):
        one = (work / "one" / f"{name}.trec").read_text()
        assert one and one == (work / "runs" / f"{name}.trec").read_text() == (work / "two" / f"{name}.trec").read_text()


@pytest.fixture
def variables(collection: Path, came_checkpoint: Path, toy: Path, tmp_path: Path) -> dict[str, object]:
    """What submit.sh reads, for two shards of the toy texts."""
    sources = {"CKPT": came_checkpoint, "CORPUS": collection, "QUERIES": toy / "test-queries.tsv"}
    return sources | {"SHARDS": 2, "WORK": tmp_path / "work", "DTYPE": "float32", "DEPTH": 20}


def test_the_chain_of_jobs_ends_in_the_runs_of_one_index(
    server: CommandServer, variables: dict[str, object], toy: Path, tmp_path: Path
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    completed = run_script(SUBMIT, **variables, MOEIR=server.client, SBATCH=sbatch)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "17\n"
    check_runs(tmp_path / "work", toy)


def test_without_sbatch_one_line_says_so_and_nothing_is_made(variables: dict[str, object], tmp_path: Path) -> None:
    completed = run_script(SUBMIT, **variables, SBATCH="no-such-sbatch --quiet")
    assert completed.returncode == 127 and not (tmp_path / "work").exists()
    assert completed.stderr == "no-such-sbatch: no such command; run this where jobs are submitted, or set SBATCH\n"


JOBS: list[tuple[dict[str, object], str, str, str]] = [  # variables and options of submit.sh, and words that a job has and has not
    ({}, "", "--cpus-per-task=8 --mem=64G --gpus=1", ""),
    ({"GPUS": 0, "CPUS": "", "MEMORY": ""}, "--partition=cpu", "--partition=cpu", "--gpus --mem --cpus-per-task"),
    ({"GPUS": "", "MEMORY": "8G"}, "", "--mem=8G", "--gpus"),
    ({"GPUS": "a100:2", "LOGS": "elsewhere"}, "--account=ir", "--gpus=a100:2 --account=ir", ""),
]


@pytest.mark.parametrize(("given", "options", "expected", "missing"), JOBS)
def test_jobs_ask_for_what_they_are_told_to(
    variables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], options: str, expected: str, missing: str
) -> None:
    recorder = tmp_path / "sbatch"
    recorder.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/words\necho "17;cluster"\n')
    recorder.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert run_script(SUBMIT, *options.split(), **variables | given, SBATCH=recorder).returncode == 0
    encode, *others, merge = (tmp_path / "words").read_text().splitlines()
    assert set(expected.split()) <= set(encode.split()) and not any(word in encode for word in missing.split())
    assert not any("--gpus" in line for line in [*others, merge])
    logs = tmp_path / "elsewhere" if "LOGS" in given else tmp_path / "work" / "logs"
    assert logs.is_dir() and all(f"--output={logs}/" in line for line in [encode, *others, merge])
    assert [line.split()[-2] for line in [*others, merge]] == ["--dependency=aftercorr:17"] * 2 + ["--dependency=afterok:17"]
    assert not [path for path in (EXAMPLES / "slurm").iterdir() if path.suffix not in (".sbatch", ".sh", ".md")]


def launched(script: str, folder: Path, *flags: str, **variables: str) -> tuple[list[str], str, list[tuple[str, str]]]:
    """The words that torchrun is given, the stage after them, and its flags with their values, which it takes."""
    recorder = folder / "torchrun"
    recorder.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >{folder}/words\n')
    recorder.chmod(0o755)
    command = ["bash", EXAMPLES / "torchrun" / script, *flags]
    subprocess.run(command, env=os.environ | {"TORCHRUN": str(recorder), "GPUS": "3"} | variables, check=True)
    words = (folder / "words").read_text().splitlines()
    name, *given = words[words.index("moeir") + 1 :]
    pairs = list(zip(given[::2], given[1::2], strict=True))
    values = {flag.removeprefix("--").replace("-", "_"): value for flag, value in pairs}
    base.check_settings(settings.build_stage(cli.stage_class(name), values))
    return words[: words.index("-m")], name, pairs


def test_a_command_under_torchrun_resolves(tmp_path: Path) -> None:
    for script, nodes in itertools.product(("finetune.sh", "pretrain.sh"), (1, 4)):
        launcher, name, _ = launched(script, tmp_path, NODES=str(nodes), RANK="2", HOST="first:4000")
        flags = dict(itertools.pairwise(launcher))
        assert name == script.removesuffix(".sh") and flags["--nproc-per-node"] == "3"
        assert nodes == 1 or (flags["--node-rank"], flags["--master-addr"]) == ("2", "first")
    values = {"OBJECTIVE": "mote", "QUERIES": "a.jsonl b.jsonl", "RATE": "3e-4", "LENGTH": "144", "BATCH": "2048", "PARTS": "2"}
    _, _, given = launched("pretrain.sh", tmp_path, "--held-out", "0.001", CACHE="tokens", STEPS="80000", **values)
    expected = {"--learning-rate": "3e-4", "--document-length": "144", "--batch-size": "1024", "--accumulate": "2", "--steps": "80000"}
    expected |= {"--cache": "tokens", "--objective": "mote", "--held-out": "0.001", "--output": "pre/mote"}
    assert [value for flag, value in given if flag == "--queries"] == ["a.jsonl", "b.jsonl"] and expected.items() <= dict(given).items()
