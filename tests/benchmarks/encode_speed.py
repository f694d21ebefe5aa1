"""`moeir encode` beside sentence-transformers' `encode`, and CAME's three experts beside three single models: texts a second, memory.

    python encode_speed.py MODEL_FOLDER CORPUS WORK_FOLDER --row dense|came [--texts 2000 --rounds 5 --threads 2 --length 256]

Each way encodes the same first texts in a process of its own, in turns, and is timed from the first text on: opening the model is not
counted. Ours reads the texts, writes and journals within that time; theirs gets a list and saves one array. Processor time is the more
stable measure on a shared machine. `theirs-…` sorts by length, batches of 32, its default; `unsorted-…` gets batches of 32 in file order.
"""

import argparse
import json
import resource
import shutil
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import make_parser, run_command, run_program

from moeir.records import texts
from moeir.representations import encodings

BATCH = 32
ROWS = {
    "dense": ("ours-float32", "ours-bfloat16", "theirs-float32", "theirs-bfloat16", "unsorted-float32"),
    "came": ("came", "lexical", "local", "global"),
}
ARCHITECTURES = {"came": "came:shared_layers={shared}", "lexical": "splade", "local": "colbert", "global": "dense"}


def prepare(arguments: argparse.Namespace, way: str) -> tuple[Path, Path]:
    """The checkpoint of a way and the texts, written on first use."""
    spec = ARCHITECTURES.get(way, "dense:pooling=mean,normalise=true").format(shared=arguments.shared)
    checkpoint = arguments.work / f"{way if way in ARCHITECTURES else 'dense'}-{arguments.length}"
    corpus = arguments.work / f"{arguments.texts}.jsonl"
    start = ("init", "--model", arguments.model, "--arch", spec, "--document-length", arguments.length, "--query-length", 32)
    if not checkpoint.exists():
        run_command(*start, "--output", checkpoint)
    if not corpus.exists():
        texts.write_texts(islice(texts.read_texts(arguments.corpus), arguments.texts), corpus)
    return checkpoint, corpus


def ours(options: argparse.Namespace, way: str) -> dict[str, float]:
    """`moeir encode`, timed from the moment its output is open. A batch comes first, as in every way: what is compiled is loaded then."""
    checkpoint, corpus = prepare(options, way)
    first = options.work / "first.jsonl"
    texts.write_texts(islice(texts.read_texts(corpus), BATCH), first)
    output = options.work / "made" / way
    shutil.rmtree(output, ignore_errors=True)
    dtype = way.partition("-")[2] or "bfloat16"
    moments: list[dict[str, float]] = []
    begin, end = encodings.ResumableEncodingWriter.__init__, encodings.ResumableEncodingWriter.close

    def begun(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        moments.append(read_clocks())

    def ended(self: Any) -> None:
        end(self)
        moments.append(read_clocks())

    encodings.ResumableEncodingWriter.__init__, encodings.ResumableEncodingWriter.close = begun, ended  # type: ignore[method-assign]
    for file in (first, corpus):
        run_command("encode", "--model", checkpoint, "--corpus", file, "--dtype", dtype, "--output", output / file.stem)
    return elapsed(*moments[-2:])


def theirs(arguments: argparse.Namespace, way: str) -> dict[str, float]:
    """sentence-transformers, with its vectors saved."""
    from sentence_transformers import SentenceTransformer

    _, corpus = prepare(arguments, way)
    kind = getattr(torch, way.partition("-")[2])
    model = SentenceTransformer(str(arguments.model), device="cpu", model_kwargs={"torch_dtype": kind})
    model.max_seq_length = arguments.length
    contents = [text.content for text in texts.read_texts(corpus)]
    model.encode(contents[:BATCH], batch_size=BATCH)
    before = read_clocks()
    step = BATCH if way.startswith("unsorted") else len(contents)
    batches = [model.encode(contents[first : first + step], batch_size=BATCH) for first in range(0, len(contents), step)]
    np.save(arguments.work / "theirs.npy", np.concatenate(batches))
    return elapsed(before, read_clocks())


def read_clocks() -> dict[str, float]:
    """Seconds of the clock and of the processor, and peak MiB so far."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"clock": time.monotonic(), "processor": time.process_time(), "memory": memory}


def elapsed(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Times between two moments, and the peak of memory."""
    return {name: value - (before[name] if name != "memory" else 0) for name, value in after.items()}


def run(arguments: argparse.Namespace, way: str) -> dict[str, float]:
    """One way, in a process of its own."""
    return run_program([sys.executable, __file__, *sys.argv[1:], "--way", way], arguments.threads)


def main() -> None:
    """Print a line for each way: its speed, memory, and its time over that of the row's first way."""
    numbers = {"texts": 2000, "rounds": 5, "threads": 2, "length": 256, "shared": 4}
    parser = make_parser(__doc__, ("model", "corpus", "work"), **numbers)
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--ways", nargs="*", help="only these")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.way:
        encode = theirs if arguments.way.startswith(("theirs", "unsorted")) else ours
        sys.stdout.write(json.dumps(encode(arguments, arguments.way)) + "\n")
        return
    ways = arguments.ways or ROWS[arguments.row]
    for way in ways:
        prepare(arguments, way)
    rounds = [{way: run(arguments, way) for way in ways} for _ in range(arguments.rounds)]
    for way in ways:
        ratios = {name: [one[way][name] / one[ways[0]][name] for one in rounds] for name in ("clock", "processor")}
        spread = (f"{name} {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for name, values in ratios.items())
        speed = statistics.median(arguments.texts / one[way]["clock"] for one in rounds)
        memory = statistics.median(one[way]["memory"] for one in rounds)
        sys.stdout.write(f"{way:18} {speed:8.1f} texts/s  {memory:6.0f} MiB  over {ways[0]}: {'  '.join(spread)}\n")
    if arguments.row == "came" and len(ways) == len(ROWS["came"]):
        processor_ratios = [sum(one[way]["processor"] for way in ways[1:]) / one["came"]["processor"] for one in rounds]
        sys.stdout.write(f"three models over came, processor time: {statistics.median(processor_ratios):.2f}\n")


if __name__ == "__main__":
    main()
