"""The latency of a single query, warm, from its text to ranked documents: ours beside sentence-transformers with faiss, and bm25s.

    python query_latency.py INDEX CORPUS QUERIES MODEL_FOLDER WORK_FOLDER [--queries-used 300 --depth 100 --threads 2 --ways …]
    python query_latency.py - CORPUS QUERIES - WORK_FOLDER --ways ours-bm25 bm25s --queries-used 500 --warm-up 1000 --rounds 5 --threads 1

INDEX is of a CAME checkpoint over CORPUS. Ways: each of its experts, `fused` (all, with came-sum), `ours-bm25`, whose index is built on
first use, `sentence-transformers` (MODEL_FOLDER, IndexFlatIP of faiss), `bm25s` (with numba). Every query is asked of each way in turn,
one after the other, after those that do not count. Prints the 50th, 95th and 99th percentile in milliseconds, over the least of the
rounds for each query (on a machine that others use, the rounds in which it had to wait are left out), and the mean of the processor's
time in all threads.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from itertools import islice

import numpy as np
from rounds import make_parser, open_bm25s, run_command

Ask = Callable[[str], object]


def ask_ours(options: argparse.Namespace, ways: list[str]) -> dict[str, Ask]:
    """Experts of the index and their fusion, and BM25."""
    import moeir

    asked: dict[str, Ask] = {}
    if str(options.index) != "-":
        searcher = moeir.open_index(options.index)
        for name in searcher.engines:
            asked[name] = lambda query, name=name: searcher.search([query], options.depth, name)
        asked["fused"] = lambda query: searcher.search([query], options.depth)
    if "ours-bm25" in ways:
        folder = options.work / "bm25"
        if not folder.exists():
            run_command("index", "--corpus", options.corpus, "--engine", "bm25", "--output", folder)
        bm25 = moeir.open_index(folder)
        asked["ours-bm25"] = lambda query: bm25.search([query], options.depth)
    return {way: asked[way] for way in ways if way in asked}


def ask_sentence_transformers(options: argparse.Namespace, contents: list[str]) -> Ask:
    """Its encoder, and faiss over its vectors, which are kept in WORK_FOLDER."""
    import faiss
    from sentence_transformers import SentenceTransformer

    model, vectors_file = SentenceTransformer(str(options.model), device="cpu"), options.work / "sentence-transformers.npy"
    if not vectors_file.exists():
        np.save(vectors_file, model.encode(contents, batch_size=32, normalize_embeddings=True))
    vectors = np.load(vectors_file)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    faiss.omp_set_num_threads(options.threads)
    return lambda query: index.search(model.encode([query], normalize_embeddings=True), options.depth)


def print_latencies(ask: dict[str, Ask], warm_up: list[str], queries: list[str], rounds: int) -> None:
    """Ask the queries, in rounds, and print a line for each way."""
    for query in warm_up:
        for function in ask.values():
            function(query)
    seconds = {way: np.empty((rounds, len(queries))) for way in ask}
    processor_seconds = dict.fromkeys(ask, 0.0)
    for round_number in range(rounds):
        for place, query in enumerate(queries):
            for way, function in ask.items():
                start, processor_start = time.perf_counter(), time.process_time()
                function(query)
                seconds[way][round_number, place] = time.perf_counter() - start
                processor_seconds[way] += time.process_time() - processor_start
    for way, of_way in seconds.items():
        middle, late, last = np.percentile(of_way.min(0), [50, 95, 99]) * 1000
        processor = processor_seconds[way] / of_way.size * 1000
        line = f"{way:24} p50 {middle:7.2f}  p95 {late:7.2f}  p99 {last:7.2f} ms, {processor:6.2f} by processor on average\n"
        sys.stdout.write(line)


def main() -> None:
    """Print a line for each way."""
    paths = ("index", "corpus", "queries", "model", "work")
    parser = make_parser(__doc__, paths, queries_used=300, warm_up=20, rounds=1, depth=100, threads=2)
    ways = ["lexical", "local", "global", "fused", "ours-bm25", "sentence-transformers", "bm25s"]
    parser.add_argument("--ways", nargs="*", default=ways)
    options = parser.parse_args()
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
    if any(os.environ.get(name) != str(options.threads) for name in names):  # they are read once, when a library is loaded
        environment = os.environ | dict.fromkeys(names, str(options.threads)) | {"HF_HUB_OFFLINE": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    from moeir.records import texts

    options.work.mkdir(parents=True, exist_ok=True)
    asked = [text.text for text in islice(texts.read_texts(options.queries), options.queries_used + options.warm_up)]
    contents = [text.content for text in texts.read_texts(options.corpus)]
    ask = ask_ours(options, options.ways)
    if "sentence-transformers" in options.ways:
        ask["sentence-transformers"] = ask_sentence_transformers(options, contents)
    if "bm25s" in options.ways:
        several = open_bm25s(contents, options.depth, options.threads)
        ask["bm25s"] = lambda query: several([query])
    print_latencies(ask, asked[: options.warm_up], asked[options.warm_up :], options.rounds)


if __name__ == "__main__":
    main()
