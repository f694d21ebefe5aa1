"""Late-interaction engines compared: queries a second, and recall of the exact result.

    python -m tests.benchmarks.multivector_search FOLDER DOCUMENTS QUERIES [--documents 20000 --queries 64 --depth 100 --rounds 3
        --threads 2 --plain 4 --engine maxsim ...]

DOCUMENTS and QUERIES are folders of multi-vector encodings (tests/benchmarks/fit_head.py writes both). FOLDER keeps the indexes for the
next run. The first engine is the reference; the exact one in plain torch, float32 and padded by length, is run once, on `plain` queries.
Each round runs every engine once, in turns, the first is not timed; ratios are medians within rounds.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

from moeir.representations.multivector import MultiVector
from tests.benchmarks.rounds import build_or_open_index, format_speed, time_call, time_rounds
from tests.oracles.representations import maxsim, pad

HEADER = """| engine | queries a second | times the first's (least, most) | in processor time | recall | bytes a vector |
|---|---|---|---|---|---|"""


def plain_speed(queries: MultiVector, documents: MultiVector) -> str:
    """Queries a second, by the clock and in processor time, of padded float32 products, documents sorted by length."""
    order = (documents.starts[1:] - documents.starts[:-1]).argsort()
    padded_queries, real = pad(queries)

    def search() -> None:
        for part in order.split(64):
            padded_documents, mask = pad(documents.select(part))
            for query in range(len(padded_queries)):
                maxsim(padded_queries[query : query + 1], real[query : query + 1], padded_documents, mask)

    timing, _ = time_call(search)
    return f"{len(padded_queries) / timing.clock:.2f} (in processor time {len(padded_queries) / timing.processor:.2f})"


def main() -> None:
    """Build what is missing, run the rounds, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "encodings", "asked"):
        parser.add_argument(name, type=Path)
    for name, value in {"documents": 20_000, "queries": 64, "depth": 100, "rounds": 3, "threads": 2, "plain": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--engine", action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    all_documents, all_queries = MultiVector.open(arguments.encodings), MultiVector.open(arguments.asked)
    starts = all_documents.starts[: arguments.documents + 1]
    documents = MultiVector(all_documents.vectors[: int(starts[-1])], starts)
    queries = all_queries.select(torch.linspace(0, len(all_queries) - 1, min(arguments.queries, len(all_queries))).long())
    queries = MultiVector(queries.vectors.float(), queries.starts)
    indexes = {
        spec: build_or_open_index(arguments.folder, spec, documents)
        for spec in arguments.engine or ["maxsim"]
    }
    print(f"{len(documents)} documents, {len(documents.vectors)} vectors of {documents.vectors.shape[1]}, {len(queries)} queries")
    if arguments.plain:
        few = queries.select(torch.arange(min(arguments.plain, len(queries))))
        print(f"plain torch: {plain_speed(few, documents)} queries a second\n", flush=True)
    ways = {spec: partial(index.search, queries, arguments.depth) for spec, (index, _) in indexes.items()}
    timings, results = time_rounds(ways, arguments.rounds)
    first = next(iter(indexes))
    print(HEADER)
    for spec, (_, index_folder) in indexes.items():
        pairs = zip(results[spec][0], results[first][0], strict=True)
        recall = np.mean([len(set(mine) & set(theirs)) / len(theirs) for mine, theirs in pairs])
        size = sum(path.stat().st_size for path in index_folder.iterdir()) / len(documents.vectors)
        print(f"| {spec} | {format_speed(timings, spec, first, len(queries))} | {recall:.4f} | {size:.0f} |")


if __name__ == "__main__":
    main()
