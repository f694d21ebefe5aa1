"""Parts 5a and 5b: exact search on the card gives the CPU's ids and scores, to the bit, and how fast it is.

Documents are random with a seed, around centres as encodings are; a query is a document's vectors with noise, so that it has neighbours.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeir import variants
from moeir.indexes.base import Index
from moeir.representations.dense import Dense
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector
from tests.benchmarks.gpu import stages
from tests.benchmarks.gpu.results import Context, Table, log

CENTRES, BLOCK, THREADS = 4096, 20_000, 8
COLUMNS = ("engine", "where", "queries", "queries/s", "ms for one alone", "of the peak", "memory, GiB", "ids and scores beside the CPU's")


@dataclass(frozen=True)
class Collection:
    """Representations of documents in shards, queries sampled from them, and the operations of an exact search for one query."""

    engine: str
    shards: list[Any]
    queries: Any
    sample: int
    depth: int
    flops: float


def search_vectors(context: Context) -> None:
    """A million vectors of 384 numbers (flat) beside a plain product and topk, then 200,000 documents of terms (exact-match)."""
    documents, width, queries, depth = (600, 32, 8, 10) if context.toy else (1_000_000, 384, 4096, 100)
    flat = draw_vectors(documents, width, queries, depth, sample=4 if context.toy else 256)
    peak = stages.measure_peak(context.toy)
    table = context.table(f"{documents:,} vectors × {width}, float16, the first {depth}:", *COLUMNS)
    with context.attempt("flat"):
        rows = compare(context, flat, table, peak)
        with context.attempt("a plain product and topk"):
            measure_plain(flat, table, peak, rows)
    lists, width = (200, 8) if context.toy else (200_000, 32)
    if context.has_time(60, "exact-match"):
        with context.attempt("exact-match"):
            terms = draw_terms(lists, width, 4 if context.toy else 512, depth, sample=2 if context.toy else 32)
            title = f"{lists:,} documents of about 30 terms with vectors × {width}, float16, the first {depth}:"
            compare(context, terms, context.table(title, *COLUMNS), peak)
    context.piece.notes += [
        "flat keeps float16, scans in bfloat16 and scores what is near enough in float64. Equal means the same ids in the same order and "
        "the same bits of every score, of the queries that the CPU was asked too. The plain product is one of float16.",
        "inverted (SPLADE, lexical experts) and bm25 search on the CPU only.",
    ]


def search_token_lists(context: Context) -> None:
    """A million documents of about 30 token vectors of 128 numbers (maxsim)."""
    documents, width, queries, depth = (300, 16, 4, 10) if context.toy else (1_000_000, 128, 256, 100)
    collection = draw_token_lists(documents, width, queries, depth, sample=2 if context.toy else 8)
    tokens = sum(len(shard.vectors) for shard in collection.shards)
    title = f"{documents:,} documents, {tokens:,} token vectors × {width}, float16, the first {depth}; queries of 32 tokens:"
    table = context.table(title, *COLUMNS)
    with context.attempt("maxsim"):
        compare(context, collection, table, stages.measure_peak(context.toy))
    context.piece.notes.append("The share of the peak is of the products of every query token with every document token.")


def build_index(collection: Collection, device: str) -> Index:
    """The index of a collection, opened on a device."""
    index: Index = variants.bind_variant("indexes", collection.engine)()
    for shard in collection.shards:
        index.add(shard)
    with tempfile.TemporaryDirectory() as folder:
        index.save(folder)
        return type(index).open(folder, device=device)


def compare(context: Context, collection: Collection, table: Table, peak: float) -> np.ndarray:
    """A line for the card and one for the CPU; returns the rows that the card retrieved."""
    index = build_index(collection, "cuda")
    every, one = collection.queries, collection.queries.select(torch.arange(1))
    log(f"{collection.engine}: {len(index):,} documents on the card")
    with stages.peak_memory() as used:
        rows, scores = index.search(every, collection.depth)
    seconds = stages.time_on_device(lambda: index.search(every, collection.depth), 3)
    alone = stages.time_on_device(lambda: index.search(one, collection.depth), 10)
    share = f"{len(every) * collection.flops / seconds / peak:.1%}" if collection.flops else ""
    table.add(collection.engine, "the card", len(every), len(every) / seconds, 1000 * alone, share, stages.gib(used["bytes"]))
    context.save()
    index = build_index(collection, "cpu")
    sample = collection.queries.select(torch.arange(collection.sample))
    index.search(one, collection.depth)
    log(f"{collection.engine}: {collection.sample} queries on the CPU")
    began = time.perf_counter()
    own_rows, own_scores = index.search(sample, collection.depth)
    took = time.perf_counter() - began
    table.add(collection.engine, f"the CPU, {torch.get_num_threads()} threads", collection.sample, collection.sample / took)
    ids = bool(np.array_equal(rows[: collection.sample], own_rows))
    bits = bool(np.array_equal(scores[: collection.sample].view(np.int32), own_scores.view(np.int32)))
    table.rows[-2][-1] = f"{'equal' if ids else 'other'} ids, {'equal' if bits else 'other'} scores ({collection.sample} queries)"
    context.require(ids and bits, f"{collection.engine}: the card's ids or scores are not the CPU's")
    return np.asarray(rows)


def measure_plain(collection: Collection, table: Table, peak: float, rows: np.ndarray) -> None:
    """Plain torch: a product and topk."""
    documents = torch.cat([shard.vectors for shard in collection.shards]).to("cuda")
    queries = collection.queries.vectors.to("cuda", torch.float16)

    def search(some: Tensor) -> Tensor:
        return torch.cat([(part @ documents.T).topk(collection.depth).indices for part in some.split(1024)]).cpu()

    with stages.peak_memory() as used:
        hits = search(queries).numpy()
    seconds = stages.time_on_device(lambda: search(queries), 3)
    alone = stages.time_on_device(lambda: search(queries[:1]), 10)
    share, same = f"{len(queries) * collection.flops / seconds / peak:.1%}", float((hits == rows).mean())
    memory, words = stages.gib(used["bytes"] + documents.nbytes), f"{same:.1%} of flat's ids in their ranks"
    table.add("a product and topk", "the card", len(queries), len(queries) / seconds, 1000 * alone, share, memory, words)


def draw_vectors(documents: int, width: int, queries: int, depth: int, *, sample: int) -> Collection:
    """Unit vectors around centres."""
    centres = unit(torch.randn(CENTRES, width, generator=torch.Generator().manual_seed(0)))
    shards = in_blocks(documents, lambda first, count: Dense(near_centres(centres, count, seed=1 + first)[0]))
    query_vectors = Dense(with_noise(shards[0].vectors[torch.arange(queries) % len(shards[0])]))
    return Collection("flat", shards, query_vectors, sample, depth, 2.0 * documents * width)


def draw_token_lists(documents: int, width: int, queries: int, depth: int, *, sample: int) -> Collection:
    """Documents of 10 to 50 token vectors; queries are 32 of a document's with noise."""
    centres = unit(torch.randn(CENTRES, width, generator=torch.Generator().manual_seed(0)))
    shards = in_blocks(documents, lambda first, count: MultiVector(*_token_vectors(centres, count, seed=1 + first)[:2]))
    positions = _queries_of(shards[0], queries, 32)
    vectors = with_noise(shards[0].vectors[positions])
    tokens = sum(len(shard.vectors) for shard in shards)
    query_vectors = MultiVector(vectors, torch.arange(0, len(positions) + 1, 32))
    return Collection("maxsim", shards, query_vectors, sample, depth, 2.0 * 32 * tokens * width)


def draw_terms(documents: int, width: int, queries: int, depth: int, *, sample: int) -> Collection:
    """Documents of 10 to 50 terms, few of them frequent, each with a vector; queries are 8 of a document's with noise."""
    centres = unit(torch.randn(CENTRES, width, generator=torch.Generator().manual_seed(0)))

    def shard(first: int, count: int) -> ExactMatch:
        vectors, starts, own = _token_vectors(centres, count, seed=1 + first)
        terms = (30_000 ** (own.double() / CENTRES)).int()  # of a centre, so that a term's vectors are alike
        return ExactMatch(terms, vectors, starts)

    shards = in_blocks(documents, shard)
    positions = _queries_of(shards[0], queries, 8)
    vectors = with_noise(shards[0].vectors[positions])
    matches = ExactMatch(shards[0].terms[positions], vectors, torch.arange(0, len(positions) + 1, 8))
    return Collection("exact-match", shards, matches, sample, depth, 0.0)


def in_blocks(documents: int, draw: Callable[[int, int], Any]) -> list[Any]:
    """Shards of documents, each with its own seed, so that threads can generate them in parallel."""
    starts = range(0, documents, BLOCK)
    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(lambda first: draw(first, min(BLOCK, documents - first)), starts))


def near_centres(centres: Tensor, count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Unit vectors float16 [count, D] near centres, and the centre of each."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randint(len(centres), (count,), generator=generator)
    return unit(centres[own] + 0.7 * unit(torch.randn(count, centres.shape[1], generator=generator))).half(), own


def with_noise(vectors: Tensor) -> Tensor:
    """Unit vectors float32 near others."""
    return unit(vectors.float() + 0.5 * unit(torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))))


def _token_vectors(centres: Tensor, count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors [T, D], starts [count + 1], the centre of each vector."""
    lengths = torch.randint(10, 51, (count,), generator=torch.Generator().manual_seed(seed))
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    vectors, own = near_centres(centres, int(starts[-1]), seed=seed + 7)
    return vectors, starts, own


def _queries_of(shard: Any, queries: int, tokens: int) -> Tensor:
    """Positions of so many tokens of each of the first documents of a shard, from the first again where it has fewer."""
    documents = torch.arange(queries) % (len(shard.starts) - 1)
    lengths = shard.starts.diff()[documents]
    return (shard.starts[documents][:, None] + torch.arange(tokens) % lengths[:, None]).flatten()


unit = partial(torch.nn.functional.normalize, dim=-1)
