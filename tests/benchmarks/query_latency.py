"""The latency of a single query, warm, from its text to ranked documents: ours beside sentence-transformers with faiss, bm25s and Pyserini.

    python query_latency.py INDEX CORPUS QUERIES MODEL_FOLDER WORK_FOLDER [--queries-used 300 --depth 100 --threads 2 --ways …]

INDEX is of a CAME checkpoint over CORPUS. Ways: each of its experts, `fused` (all, with came-sum), `ours-bm25` (an index that is built
on first use), `sentence-transformers` (MODEL_FOLDER, IndexFlatIP of faiss), `bm25s` (with numba), `pyserini` (if it is installed, over
WORK_FOLDER/lucene). Every query is asked of each way in turn, one after the other, after twenty that do not count. Prints the 50th, 95th
and 99th percentile in milliseconds.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np

WARM_UP = 20  # queries that do not count
Ask = Callable[[str], object]


def ask_ours(options: argparse.Namespace, ways: list[str]) -> dict[str, Ask]:
    """Experts of the index and their fusion, and BM25."""
    import moeir
    from moeir import cli

    asked: dict[str, Ask] = {}
    searcher = moeir.open_index(options.index)
    for name in searcher.engines:
        asked[name] = lambda query, name=name: searcher.search([query], options.depth, name)
    asked["fused"] = lambda query: searcher.search([query], options.depth)
    if "ours-bm25" in ways:
        folder = options.work / "bm25"
        if not folder.exists() and cli._exit_code(["index", "--corpus", str(options.corpus), "--engine", "bm25", "--output", str(folder)]):
            sys.exit("index: failed")
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


def ask_bm25s(options: argparse.Namespace, contents: list[str]) -> Ask:
    """bm25s with its numba backend and Porter's stems."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("porter")
    index = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numba")
    index.index(bm25s.tokenize(contents, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

    def ask(query: str) -> object:
        tokens = bm25s.tokenize([query], stopwords="en", stemmer=stemmer, show_progress=False)
        return index.retrieve(tokens, k=options.depth, show_progress=False, n_threads=options.threads)

    return ask


def ask_pyserini(options: argparse.Namespace) -> Ask:
    """Lucene by Pyserini, over an index that its indexer has made."""
    from pyserini.search.lucene import LuceneSearcher

    searcher = LuceneSearcher(str(options.work / "lucene"))
    searcher.set_bm25(0.9, 0.4)
    return lambda query: searcher.search(query, options.depth)


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("index", "corpus", "queries", "model", "work"):
        parser.add_argument(name, type=Path)
    for name, default in {"queries-used": 300, "depth": 100, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    ways = ["lexical", "local", "global", "fused", "ours-bm25", "sentence-transformers", "bm25s"]
    parser.add_argument("--ways", nargs="*", default=ways)
    options = parser.parse_args()
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
    if any(os.environ.get(name) != str(options.threads) for name in names):  # they are read once, when a library is loaded
        environment = os.environ | dict.fromkeys(names, str(options.threads)) | {"HF_HUB_OFFLINE": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    from moeir.records import texts

    options.work.mkdir(parents=True, exist_ok=True)
    asked = [text.text for text in islice(texts.read_texts(options.queries), options.queries_used + WARM_UP)]
    contents = [text.content for text in texts.read_texts(options.corpus)]
    ask = ask_ours(options, options.ways)
    if "sentence-transformers" in options.ways:
        ask["sentence-transformers"] = ask_sentence_transformers(options, contents)
    if "bm25s" in options.ways:
        ask["bm25s"] = ask_bm25s(options, contents)
    if "pyserini" in options.ways:
        ask["pyserini"] = ask_pyserini(options)
    seconds: dict[str, list[float]] = {way: [] for way in ask}
    for query in asked:
        for way, function in ask.items():
            start = time.perf_counter()
            function(query)
            seconds[way].append(time.perf_counter() - start)
    for way, of_way in seconds.items():
        middle, late, last = np.percentile(of_way[WARM_UP:], [50, 95, 99]) * 1000
        sys.stdout.write(f"{way:24} p50 {middle:7.2f}  p95 {late:7.2f}  p99 {last:7.2f} ms\n")


if __name__ == "__main__":
    main()
