"""Most memory of encode, index and search, however long the corpus: all that is resident, and the part that is the process's own.

    python drawn.py WORK_FOLDER 1000000 CORPUS... && python memory.py WORK_FOLDER [--stage NAME ...]

Each stage is a process of its own. `resident` is the kernel's ru_maxrss: it counts pages of mapped files, which the kernel takes back when
others need memory. `own` is the most of Anonymous in /proc/PID/smaps_rollup, looked at every 0.5 s: what the stage asked for itself.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ARCH = "came:shared_layers=1,local_dim=16"
LENGTHS = ("--document-length", "64", "--query-length", "32")
TERMS = "128"  # a drawn lexical head gives half of the vocabulary to every text
EVERY = 0.5
MIB = 2**20


def commands(work: Path) -> Iterator[tuple[str, list[str]]]:
    """What is measured, by name, in the order in which one needs the other."""
    corpus, checkpoint, encodings = (str(work / name) for name in ("corpus.jsonl", "ckpt", "enc"))
    yield "encode", ["encode", "--model", checkpoint, "--corpus", corpus, "--terms", TERMS, "--output", encodings]
    engines = {
        "exact": (), "plaid": ("local=plaid",), "plaid-rescored": ("local=plaid:rescore=true",), "steps": ("lexical=inverted:quantise=8",),
        "faiss": ("global=faiss:factory=IVF1024+SQ8",), "hnsw": ("global=faiss:factory=HNSW32",),
    }  # fmt: skip
    indexes = {name: ["--encodings", encodings, *(word for one in specs for word in ("--engine", one))] for name, specs in engines.items()}
    indexes["bm25"] = ["--corpus", corpus, "--engine", "bm25"]
    for name, sources in indexes.items():
        yield f"index {name}", ["index", *sources, "--output", str(work / "idx" / name)]
        asked = ["--queries", str(work / "queries.jsonl"), "--depth", "1000"]
        yield f"search {name}", ["search", "--index", str(work / "idx" / name), *asked, "--output", str(work / "runs" / name)]


def own(process: int) -> int:
    """Anonymous bytes of a process; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:")), 0)


def measured(command: list[str]) -> tuple[float, int, int]:
    """Seconds, resident and own bytes of a command that must end well."""
    began, most = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-m", "moeir", *command], stderr=subprocess.DEVNULL)
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        most = max(most, own(process.pid))
        time.sleep(EVERY)
    if status:
        sys.exit(f"moeir {' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - began, usage.ru_maxrss * 1024, most


def main() -> None:
    """A line of a table for each stage, as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--stage", action="append", help="these only, such as 'index exact'; what they need must be there")
    given = parser.parse_args()
    if not (given.work / "ckpt").exists():
        drawn = ["--model", str(given.work / "weights"), "--from-scratch", "--arch", ARCH, *LENGTHS]
        measured(["init", *drawn, "--output", str(given.work / "ckpt")])
    for name, command in commands(given.work):
        if given.stage and name not in given.stage:
            continue
        output = Path(command[-1])
        shutil.rmtree(output, ignore_errors=True)
        seconds, resident, anonymous = measured(command)
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        line = f"| {name} | {resident / MIB:,.0f} | {anonymous / MIB:,.0f} | {size / MIB:,.0f} | {seconds:,.0f} |"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
