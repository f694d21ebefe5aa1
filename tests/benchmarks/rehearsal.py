"""A rehearsal of a large collection on one machine: generated parts are indexed, searched as one, and every phase survives a kill.

    nice -n 10 python -m tests.benchmarks.rehearsal WORK [--documents 10000000 --parts 10 --phase dense …] [--queries 7000000]
    python -m tests.benchmarks.rehearsal WORK --table

Each command is a process of its own and a line of WORK/journal.jsonl: wall and processor seconds, bytes of its product, the largest sum of
resident memory over its process tree (`resident`: with pages of mapped files, which the kernel takes back when others need memory) and of
its anonymous part (`own`), read every 0.5 s. Run it again, and what the journal has is not run again.

Of each phase one command is killed (SIGKILL) after half of the seconds that the same command on the part before took, or after a number of
seconds for every million documents, and run again. Then the product is made once more elsewhere without a kill, and must have the same
bytes. For an index in one piece this is done up to a million documents. Encodings are removed once they are indexed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from moeir.artifacts import manifests

POLL_SECONDS, MIB, MILLION = 0.5, 2**20, 10**6
IVF = "faiss:factory=IVF512+SQ8,nprobe=16"
PHASES = ("start", "dense", "sparse", "texts", "stream")
KILL_SECONDS = {"texts": 8.0, "index bm25": 12.0, "search": 2.0, "evaluate": 2.0}  # for each million documents or queries


class Command(NamedTuple):
    """A step of the rehearsal: its phase and name, the words after `python -m`, its product, and what is removed after it."""

    name: str
    words: list[str]
    product: Path
    killed_after: float | None = None  # seconds; 0: half of the seconds that the step of the part before took
    remove: Path | None = None


def list_commands(work: Path, documents: int, parts: int, queries: int) -> Iterator[Command]:
    """All steps, in order."""
    sizes = [str(work), "--documents", str(documents), "--parts", str(parts)]
    yield Command("start", ["tests.benchmarks.generated_collection", "start", *sizes], work / "weights")
    millions = documents / MILLION
    asked = ["--queries", str(work / "queries.jsonl"), "--depth", "1000"]
    for kind, engines in {"dense": {"flat": "flat", "ivf": IVF}, "sparse": {"inverted": "inverted"}}.items():
        for part in range(parts):
            encodings = work / kind / "enc" / f"{part}-of-{parts}"
            generate = ["tests.benchmarks.generated_collection", kind, *sizes, "--part", str(part)]
            yield Command(f"{kind} generate {part}", generate, encodings)
            for engine, spec in engines.items():
                index = work / kind / engine / f"{part}-of-{parts}"
                words = ["moeir", "index", "--encodings", str(encodings), "--engine", spec, "--output", str(index)]
                done = encodings if engine == list(engines)[-1] else None
                yield Command(f"{kind} index {engine} {part}", words, index, 0 if part == 1 else None, done)
        for engine in engines:
            indexes = [word for part in range(parts) for word in ("--index", str(work / kind / engine / f"{part}-of-{parts}"))]
            runs = work / "runs" / f"{engine}.trec"
            words = ["moeir", "search", *indexes, *asked, "--output", str(runs)]
            yield Command(f"{kind} search {engine}", words, runs, 10 + KILL_SECONDS["search"] * millions, work / kind / engine)
    corpus, index, runs = work / "corpus.jsonl", work / "bm25", work / "runs/bm25.trec"
    generate = ["tests.benchmarks.generated_collection", "texts", *sizes]
    yield Command("texts generate", generate, corpus, 5 + KILL_SECONDS["texts"] * millions)
    words = ["moeir", "index", "--corpus", str(corpus), "--engine", "bm25", "--output", str(index)]
    yield Command("texts index bm25", words, index, 5 + KILL_SECONDS["index bm25"] * millions)
    yield Command("texts search bm25", ["moeir", "search", "--index", str(index), *asked, "--output", str(runs)], runs, 10 + millions)
    yield from list_stream_commands(work / "stream", queries)


def list_stream_commands(work: Path, queries: int) -> Iterator[Command]:
    """Many queries over a small index."""
    millions = queries / MILLION
    generate = ["tests.benchmarks.generated_collection", "stream", str(work), "--documents", str(queries)]
    yield Command("stream generate", generate, work)
    corpus, index, run, table = work / "corpus.jsonl", work / "bm25", work / "run.trec", work / "table.tsv"
    yield Command("stream index", ["moeir", "index", "--corpus", str(corpus), "--engine", "bm25", "--output", str(index)], index)
    search = ["--queries", str(work / "queries.jsonl"), "--depth", "10", "--batch-size", "4096", "--output", str(run)]
    yield Command("stream search", ["moeir", "search", "--index", str(index), *search], run, 10 + KILL_SECONDS["search"] * millions)
    words = ["moeir", "evaluate", "--run", str(run), "--qrels", str(work / "qrels.txt"), "--measure", "RR@10", "--output", str(table)]
    yield Command("stream evaluate", words, table, 5 + KILL_SECONDS["evaluate"] * millions)


def tree_memory(process: int) -> tuple[int, int]:
    """Resident and anonymous bytes of a process and all below it."""
    resident = own = 0
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
        resident, own = (int(fields[name][0]) * 1024 if name in fields else 0 for name in ("VmRSS", "RssAnon"))
        children = [int(word) for task in Path(f"/proc/{process}/task").iterdir() for word in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return resident, own
    below = [tree_memory(child) for child in children]
    return resident + sum(one for one, _ in below), own + sum(one for _, one in below)


def measure_process(words: list[str], log: Path, killed_after: float | None = None) -> dict[str, Any]:
    """Run a command to its end, or kill it: seconds, peak of resident and anonymous bytes, and whether it was killed."""
    began, peaks = time.monotonic(), [0, 0]
    with open(log, "a", encoding="utf-8") as errors:
        process = subprocess.Popen([sys.executable, "-m", *words], stderr=errors, stdout=errors, start_new_session=True)
        while True:
            finished, status, usage = os.wait4(process.pid, os.WNOHANG)
            if finished:
                break
            peaks = [max(pair) for pair in zip(peaks, tree_memory(process.pid), strict=True)]
            if killed_after is not None and time.monotonic() - began > killed_after:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
    process.returncode = os.waitstatus_to_exitcode(status)
    killed = process.returncode == -signal.SIGKILL and killed_after is not None
    if process.returncode and not killed:
        sys.exit(f"{' '.join(words)}: ended with {process.returncode}; its messages are in {log}")
    seconds, processor = round(time.monotonic() - began, 1), round(usage.ru_utime + usage.ru_stime, 1)
    return {
        "seconds": seconds,
        "processor": processor,
        "resident": max(peaks[0], usage.ru_maxrss * 1024),
        "own": peaks[1],
        "killed": killed,
    }


def remove(path: Path | None) -> None:
    """Remove a file or a folder, if it exists."""
    if path is not None and path.is_dir():
        shutil.rmtree(path)
    elif path is not None:
        path.unlink(missing_ok=True)


def product_bytes(product: Path) -> int:
    """Bytes on disk of a file or a folder."""
    files = product.rglob("*") if product.is_dir() else [product]
    return sum(file.stat().st_size for file in files if file.is_file())


def content_digest(product: Path) -> str:
    """One digest of everything but manifests, which hold times."""
    if product.is_file():
        return manifests.compute_sha256(product)
    return manifests.digest_files(manifests.read_manifest(product)["files"])


def run_command(command: Command, work: Path, earlier: dict[str, dict[str, Any]], compared: bool) -> dict[str, Any]:
    """Run a step, with its kill and the comparison of bytes if it has them."""
    log, entry, killed_after = work / "log.txt", {"name": command.name}, command.killed_after
    if killed_after == 0:
        killed_after = earlier[command.name[:-1] + "0"]["seconds"] / 2
    remove(command.product)  # of a rehearsal that was stopped after it and before its line
    if killed_after is not None:
        entry |= measure_process(command.words, log, killed_after)
        if command.product.exists() and entry["killed"]:
            sys.exit(f"{command.product}: exists after a kill in the middle")
    if entry.pop("killed", True):
        entry |= {"killed_after": entry["seconds"]} if killed_after is not None else {}
        entry |= measure_process(command.words, log)
    entry |= {"bytes": product_bytes(command.product)}
    if killed_after is not None and compared:
        again = work / "again" / command.product.name
        shutil.rmtree(again.parent, ignore_errors=True)
        words = [str(again) if word == str(command.product) else word for word in command.words]
        if words != command.words:  # the generators' outputs have fixed names; a part is the same bytes whenever it is written
            measure_process(words, log)
            if content_digest(again) != content_digest(command.product):
                sys.exit(f"{command.product}: other bytes than {again}, which was not interrupted")
            entry["same_bytes"] = True
            shutil.rmtree(again.parent)
    return entry


def format_entries(entries: list[dict[str, Any]]) -> str:
    """A Markdown table: one row for each kind of step, summed over its parts."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        words = entry["name"].split()
        rows.setdefault(" ".join(words[:-1] if words[-1].isdigit() else words), []).append(entry)
    lines = [
        "| step | processes | seconds | processor seconds | GB on disk | resident MiB | own MiB | killed after | same bytes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in rows.items():
        seconds, size = (sum(one[key] for one in group) for key in ("seconds", "bytes"))
        resident, own = (max(one[key] for one in group) / MIB for key in ("resident", "own"))
        killed = ", ".join(str(one["killed_after"]) for one in group if "killed_after" in one)
        same = "yes" if any(one.get("same_bytes") for one in group) else ""
        used = f"{sum(one['processor'] for one in group):,.0f}" if all("processor" in one for one in group) else ""
        lines.append(
            f"| {name} | {len(group)} | {seconds:,.0f} | {used} | {size / 1e9:.2f} | {resident:,.0f} | {own:,.0f} | {killed} | {same} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what the journal lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--documents", type=int, default=10 * MILLION)
    parser.add_argument("--parts", type=int, default=10)
    parser.add_argument("--queries", type=int, default=7 * MILLION, help="of the phase stream")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only these, and start")
    parser.add_argument("--keep", action="store_true", help="keep encodings and searched indexes")
    parser.add_argument("--table", action="store_true", help="print the table of the journal and stop")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    journal = work / "journal.jsonl"
    entries = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    earlier = {entry["name"]: entry for entry in entries}
    for command in list_commands(work, arguments.documents, arguments.parts, arguments.queries) if not arguments.table else ():
        phase = command.name.split()[0]
        if arguments.phase and phase not in (*arguments.phase, "start"):
            continue
        if command.name in earlier:
            remove(None if arguments.keep else command.remove)
            continue
        in_parts = command.name.split()[-1].isdigit() or command.words[1] in ("search", "evaluate")
        entry = run_command(command, work, earlier, in_parts or arguments.documents <= MILLION)
        earlier[command.name] = entry
        entries.append(entry)
        with open(journal, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        print(json.dumps(entry), flush=True)
        remove(None if arguments.keep else command.remove)
    print(format_entries(entries))


if __name__ == "__main__":
    main()
