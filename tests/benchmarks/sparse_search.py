"""Learned-sparse engines compared: ours, SciPy's products, sums over posting lists, and BMP where it is installed.

    python -m tests.benchmarks.sparse_search FOLDER --documents 10000,100000,1000000 [--engines ours,scipy,…] [--depth 100] [--rounds 5]
    python -m tests.benchmarks.sparse_search FOLDER --documents 1000000 --memory

FOLDER is the output of tests.benchmarks.sparse_vectors. One thread each but for Lucene, whose processor seconds are those of its process
minus those of a search for one query. Rounds take engines in turns; queries a second are by processor seconds, as the machine may be
shared. Recall is that of the exact first K. --memory builds and searches in separate processes and prints their peaks.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from scipy import sparse as matrices

from moeir.indexes.inverted import Inverted
from moeir.representations.sparse import Sparse

FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
Search = Callable[[int], np.ndarray]  # the first so many queries -> rows [Q, K]


def seconds() -> float:
    """Processor seconds of this process and of those it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def temporary_folder() -> str:
    """A folder that is deleted with the process."""
    FOLDERS.append(tempfile.TemporaryDirectory())
    return FOLDERS[-1].name


def first_texts(whole: Sparse, count: int) -> Sparse:
    """The first texts, not copied."""
    end = int(whole.starts[count])
    return Sparse(whole.starts[: count + 1], whole.terms[:end], whole.weights[:end], whole.vocabulary)


def build_engine(index: Any, documents: Sparse, queries: Sparse, depth: int) -> tuple[Search, int]:
    """One of our engines, built on disk and opened; bytes on disk."""
    folder = temporary_folder()
    if not len(index):
        index.add(documents)
    index.save(folder)
    opened = type(index).open(folder)
    size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return lambda count: opened.search(first_texts(queries, count), depth)[0], size


def build_scipy(documents: Sparse, queries: Sparse, depth: int) -> tuple[Search, int]:
    """SciPy: a row of scores for each query, then its top K."""
    columns = _matrix(documents).T.tocsr()
    query_matrix = _matrix(queries)

    def search(count: int) -> np.ndarray:
        rows = []
        for query in range(count):
            scores = (query_matrix[query : query + 1] @ columns).toarray()[0]
            best = np.argpartition(-scores, depth)[:depth]
            rows.append(best[np.argsort(-scores[best])])
        return np.array(rows)

    return search, columns.data.nbytes + columns.indices.nbytes


def build_posting_sums(documents: Sparse, queries: Sparse, depth: int) -> tuple[Search, int]:
    """As bm25s: a row of scores, summed over posting lists in compiled loops, then its top K."""
    columns = _matrix(documents).T.tocsr()
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


def build_bmp(documents: Sparse, queries: Sparse, depth: int, alpha: float) -> tuple[Search, int]:
    """BMP (Mallia et al. 2024) over 8-bit impacts."""
    import bmp as package

    path = str(Path(temporary_folder()) / "index.bmp")
    starts, terms, weights = (part.numpy() for part in (documents.starts, documents.terms, documents.weights))
    impacts = np.maximum(1, np.rint(weights * (255 / weights.max()))).astype(int)
    indexer = package.Indexer(path, 16, True)
    for row in range(len(documents)):
        own = slice(starts[row], starts[row + 1])
        indexer.add_document(str(row), dict(zip(map(str, terms[own].tolist()), impacts[own].tolist(), strict=True)))
    indexer.finish()
    searcher = package.Searcher(path)
    starts, terms, weights = (part.numpy() for part in (queries.starts, queries.terms, queries.weights))
    impacts_of_queries = np.maximum(1, np.rint(weights * (100 / weights.max()))).astype(int)
    query_impacts = [dict(zip(map(str, terms[a:b].tolist()), impacts_of_queries[a:b].tolist(), strict=True)) for a, b in pairwise(starts)]
    search = lambda count: np.array([[int(row) for row in searcher.search(one, depth, alpha, 1.0)[0]] for one in query_impacts[:count]])  # noqa: E731
    return search, Path(path).stat().st_size


def _matrix(texts: Sparse) -> matrices.csr_array:
    return matrices.csr_array((texts.weights.numpy(), texts.terms.numpy(), texts.starts.numpy()), shape=(len(texts), texts.vocabulary))


def select_builders(names: list[str]) -> dict[str, Callable[[Sparse, Sparse, int], tuple[Search, int]]]:
    """The function that builds each engine."""

    every = {
        "ours": lambda *given: build_engine(Inverted(), *given),
        "ours, quantise=8": lambda *given: build_engine(Inverted(quantise=8), *given),
        "scipy": build_scipy,
        "sums": build_posting_sums,
        "bmp": lambda *given: build_bmp(*given, alpha=1.0),
    }
    return {name: way for name, way in every.items() if name.split(",")[0] in names}


def print_table(documents: Sparse, queries: Sparse, arguments: argparse.Namespace) -> None:
    """Print a line for each engine."""
    searches, exact = {}, None
    for name, way in select_builders(arguments.engines.split(",")).items():
        began = seconds()
        searches[name] = (*way(documents, queries, arguments.depth), seconds() - began)
        searches[name][0](1)  # compiled, mapped
    rates: dict[str, list[float]] = {name: [] for name in searches}
    rows = {}
    for _ in range(arguments.rounds):
        for name, (search, _, _) in searches.items():
            began = seconds()
            search(1)
            middle = seconds()
            rows[name] = search(len(queries))
            own = middle - began if name == "lucene" else 0.0
            rates[name].append(len(queries) / (seconds() - middle - own))
    exact = rows.get("ours")
    for name, (_, size, duration) in searches.items():
        low, middle, high = statistics.quantiles(rates[name], n=4) if arguments.rounds > 1 else rates[name] * 3
        recall = np.mean([len(np.intersect1d(a, b)) / arguments.depth for a, b in zip(rows[name], exact, strict=True)])
        rate = f"{middle:.0f} ({low:.0f} to {high:.0f})"
        print(f"| {len(documents)} | {name} | {duration:.1f} | {size / 2**20:.0f} | {rate} | {recall:.4f} |", flush=True)


def run_in_process(work: Callable[..., str], *given: Any) -> None:
    """Run a function in a process of its own and print its result."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print(pool.submit(work, *given).result(), flush=True)


def peak_memory() -> str:
    """Peak memory of this process, mapped files included, in MiB."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"


def measure_build(folder: Path, count: int, target: str) -> str:
    """Index the first documents."""
    before, index = peak_memory(), Inverted()
    index.add(first_texts(Sparse.open(folder / "documents"), count))
    index.save(target)
    return f"{count} documents: {before} MiB after the imports, {peak_memory()} at most while the index is built"


def measure_search(folder: Path, count: int, target: str, query_count: int, depth: int) -> str:
    """Search, in one batch and then one query after the other."""
    before, queries = peak_memory(), first_texts(Sparse.open(folder / "queries"), query_count)
    index, latencies = Inverted.open(target), []
    index.search(queries, depth)
    for query in range(query_count):
        began = time.perf_counter()
        index.search(queries.select(torch.tensor([query])), depth)
        latencies.append(1000 * (time.perf_counter() - began))
    p50, p95 = np.percentile(latencies, [50, 95])
    threads = numba.get_num_threads()
    memory = f"{before} MiB after the imports, {peak_memory()} at most in search"
    return f"{memory}; one query on {threads} threads: p50 {p50:.1f} ms, p95 {p95:.1f} ms"


def main() -> None:
    """Print the table, or the peak of building."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", default="10000")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--engines", default="ours,scipy,sums")
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true")
    arguments = parser.parse_args()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    all_documents, queries = Sparse.open(arguments.folder / "documents"), Sparse.open(arguments.folder / "queries")
    for count in map(int, arguments.documents.split(",")):
        if arguments.memory:
            with tempfile.TemporaryDirectory() as folder:
                run_in_process(measure_build, arguments.folder, count, folder)
                run_in_process(measure_search, arguments.folder, count, folder, arguments.queries, arguments.depth)
        else:
            print_table(first_texts(all_documents, count), first_texts(queries, arguments.queries), arguments)


if __name__ == "__main__":
    main()
