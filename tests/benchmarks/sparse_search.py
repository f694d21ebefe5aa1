"""Learned-sparse search compared: our engine, and sums over posting lists, as bm25s.

    python -m tests.benchmarks.sparse_search FOLDER --documents 10000,100000,1000000 [--engines ours,sums] [--depth 100] [--rounds 5]

FOLDER is the output of tests.benchmarks.sparse_vectors. One thread each. Rounds take engines in turns; queries a second are by processor
seconds, as the machine may be shared. Recall is that of the exact first K.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from scipy import sparse as matrices

from moeir.indexes.inverted import Inverted
from moeir.representations.sparse import Sparse
from tests.benchmarks.rounds import make_parser, time_call, time_rounds

Search = Callable[[int], np.ndarray]  # the first so many queries -> rows [Q, K]


def first_texts(whole: Sparse, count: int) -> Sparse:
    """The first texts, not copied."""
    end = int(whole.starts[count])
    return Sparse(whole.starts[: count + 1], whole.terms[:end], whole.weights[:end], whole.vocabulary)


def build_engine(documents: Sparse, queries: Sparse, depth: int) -> tuple[Search, int]:
    """Our engine, built on disk and opened, which keeps its files open; bytes on disk."""
    index = Inverted()
    index.add(documents)
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        opened = Inverted.open(folder)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return lambda count: opened.search(first_texts(queries, count), depth)[0], size


def build_posting_sums(documents: Sparse, queries: Sparse, depth: int) -> tuple[Search, int]:
    """As bm25s: a row of scores, summed over posting lists in compiled loops, then its top K."""
    shape = (len(documents), documents.vocabulary)
    matrix = matrices.csr_array((documents.weights.numpy(), documents.terms.numpy(), documents.starts.numpy()), shape=shape)
    columns = matrix.T.tocsr()
    starts, rows, weights = (np.ascontiguousarray(part) for part in (columns.indptr, columns.indices, columns.data))
    query_arrays = [part.numpy() for part in (queries.starts, queries.terms, queries.weights)]

    def search(count: int) -> np.ndarray:
        best = []
        for query in range(count):
            own = slice(query_arrays[0][query], query_arrays[0][query + 1])
            scores = _sum_postings(starts, rows, weights, query_arrays[1][own], query_arrays[2][own], len(documents))
            top = np.argpartition(-scores, depth)[:depth]
            best.append(top[np.argsort(-scores[top])])
        return np.array(best)

    return search, weights.nbytes + rows.nbytes


@numba.njit
def _sum_postings(starts: Any, rows: Any, weights: Any, terms: Any, query_weights: Any, documents: int) -> Any:
    scores = np.zeros(documents, np.float32)
    for position in range(len(terms)):
        for entry in range(starts[terms[position]], starts[terms[position] + 1]):
            scores[rows[entry]] += query_weights[position] * weights[entry]
    return scores


BUILDERS = {"ours": build_engine, "sums": build_posting_sums}


def print_table(documents: Sparse, queries: Sparse, arguments: argparse.Namespace) -> None:
    """Print a line for each engine."""
    searches, building = {}, {}
    for name in arguments.engines.split(","):
        building[name], searches[name] = time_call(partial(BUILDERS[name], documents, queries, arguments.depth))
    ways = {name: partial(search, len(queries)) for name, (search, _) in searches.items()}
    timings, rows = time_rounds(ways, arguments.rounds)
    for name, (_, size) in searches.items():
        rates = [len(queries) / one[name].processor for one in timings]
        low, middle, high = statistics.quantiles(rates, n=4) if arguments.rounds > 1 else rates * 3
        recall = np.mean([len(np.intersect1d(a, b)) / arguments.depth for a, b in zip(rows[name], rows["ours"], strict=True)])
        rate = f"{middle:.0f} ({low:.0f} to {high:.0f})"
        print(f"| {len(documents)} | {name} | {building[name].processor:.1f} | {size / 2**20:.0f} | {rate} | {recall:.4f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__, ("folder",), queries=300, depth=100, rounds=5)
    parser.add_argument("--documents", default="10000")
    parser.add_argument("--engines", default="ours,sums")
    arguments = parser.parse_args()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    all_documents, queries = Sparse.open(arguments.folder / "documents"), Sparse.open(arguments.folder / "queries")
    for count in map(int, arguments.documents.split(",")):
        print_table(first_texts(all_documents, count), first_texts(queries, arguments.queries), arguments)


if __name__ == "__main__":
    main()
