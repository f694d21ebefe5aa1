"""Peak memory of encode, index and search: all resident memory, and the anonymous part of it.

    python synthetic_collection.py WORK_FOLDER 1000000 CORPUS... && python memory.py WORK_FOLDER [--stage NAME ...]
    python memory.py WORK_FOLDER --shards-of ENCODINGS --times 10 [--stage NAME ...]

Each stage is a process of its own. `resident` is the kernel's ru_maxrss: it counts pages of mapped files, which the kernel takes back when
others need memory. `own` is the peak of Anonymous in /proc/PID/smaps_rollup, polled every 0.5 s: the memory that the stage allocated.
The second form does not encode: WORK_FOLDER/enc becomes so many shards, each of them ENCODINGS under other ids.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from moeir.artifacts import manifests

ARCH = "came:shared_layers=1,local_dim=16"
LENGTHS = ("--document-length", "64", "--query-length", "32")
TERMS = "128"  # a random lexical head activates half of the vocabulary
POLL_SECONDS = 0.5
MIB = 2**20


def commands(work: Path) -> Iterator[tuple[str, list[str]]]:
    """The measured commands by name, in the order of their dependencies."""
    corpus, checkpoint, encodings = (str(work / name) for name in ("corpus.jsonl", "ckpt", "enc"))
    yield "encode", ["encode", "--model", checkpoint, "--corpus", corpus, "--terms", TERMS, "--output", encodings]
    engines = {
        "exact": (), "steps": ("lexical=inverted:quantise=8",),
        "faiss": ("global=faiss:factory=IVF1024+SQ8",), "hnsw": ("global=faiss:factory=HNSW32",),
    }  # fmt: skip
    indexes = {name: ["--encodings", encodings, *(word for one in specs for word in ("--engine", one))] for name, specs in engines.items()}
    indexes["bm25"] = ["--corpus", corpus, "--engine", "bm25"]
    for name, sources in indexes.items():
        yield f"index {name}", ["index", *sources, "--output", str(work / "idx" / name)]
        search_flags = ["--queries", str(work / "queries.jsonl"), "--depth", "1000"]
        yield f"search {name}", ["search", "--index", str(work / "idx" / name), *search_flags, "--output", str(work / "runs" / name)]


def anonymous_bytes(process: int) -> int:
    """Anonymous bytes of a process; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:")), 0)


def measure_command(command: list[str]) -> tuple[float, int, int]:
    """Seconds, resident and anonymous bytes of a command that must succeed."""
    start, peak_own = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-m", "moeir", *command], stderr=subprocess.DEVNULL)
    while True:
        finished, status, usage = os.wait4(process.pid, os.WNOHANG)
        if finished:
            break
        peak_own = max(peak_own, anonymous_bytes(process.pid))
        time.sleep(POLL_SECONDS)
    if status:
        sys.exit(f"moeir {' '.join(command)}: ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - start, usage.ru_maxrss * 1024, peak_own


def link_shards(encodings: Path, folder: Path, times: int) -> None:
    """Write shards that link the arrays of `encodings` and have their own ids."""
    manifest_read, ids = manifests.read_manifest(encodings), manifests.read_lines(encodings / "ids.txt")
    checkpoint = dict(
        manifest_read["counts"]["checkpoint"], path=str((encodings / manifest_read["counts"]["checkpoint"]["path"]).resolve())
    )
    for number in range(times):
        part = folder / f"{number}-of-{times}"
        shutil.copytree(encodings, part, copy_function=os.link)
        for name in ("ids.txt", "manifest.json"):
            (part / name).unlink()
        (part / "ids.txt").write_text("".join(f"{number}-{one}\n" for one in ids), encoding="utf-8")
        record = {
            "stage": "encode",
            "settings": manifest_read["settings"] | {"shard": f"{number}/{times}"},
            "sources": manifest_read["sources"],
        }
        manifest = manifests.build_manifest(part, "encodings", record, part.name) | {
            "counts": manifest_read["counts"] | {"checkpoint": checkpoint}
        }
        (part / "manifest.json").write_text(manifests.serialize_manifest(manifest), encoding="utf-8")


def main() -> None:
    """Print a line of a table after each stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--stage", action="append", help="only these, such as 'index exact'; their inputs must exist")
    parser.add_argument("--shards-of", type=Path)
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.shards_of and not (arguments.work / "enc").exists():
        link_shards(arguments.shards_of, arguments.work / "enc", arguments.times)
    elif not arguments.shards_of and not (arguments.work / "ckpt").exists():
        init_flags = ["--model", str(arguments.work / "weights"), "--from-scratch", "--arch", ARCH, *LENGTHS]
        measure_command(["init", *init_flags, "--output", str(arguments.work / "ckpt")])
    for name, command in commands(arguments.work):
        if (arguments.stage and name not in arguments.stage) or (arguments.shards_of and name == "encode"):
            continue
        output = Path(command[-1])
        shutil.rmtree(output, ignore_errors=True)
        seconds, resident, anonymous = measure_command(command)
        size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
        line = f"| {name} | {resident / MIB:,.0f} | {anonymous / MIB:,.0f} | {size / MIB:,.0f} | {seconds:,.0f} |"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
