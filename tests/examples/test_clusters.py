"""Cluster jobs: the whole Slurm chain on toy data with a fake sbatch, and every torchrun command."""

import os
import subprocess
from pathlib import Path

import pytest

from moeir import cli, settings
from moeir.stages import base
from tests.conftest import run_in_process
from tests.examples.shell import EXAMPLES, CommandServer

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
    path.write_text("".join(line.replace('"_id": "', f'"_id": "{turn}-') + "\n" for turn in range(90) for line in lines))
    return path


def test_the_chain_of_jobs_ends_in_the_runs_of_one_index(
    server: CommandServer, collection: Path, came_checkpoint: Path, toy: Path, tmp_path: Path
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(SBATCH)
    sbatch.chmod(0o755)
    variables = {
        "MOEIR": server.client,
        "SBATCH": sbatch,
        "SHARDS": 2,
        "WORK": tmp_path / "work",
        "CKPT": came_checkpoint,
        "DTYPE": "float32",
    }
    variables |= {"CORPUS": collection, "QUERIES": toy / "test-queries.tsv", "DEPTH": 20}
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    completed = subprocess.run(
        ["bash", EXAMPLES / "slurm/submit.sh"], capture_output=True, text=True, env=environment, timeout=900, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "17\n"
    work = tmp_path / "work"
    queries = ("--queries", toy / "test-queries.tsv", "--depth", 20)
    parts = ("--index", work / "idx/0-of-2", "--index", work / "idx/1-of-2")
    for command in (
        ("index", "--encodings", work / "enc", "--output", work / "whole"),
        ("search", "--index", work / "whole", *queries, "--output", work / "one"),
        ("search", *parts, *queries, "--output", work / "two"),
    ):
        result = run_in_process(*command)
        assert result.code == 0, result.stderr
    for name in ("lexical", "local", "global", "fused"):
        one = (work / "one" / f"{name}.trec").read_text()
        assert one and one == (work / "runs" / f"{name}.trec").read_text() == (work / "two" / f"{name}.trec").read_text()


@pytest.mark.parametrize("script", ["finetune.sh", "pretrain.sh"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_a_command_under_torchrun_resolves(script: str, nodes: int, tmp_path: Path) -> None:
    recorder = tmp_path / "torchrun"
    recorder.write_text(f'#!/bin/sh\nfor word in "$@"; do echo "$word"; done >{tmp_path}/words\n')
    recorder.chmod(0o755)
    environment = os.environ | {"TORCHRUN": str(recorder), "NODES": str(nodes), "RANK": "2", "HOST": "first:4000", "GPUS": "3"}
    subprocess.run(["bash", EXAMPLES / "torchrun" / script], env=environment, check=True)
    words = (tmp_path / "words").read_text().splitlines()
    launcher_flags, (name, *flags) = words[: words.index("-m")], words[words.index("moeir") + 1 :]
    assert launcher_flags[launcher_flags.index("--nproc-per-node") + 1] == "3"
    if nodes > 1:
        assert (
            launcher_flags[launcher_flags.index("--node-rank") + 1] == "2"
            and launcher_flags[launcher_flags.index("--master-addr") + 1] == "first"
        )
    stage = cli.stage_class(name)
    values = {flag.removeprefix("--").replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    base.check_settings(settings.build_stage(stage, values))


SCRIPTS = sorted(path for room in ("slurm", "torchrun") for path in (EXAMPLES / room).iterdir())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_shell(path: Path) -> None:
    if path.suffix != ".md":
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
