"""What a command loads and compiles before its first answer: counted, as seconds differ from machine to machine."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, shlex, sys
from moeir import cli

for command in sys.argv[1:]:
    assert cli._exit_code(shlex.split(command)) == 0, command
    loops = sys.modules.get("moeir.kernels.numba_cache")
    loaded = [name for name in ("torch", "transformers", "numba") if name in sys.modules]
    print(json.dumps({"loaded": loaded, "compiled": 0 if loops is None else loops.read_compile_seconds()}), file=sys.stderr)
"""


@pytest.fixture
def run_cold(tmp_path, monkeypatch):
    """Run commands in a process of their own, with an empty cache of compiled loops; returns what each has loaded and compiled so far."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.tsv").write_text("".join(f"d{number}\twhat owls and mice number {number} do at night\n" for number in range(12)))
    (tmp_path / "queries.tsv").write_text("q1\towls at night\nq2\tmice number 7\n")

    def run(*commands):
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "-c", PROGRAM, *commands], capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stderr.splitlines()]

    return run


def test_a_first_bm25_search_loads_no_torch_and_compiles_nothing(run_cold):
    index = "index --corpus docs.tsv --engine bm25 --output idx"
    assert run_cold(index, "search --index idx --queries queries.tsv --output run.trec") == [{"loaded": [], "compiled": 0}] * 2


def test_a_first_search_of_a_mixture_compiles_nothing(run_cold, came_checkpoint):
    encode = f"encode --model {came_checkpoint} --corpus docs.tsv --output enc"
    search = "search --index idx --queries queries.tsv --output runs"
    assert [one["compiled"] for one in run_cold(encode, "index --encodings enc --output idx", search)] == [0, 0, 0]
