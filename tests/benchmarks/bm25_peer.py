"""BM25 in batches beside bm25s with its numba backend: queries a second, from texts to documents and scores.

    python -m tests.benchmarks.bm25_peer INDEX CORPUS QUERIES [--queries-used 10000 --depth 100 --threads 2 --rounds 5]

INDEX is of `moeir index --engine bm25` over CORPUS. `ours` is what the engine returns, rows and scores, as bm25s does; `ours, as a run` has
ids and is sorted for `moeir evaluate`; `ours, as tuples` is a list of (id, score) for each query. Both stem, with Porter's rules. Warm,
in one process, in turns; prints queries a second and ratios to bm25s, by the clock with the least and the most, and in processor time.
"""

from itertools import islice

import numba
import torch

import moeir
from moeir.records import texts
from tests.benchmarks.rounds import format_speed, make_parser, open_bm25s, time_rounds


def main() -> None:
    """Print a line for each way."""
    options = make_parser(__doc__, ("index", "corpus", "queries"), queries_used=10_000, depth=100, threads=2, rounds=5).parse_args()
    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)
    contents = [text.content for text in texts.read_texts(options.corpus)]
    queries = [text.text for text in islice(texts.read_texts(options.queries), options.queries_used)]
    searcher = moeir.open_index(options.index)
    (engine,) = searcher.engines.values()
    ask_bm25s = open_bm25s(contents, options.depth, options.threads)
    ways = {
        "ours": lambda: engine.search(queries, options.depth),
        "bm25s": lambda: ask_bm25s(queries),
        "ours, as a run": lambda: searcher.search(queries, options.depth, ids=range(len(queries))),
        "ours, as tuples": lambda: searcher.search(queries, options.depth),
    }
    timings, _ = time_rounds(ways, options.rounds)
    for way in ways:
        print(f"| {way} | {format_speed(timings, way, 'bm25s', len(queries))} |")


if __name__ == "__main__":
    main()
