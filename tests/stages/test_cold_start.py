"""What a command loads and compiles before its first answer: counted, as seconds differ from machine to machine."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from moeir import cli

cli._exit_code(sys.argv[1:])
loops = sys.modules.get("moeir.kernels.numba_cache")
loaded = [name for name in ("torch", "transformers", "numba") if name in sys.modules]
print(json.dumps({"loaded": loaded, "compiled": 0 if loops is None else loops.read_compile_seconds()}), file=sys.stderr)
"""


@pytest.fixture
def run_cold(tmp_path):
    """Run a command in a process of its own, with an empty cache of compiled loops; returns what it has loaded and compiled."""

    def run(*words):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, "-c", PROGRAM, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stderr.splitlines()[-1])

    return run


def test_a_first_bm25_search_loads_no_torch_and_compiles_nothing(run_cold, tmp_path):
    documents = "".join(f"d{number}\twhat owls and mice number {number} do at night\n" for number in range(12))
    (tmp_path / "docs.tsv").write_text(documents)
    (tmp_path / "queries.tsv").write_text("q1\towls at night\nq2\tnumber 7\n")
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq2 0 d7 1\n")
    commands = [
        ("index", "--corpus", tmp_path / "docs.tsv", "--engine", "bm25", "--output", tmp_path / "idx"),
        ("search", "--index", tmp_path / "idx", "--queries", tmp_path / "queries.tsv", "--output", tmp_path / "run.trec"),
        ("evaluate", "--run", tmp_path / "run.trec", "--qrels", tmp_path / "qrels", "--measure", "RR@10"),
    ]
    for command in commands:
        assert run_cold(*command) == {"loaded": [], "compiled": 0}, command[0]


def test_a_first_search_of_a_mixture_compiles_nothing(run_cold, came_checkpoint, tmp_path):
    (tmp_path / "docs.tsv").write_text("".join(f"d{number}\towls and mice at night {number}\n" for number in range(12)))
    (tmp_path / "queries.tsv").write_text("q1\towls at night\nq2\tmice 7\n")
    commands = [
        ("encode", "--model", came_checkpoint, "--corpus", tmp_path / "docs.tsv", "--output", tmp_path / "enc"),
        ("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx"),
        ("search", "--index", tmp_path / "idx", "--queries", tmp_path / "queries.tsv", "--output", tmp_path / "runs"),
    ]
    for command in commands:
        assert run_cold(*command)["compiled"] == 0, command[0]
