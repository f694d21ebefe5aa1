"""BM25 in batches beside bm25s with its numba backend: queries a second, from texts to documents and scores.

    python -m tests.benchmarks.bm25_peer INDEX CORPUS QUERIES [--queries-used 10000 --depth 100 --threads 2 --rounds 5]

INDEX is of `moeir index --engine bm25` over CORPUS. `ours` is what the engine returns, rows and scores, as bm25s does; `ours, as a run` has
ids and is sorted for `moeir evaluate`; `ours, as tuples` is a list of (id, score) for each query. Both stem, with Porter's rules. Warm,
in one process, in turns; prints queries a second and ratios to bm25s, by the clock with the least and the most, and in processor time.
"""

import argparse
from itertools import islice
from pathlib import Path

import bm25s
import numba
import Stemmer
import torch

import moeir
from moeir.records import texts
from tests.benchmarks.rounds import format_speed, time_rounds


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("index", "corpus", "queries"):
        parser.add_argument(name, type=Path)
    for name, default in {"queries-used": 10_000, "depth": 100, "threads": 2, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)
    contents = [text.content for text in texts.read_texts(options.corpus)]
    queries = [text.text for text in islice(texts.read_texts(options.queries), options.queries_used)]
    searcher = moeir.open_index(options.index)
    (engine,) = searcher.engines.values()
    stemmer = Stemmer.Stemmer("porter")
    peer = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numba")
    peer.index(bm25s.tokenize(contents, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

    def ask_bm25s() -> object:
        tokens = bm25s.tokenize(queries, stopwords="en", stemmer=stemmer, show_progress=False)
        return peer.retrieve(tokens, k=options.depth, show_progress=False, n_threads=options.threads)

    ways = {
        "ours": lambda: engine.search(queries, options.depth),
        "bm25s": ask_bm25s,
        "ours, as a run": lambda: searcher.search(queries, options.depth, ids=range(len(queries))),
        "ours, as tuples": lambda: searcher.search(queries, options.depth),
    }
    timings, _ = time_rounds(ways, options.rounds)
    for way in ways:
        print(f"| {way} | {format_speed(timings, way, 'bm25s', len(queries))} |")


if __name__ == "__main__":
    main()
