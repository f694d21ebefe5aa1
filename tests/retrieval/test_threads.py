"""Searches of several threads at once: the bytes of one thread, whatever the engine."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import run_in_process

DOCUMENTS = 600
ARCHITECTURES = {"came": "came:shared_layers=2,local_dim=16,normalise=true", "taser": "taser:every=1,experts=2,routing=token"}
SEARCH = """
import os, random, sys
from concurrent.futures import ThreadPoolExecutor
import moeir
from moeir.indexes import flat, maxsim

flat.DOCUMENTS_PER_THREAD, maxsim.TEXTS_AT_ONCE = 64, 64  # so that threads share the scans, as in a large index
count, forks, rng = int(sys.argv[1]), int(sys.argv[2]), random.Random(2)
words = "owl mice night bee hive bat moths dark ants nest the sea swims tree hollow echo".split()
queries = [" ".join(rng.choices(words, k=rng.randint(1, 5))) for _ in range(count)]
batches = [queries[first:last] for row in range(0, count, 10) for first, last in ((row, row + 1), (row + 1, row + 10))]
for path in sys.argv[3:]:
    searcher = moeir.open_index(path, device="cpu")
    search = lambda batch: searcher.search(batch, 10)
    alone = [] if os.environ.get("AT_ONCE") else list(map(search, batches))
    many = []
    for first in range(0, len(batches), 8):  # threads that are new, while others search
        with ThreadPoolExecutor(4) as pool:
            many += pool.map(search, batches[first : first + 8])
    assert many == (alone or list(map(search, batches))), path
    for _ in range(forks):
        with ThreadPoolExecutor(2) as pool:
            busy = [pool.submit(search, batches[1]) for _ in range(4)]
            if not (child := os.fork()):
                os._exit(search(batches[1]) != many[1])
            assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def indexes(tmp_path_factory, tiny_model_with_head, toy) -> Path:
    folder, rng = tmp_path_factory.mktemp("threads"), random.Random(1)
    words = " ".join(json.loads(line)["text"] for line in (toy / "corpus.jsonl").read_text().splitlines()).split()
    texts = [{"_id": f"d{row}", "text": " ".join(rng.choices(words, k=rng.randint(1, 12)))} for row in range(DOCUMENTS)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    commands = [("index", "--corpus", folder / "corpus.jsonl", "--engine", "bm25", "--output", folder / "bm25")]
    for name, spec in ARCHITECTURES.items():
        model, encodings = folder / f"{name}.ckpt", folder / f"{name}.enc"
        commands.append(("init", "--model", tiny_model_with_head, "--arch", spec, "--output", model))
        commands.append(("encode", "--model", model, "--corpus", folder / "corpus.jsonl", "--output", encodings))
        commands.append(("index", "--encodings", encodings, "--output", folder / name))
    for command in commands:
        assert (result := run_in_process(*command)).code == 0, result.stderr
    return folder


def run_program(queries: int, forks: int, *indexes: Path, **environment: str) -> None:
    command = [sys.executable, "-c", SEARCH, str(queries), str(forks), *map(str, indexes)]
    settings = {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    result = subprocess.run(command, env=os.environ | settings | environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("queries", [40, pytest.param(10_000, marks=pytest.mark.torture)])
@pytest.mark.parametrize(("names", "forks"), [(["bm25"], 5), (["came", "taser"], 0)])
def test_searches_of_four_threads_have_the_bytes_of_one(indexes, names, forks, queries):
    run_program(queries, forks, *(indexes / name for name in names))


@pytest.mark.torture
@pytest.mark.parametrize("index", ["bm25", "came"])
def test_threads_that_compile_at_once_have_the_bytes_of_one(indexes, index, tmp_path):
    run_program(400, 0, indexes / index, AT_ONCE="1", NUMBA_CACHE_DIR=str(tmp_path))
