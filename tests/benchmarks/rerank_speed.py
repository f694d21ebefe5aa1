"""`moeir rerank` and sentence-transformers' `CrossEncoder.predict`: pairs a second, and equality of the scores.

    python rerank_speed.py MODEL_FOLDER RUN QUERIES CORPUS WORK_FOLDER [--queries-used 8 --depth 50 --rounds 3 --threads 2 --length 512]

The first documents of the first queries of a run, from texts in memory to scores, with one cross-encoder from the weights (its head is
random). Each way is timed in turns, the model open; `theirs-float32` is predict's default (batches of 32, sorted by length). Ours includes
the tokenization of each query and document. The share of the peak is of the largest rate of matrix products measured here, in that
precision, by 2 operations for each weight of a layer and each token.
"""

import argparse
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from rounds import Timing, make_parser, run_command, time_call

from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.backbones.packed_pairs import RaggedIds
from moeir.records import runs, texts
from moeir.records.texts import Text
from moeir.reranking import scoring

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OURS = DTYPES | {"int8": torch.int8}
Timed = tuple[Timing, np.ndarray]
WAYS = ("theirs-float32", "theirs-bfloat16", "ours-float32", "ours-bfloat16", "ours-int8")


def load_pairs(arguments: argparse.Namespace) -> list[tuple[Text, Text]]:
    """The first documents of the first queries of a run."""
    run, all_queries = runs.read_run(arguments.run).top(arguments.depth), texts.read_texts_by_id(arguments.queries)
    chosen = [query for query in run.queries if query in all_queries][: arguments.queries_used]
    wanted = {document for query in chosen for document in run.documents_of(query)}
    documents_by_id = {text.id: text for text in texts.read_texts(arguments.corpus) if text.id in wanted}
    return [
        (all_queries[query], documents_by_id[document])
        for query in chosen
        for document in run.documents_of(query)
        if document in documents_by_id
    ]


def ours(checkpoint: RetrievalModel, pairs: list[tuple[Text, Text]], dtype: torch.dtype, max_tokens: int) -> np.ndarray:
    """From texts to scores; each text is tokenized once."""
    pairing, token_ids, rows = checkpoint.pair_tokenizer, [], []
    for side in (0, 1):
        row_by_id = {pair[side].id: number for number, pair in enumerate({one[side].id: one for one in pairs}.values())}
        every = {pair[side].id: pair[side] for pair in pairs}
        contents = [every[name].content if side == 0 else every[name].joined_fields for name in row_by_id]
        token_ids.append(RaggedIds.from_lists(pairing.token_ids(contents, ("query", "document")[side])[0]))
        rows.append(np.array([row_by_id[pair[side].id] for pair in pairs]))
    return scoring.score_pairs(checkpoint, pairing.make_pairs(*token_ids, *rows), dtype=dtype, max_tokens=max_tokens)


def peak_rate(dtype: torch.dtype) -> float:
    """Highest rate of operations of large matrix products on this machine."""
    best = 0.0
    for size in (512, 1024, 2048):
        one, other = (torch.randn(size, size, dtype=dtype) for _ in range(2))
        for _ in range(5):
            began = time.monotonic()
            one @ other
            best = max(best, 2 * size**3 / (time.monotonic() - began))
    return best


def operations(checkpoint: RetrievalModel, lengths: list[int]) -> float:
    """Operations of the layers for pairs of these lengths; of the last layer only those of the first token."""
    shape = checkpoint.architecture.encoder.config
    whole, first = 2 * (4 * shape.hidden**2 + 2 * shape.hidden * shape.intermediate_size), 2 * 2 * shape.hidden**2
    each = (shape.layers - 1) * (whole * np.array(lengths) + 4 * shape.hidden * np.square(lengths))
    return float((each + first * np.array(lengths) + whole - first).sum())


def main() -> None:
    """Print a line for each way: pairs a second, ratios to the others, and the largest difference of its scores to the first's."""
    numbers = {"queries_used": 8, "depth": 50, "rounds": 3, "threads": 2, "length": 512, "max_tokens": 4096}
    parser = make_parser(__doc__, ("model", "run", "queries", "corpus", "work"), **numbers)
    parser.add_argument("--ways", nargs="*", default=WAYS)
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(arguments.threads)
    checkpoint_folder = arguments.work / "cross-encoder"
    start = ("init", "--model", arguments.model, "--arch", "cross-encoder:separate=false,fields=title+text", "--query-length", 64)
    if not checkpoint_folder.exists():
        run_command(*start, "--document-length", arguments.length, "--output", checkpoint_folder)
    checkpoint, pairs = open_checkpoint(checkpoint_folder), load_pairs(arguments)
    plain = [(query.content, document.content) for query, document in pairs]
    ways: dict[str, Callable[[], Timed]] = {}
    for name, dtype in DTYPES.items():
        theirs = CrossEncoder(str(checkpoint_folder), device="cpu", max_length=arguments.length, model_kwargs={"dtype": dtype})
        ways[f"theirs-{name}"] = partial(time_call, partial(theirs.predict, plain, activation_fn=torch.nn.Identity()))
    for name, dtype in OURS.items():
        packed = open_checkpoint(checkpoint_folder)
        packed.pack_for_inference(dtype)
        ways[f"ours-{name}"] = partial(time_call, partial(ours, packed, pairs, dtype, arguments.max_tokens))
    for way in arguments.ways:
        ways[way]()  # warm up
    rounds = [{way: ways[way]() for way in arguments.ways} for _ in range(arguments.rounds)]
    lengths = [len(ids) for ids in checkpoint.tokenizer.encode([" ".join(pair) for pair in plain], special=False)]
    sys.stdout.write(f"{len(pairs)} pairs of {np.mean(lengths) + 3:.0f} tokens, {arguments.threads} threads\n")
    done = operations(checkpoint, [min(arguments.length, length + 3) for length in lengths])
    first = rounds[0][arguments.ways[0]][1].astype(np.float64)
    for way in arguments.ways:
        seconds = {other: [one[other][0].clock for one in rounds] for other in arguments.ways}
        clock = statistics.median(len(pairs) / own for own in seconds[way])
        ratios = {other: statistics.median(map(operator.truediv, seconds[other], seconds[way])) for other in arguments.ways if other != way}
        difference = np.abs(rounds[0][way][1].astype(np.float64) - first).max() / np.abs(first).max()
        dtype = DTYPES.get(way.partition("-")[2])
        share = "" if dtype is None else f"{done / len(pairs) * clock / peak_rate(dtype):5.1%} of the peak  "
        words = "  ".join(f"{ratio:.2f} x {other}" for other, ratio in ratios.items())
        sys.stdout.write(f"{way:16} {clock:7.1f} pairs/s  {share}largest difference {difference:.1e}  {words}\n")


if __name__ == "__main__":
    main()
