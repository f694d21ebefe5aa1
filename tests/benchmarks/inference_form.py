"""The form of layers for inference beside the plain one: texts a second, milliseconds of a single query, and nearness to float32.

    python inference_form.py CHECKPOINT CORPUS QUERIES [--texts 120 --queries-used 90 --rounds 5 --threads 1]

In one process, in turns: each round encodes the same texts in each form and dtype, then each query is encoded alone in each. Prints the
medians, the ratio of plain to packed, and of each expert's dense vectors the least cosine with those of the plain form in float32.
"""

import argparse
import statistics
import sys
import time
from itertools import islice
from pathlib import Path

import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.backbones.device import autocast
from moeir.records import texts

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def report_times(seconds: dict[tuple[str, str, str], list[float]], count: int) -> None:
    """Print a line for each dtype: texts a second and milliseconds of a query, by form, and their ratios."""
    for dtype in DTYPES:
        plain, packed = (statistics.median(seconds["texts", form, dtype]) for form in ("plain", "packed"))
        line = f"{dtype:9} texts/s: plain {count / plain:.1f}, packed {count / packed:.1f}, ratio {plain / packed:.2f}; "
        plain, packed = (statistics.median(seconds["query", form, dtype]) * 1000 for form in ("plain", "packed"))
        sys.stdout.write(f"{line}one query: plain {plain:.1f} ms, packed {packed:.1f} ms, ratio {plain / packed:.2f}\n")


def main() -> None:
    """Print a line for each dtype and expert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "corpus", "queries"):
        parser.add_argument(name, type=Path)
    for name, default in {"texts": 120, "queries-used": 90, "rounds": 5, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    contents = [text.content for text in islice(texts.read_texts(options.corpus), options.texts)]
    queries = [text.text for text in islice(texts.read_texts(options.queries), options.queries_used)]
    models: dict[tuple[str, str], RetrievalModel] = {}
    for dtype in DTYPES:
        models["plain", dtype], models["packed", dtype] = open_checkpoint(options.checkpoint), open_checkpoint(options.checkpoint)
        models["packed", dtype].pack_for_inference(DTYPES[dtype])
    batches = models["plain", "float32"].tokenize_batches(contents, "document")
    seconds: dict[tuple[str, str, str], list[float]] = {}
    encoded: dict[tuple[str, str], EncoderOutput] = {}

    def encode(way: tuple[str, str], kind: str, query: str = "") -> None:
        start = time.perf_counter()
        with autocast(DTYPES[way[1]], "cpu"):
            output = models[way].encode([query], "query") if query else models[way].encode_batches(batches)
        seconds.setdefault((kind, *way), []).append(time.perf_counter() - start)
        if not query:
            encoded[way] = output

    for _ in range(options.rounds):
        for way in models:
            encode(way, "texts")
    for query in queries:
        for way in models:
            encode(way, "query", query)
    report_times(seconds, len(contents))
    exact = encoded["plain", "float32"]
    for expert, kind in models["plain", "float32"].architecture.representation_kinds.items():
        if kind == "dense":
            cosines = {way: torch.cosine_similarity(exact[expert].vectors, output[expert].vectors).min() for way, output in encoded.items()}
            parts = ", ".join(f"{form} {dtype} {cosine:.6f}" for (form, dtype), cosine in cosines.items())
            sys.stdout.write(f"{expert}: least cosine with plain float32: {parts}\n")


if __name__ == "__main__":
    main()
