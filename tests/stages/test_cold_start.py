"""What commands compile before their first answer: counted, as seconds differ from machine to machine."""

import os
import subprocess
import sys

PROGRAM = """
import shlex, sys
from moeir import cli

for command in sys.argv[1:]:
    assert cli._exit_code(shlex.split(command)) == 0, command
assert sys.modules["moeir.kernels.numba_cache"].read_compile_seconds() == 0
"""


def test_a_first_search_of_a_mixture_compiles_nothing(tmp_path, monkeypatch, came_checkpoint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.tsv").write_text("".join(f"d{number}\towls and mice at night {number}\n" for number in range(12)))
    (tmp_path / "queries.tsv").write_text("q1\towls at night\nq2\tmice 7\n")
    encode = f"encode --model {came_checkpoint} --corpus docs.tsv --output enc"
    commands = (encode, "index --encodings enc --output idx", "search --index idx --queries queries.tsv --output runs")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}  # empty
    done = subprocess.run([sys.executable, "-c", PROGRAM, *commands], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and (tmp_path / "runs" / "fused.trec").exists(), done.stderr
