"""Part 3c: texts a second that `moeir encode` reads, computes and writes, beside transformers and sentence-transformers."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import BertModel

from tests.benchmarks.gpu import peers, stages, texts
from tests.benchmarks.gpu.peers import Ids
from tests.benchmarks.gpu.results import Context, spread
from tests.benchmarks.gpu.steps import ARCHITECTURES

ENCODERS = ("dense", "splade", "came")
TOKENS_AT_ONCE, TEXTS_AT_ONCE = 65_536, 256


def measure_encoding(context: Context) -> None:
    """Each way in turns. Ours are the seconds for many texts minus those for few, so that opening the model is not counted."""
    few, many = (8, 24) if context.toy else (4_000, 64_000)
    sizes = texts.sizes_of(context)
    weights = texts.write_weights(context.folder / "weights", sizes)
    random_texts = texts.draw_texts(many, sizes.document_words, sizes.vocabulary, seed=5)
    corpora = {count: context.folder / f"{count}.jsonl" for count in (few, many)}
    for count, path in corpora.items():
        texts.write_texts(path, "d", random_texts[:count])
    ways: dict[tuple[str, str], Callable[[], float]] = {}
    for architecture in ENCODERS:
        model = make_checkpoint(context, architecture, sizes, weights)
        ways[architecture, "moeir encode"] = partial(encode_more, context, model, corpora[few], corpora[many])
    ids = [[texts.CLS, *(text + texts.FIRST).tolist(), texts.SEP] for text in random_texts[few:]]
    ways["dense", "transformers"] = lambda: encode_with_bert(weights, ids)
    if peers.has_sentence_transformers():
        ways["dense", "sentence-transformers"] = lambda: encode_with_sentence_transformer(weights, random_texts[few:])
    runs = stages.take_turns(context, {key: partial(measure, way) for key, way in ways.items()}, seconds_to_keep=20)
    lengths = np.array([len(one) for one in ids])
    peak = stages.measure_peak(context.toy)
    table = context.table(f"{many - few:,} texts of {lengths.mean():.0f} tokens, bfloat16:", "architecture", "way", "texts/s", "tokens/s",
                          "time over moeir's dense", "of the peak", "peak memory, GiB", "runs")  # fmt: skip
    for (architecture, name), measured in runs.items():
        if not measured:
            continue
        seconds = [run["seconds"] for run in measured]
        took, layers = max(statistics.median(seconds), 1e-9), texts.layers_of(architecture, sizes)
        flops = texts.training_flops(sizes, lengths, layers=layers, vocabulary=architecture != "dense") / 3  # forward alone
        ratios = [one / run["seconds"] for one, run in zip(seconds, runs["dense", "moeir encode"], strict=False)]
        beside = f"{statistics.median(ratios):.2f} {spread(ratios)}" if ratios else ""
        speed = [len(ids) / took, float(lengths.sum()) / took]
        memory = stages.gib(max(run["bytes"] for run in measured))
        table.add(architecture, name, *speed, beside, f"{flops / took / peak:.1%}", memory, len(seconds))
    context.piece.notes += [
        "moeir encode reads JSON lines, tokenises, computes, writes and journals; transformers gets token ids and gives vectors in host "
        "memory, in batches of like length; sentence-transformers gets texts, sorts and tokenises them, and gives one array.",
        "Random weights: of SPLADE's and CAME's lexical expert about 1 % of the vocabulary is kept, as of trained ones.",
    ]


def measure(way: Callable[[], float]) -> dict[str, float]:
    """Seconds of a way, and the most bytes on the card."""
    with stages.peak_memory() as used:
        seconds = way()
    return {"seconds": seconds, "bytes": used["bytes"]}


def make_checkpoint(context: Context, architecture: str, sizes: texts.Sizes, weights: Path) -> Path:
    """A checkpoint of an architecture with the random weights."""
    checkpoint, spec = context.folder / architecture, ARCHITECTURES[architecture][0].format(shared=max(1, sizes.layers - 2))
    length = min(sizes.document_words[1] + 2, sizes.positions)
    stages.run_stage("init", "--model", weights, "--arch", spec, "--query-length", 32, "--document-length", length, "--output", checkpoint)
    return checkpoint


def encode_more(context: Context, model: Path, few: Path, many: Path) -> float:
    """Seconds for the texts that one corpus has in addition to another."""
    return _encode(context, model, many) - _encode(context, model, few)


def _encode(context: Context, model: Path, corpus: Path) -> float:
    """Seconds of the stage."""
    began = time.perf_counter()
    flags = ["--dtype", "bfloat16", "--device", "cuda", "--force"]
    stages.run_stage("encode", "--model", model, "--corpus", corpus, *flags, "--output", context.folder / "encoded")
    return time.perf_counter() - began


@torch.inference_mode()
def encode_with_bert(weights: Path, ids: Ids) -> float:
    """Seconds of BertModel for the first token's vectors, in batches of similar length, after warm-up batches."""
    model = BertModel(peers.bert_config(weights), add_pooling_layer=False).to("cuda", torch.bfloat16).eval()

    def encode(rows: Ids) -> None:
        rows, first = sorted(rows, key=len, reverse=True), 0
        vectors = []
        while first < len(rows):
            batch = rows[first : first + max(1, TOKENS_AT_ONCE // len(rows[first]))]
            first += len(batch)
            moved = {name: tensor.to("cuda", non_blocking=True) for name, tensor in peers.pad(batch).items()}
            vectors.append(model(**moved).last_hidden_state[:, 0].half())
        torch.cat(vectors).cpu()

    encode(ids[:2048])
    began = time.perf_counter()
    encode(ids)
    return time.perf_counter() - began


def encode_with_sentence_transformer(weights: Path, random_texts: list[np.ndarray]) -> float:
    """Seconds of sentence-transformers' encode for mean-pooled vectors, after warm-up batches."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(weights), device="cuda", model_kwargs={"dtype": torch.bfloat16})
    contents = [" ".join(f"w{word}" for word in text.tolist()) for text in random_texts]
    model.encode(contents[:2048], batch_size=TEXTS_AT_ONCE, show_progress_bar=False)
    began = time.perf_counter()
    model.encode(contents, batch_size=TEXTS_AT_ONCE, show_progress_bar=False)
    return time.perf_counter() - began
