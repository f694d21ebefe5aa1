"""Peak memory of encode, index and search: all resident memory, and the anonymous part of it.

    python -m tests.benchmarks.memory WORK_FOLDER COUNT CORPUS... [--stage NAME ...]

A corpus of COUNT passages of some 60 words, random sentences of the corpora, and a random encoder of two layers are made on first use.
Each stage is a process of its own. `resident` is the kernel's ru_maxrss: it counts pages of mapped files, which the kernel takes back when
others need memory. `own` is the peak of Anonymous in /proc/PID/smaps_rollup, polled: the memory that the stage allocated.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from moeir.records import texts
from tests.benchmarks.rounds import make_parser
from tests.conftest import write_tiny_bert
from tests.test_load import own_bytes

INIT = ("--from-scratch", "--arch", "came:shared_layers=1,local_dim=16", "--document-length", "64", "--query-length", "32")
WORDS, QUERIES, QUERY_WORDS = 60, 256, 8
POLL_SECONDS = 0.1
MIB = 2**20


def make_collection(work: Path, count: int, corpora: list[Path]) -> None:
    """Write the encoder, corpus.jsonl, and queries.jsonl of the first words of random sentences."""
    contents = (text.content for corpus in corpora for text in texts.read_texts(corpus, keep_empty=True))
    sentences = [one for content in contents for one in re.split(r"(?<=[.!?])\s+", content) if 5 <= len(one.split()) <= 40]
    rng = random.Random(1)

    def passage() -> str:
        chosen: list[str] = []
        while len(chosen) < WORDS - 8:
            chosen += rng.choice(sentences).split()
        return " ".join(chosen)

    queries = (" ".join(rng.choice(sentences).split()[:QUERY_WORDS]) for _ in range(QUERIES))
    passages = (passage() for _ in range(count))
    write_tiny_bert(work / "weights", head=True, layers=2)
    for name, rows in {"queries.jsonl": queries, "corpus.jsonl": passages}.items():
        with open(work / name, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"_id": f"{name[0]}{number}", "text": row}) + "\n" for number, row in enumerate(rows))


def commands(work: Path) -> Iterator[tuple[str, list[str]]]:
    """The measured commands by name, in the order of their dependencies."""
    corpus, encodings = str(work / "corpus.jsonl"), str(work / "enc")
    yield "init", ["init", "--model", str(work / "weights"), *INIT, "--output", str(work / "ckpt")]
    terms = ["--terms", "128"]  # a random lexical head activates half of the vocabulary
    yield "encode", ["encode", "--model", str(work / "ckpt"), "--corpus", corpus, *terms, "--output", encodings]
    faiss = ["--engine", "global=faiss:factory=IVF1024+SQ8"]
    indexes = {"exact": ["--encodings", encodings], "faiss": ["--encodings", encodings, *faiss], "bm25": ["--corpus", corpus]}
    indexes["bm25"] += ["--engine", "bm25"]
    for name, sources in indexes.items():
        yield f"index {name}", ["index", *sources, "--output", str(work / "idx" / name)]
        search_flags = ["--queries", str(work / "queries.jsonl"), "--depth", "1000"]
        yield f"search {name}", ["search", "--index", str(work / "idx" / name), *search_flags, "--output", str(work / "runs" / name)]


def measure_command(command: list[str]) -> tuple[float, int, int]:
    """Seconds, resident and anonymous bytes of a command that must succeed."""
    start, peak_own = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-m", "moeir", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak_own = max(peak_own, own_bytes(process.pid))
        time.sleep(POLL_SECONDS)
    if ended[1]:
        sys.exit(f"moeir {' '.join(command)}: ended with {os.waitstatus_to_exitcode(ended[1])}")
    return time.monotonic() - start, ended[2].ru_maxrss * 1024, peak_own


def main() -> None:
    """Print a line of a table after each stage."""
    parser = make_parser(__doc__, ("work",))
    parser.add_argument("count", type=int)
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--stage", action="append", help="only these, such as 'index exact'; their inputs must exist")
    arguments = parser.parse_args()
    if not (arguments.work / "corpus.jsonl").exists():
        make_collection(arguments.work, arguments.count, arguments.corpora)
    for name, command in commands(arguments.work):
        if arguments.stage and name not in arguments.stage:
            continue
        output = Path(command[-1])
        shutil.rmtree(output, ignore_errors=True)
        seconds, resident, anonymous = measure_command(command)
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        line = f"| {name} | {resident / MIB:,.0f} | {anonymous / MIB:,.0f} | {size / MIB:,.0f} | {seconds:,.0f} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
