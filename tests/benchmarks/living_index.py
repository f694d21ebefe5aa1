"""Updates of an index against building it again, and the speed of search with segments, deleted documents and filters.

    python -m tests.benchmarks.living_index WORK_FOLDER [--documents 200000 --texts 100000 --changed 1000 --rounds 3
        --parts vectors texts flat inverted]

Vectors are random around 2,000 centres, 384 wide; texts are 60 words each, of 50,000 that are as frequent as words are (Zipf), weighted
terms are 120 of 30,000, as frequent. The updates and the builds are whole stages, with checksums, fsync and manifest, in this process after
a first round that compiles loops; bytes are those of new files, without hard links to the old index. Searches are those of the engines
alone, in the classes that `moeir search` opens.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts import manifests
from moeir.indexes.base import Index as Engine
from moeir.indexes.flat import Flat
from moeir.indexes.inverted import Inverted
from moeir.indexes.subset import SubsetIndex
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from moeir.retrieval.searcher import ShardedIndex
from moeir.stages.base import run_stage
from moeir.stages.index import Index
from tests.benchmarks.dense_search import random_vectors, store_documents

WIDTH, WORDS, VOCABULARY, TERMS, TERM_VOCABULARY = 384, 60, 50_000, 120, 30_000
SEGMENTS, QUERIES, DEPTHS = (1, 10, 100), 64, (100, 1000)
PARTS = ("vectors", "texts", "flat", "inverted")


def write_encodings(folder: Path, vectors: np.ndarray, ids: list[str]) -> Path:
    """Encodings of one dense expert; their checkpoint is not needed to index them."""
    if not (folder / manifests.MANIFEST).exists():
        Dense(torch.from_numpy(vectors)).save(folder / "global")
        (folder / "ids.txt").write_text("".join(f"{one}\n" for one in ids))
        counts = {"texts": len(ids), "dtype": "torch.float32", "experts": {"global": "dense"}, "checkpoint": {"path": "x", "digest": "x"}}
        manifest = manifests.build_manifest(folder, "encodings", {"stage": "encode", "settings": {}, "sources": {}}, folder.name)
        (folder / manifests.MANIFEST).write_text(manifests.serialize_manifest(manifest | {"counts": counts}))
    return folder


def write_texts(path: Path, first: int, count: int) -> Path:
    """Texts whose words are as frequent as in any language."""
    rng, words = np.random.default_rng(first), np.array([f"w{number:x}" for number in range(VOCABULARY)])
    with open(path, "w") as file:
        for number in range(first, first + count):
            drawn = words[rng.zipf(1.2, WORDS) % VOCABULARY]
            file.write(json.dumps({"id": f"d{number}", "text": " ".join(drawn)}) + "\n")
    return path


def write_ids(path: Path, ids: list[str]) -> Path:
    path.write_text("".join(f"{one}\n" for one in ids))
    return path


def new_bytes(folder: Path) -> int:
    """Bytes of the files that are no hard links to those of another index."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.stat().st_nlink == 1)


def time_stages(stages: dict[str, Callable[[Path], Index]], folder: Path, rounds: int) -> None:
    """Print a line for each stage: median seconds of rounds in turns, after one that is not counted, and bytes."""
    seconds: dict[str, list[float]] = {name: [] for name in stages}
    used: dict[str, list[float]] = {name: [] for name in stages}
    sizes = {}
    for number in range(rounds + 1):
        for name, make_stage in stages.items():
            output = folder / f"{name.replace(' ', '-')}-{number}"
            began, began_process = time.perf_counter(), time.process_time()
            run_stage(make_stage(output), force=True)
            if number:
                seconds[name].append(time.perf_counter() - began)
                used[name].append(time.process_time() - began_process)
            sizes[name] = new_bytes(output)
    for name in stages:
        spread = f"{statistics.median(seconds[name]):.2f} ({min(seconds[name]):.2f} to {max(seconds[name]):.2f})"
        print(f"| {name} | {spread} | {statistics.median(used[name]):.2f} | {sizes[name] / 2**20:.1f} |", flush=True)


def updates_of_vectors(work: Path, count: int, changed: int, rounds: int) -> None:
    vectors, ids = store_documents(work, count, WIDTH), [f"d{number}" for number in range(count + changed)]
    old = write_encodings(work / f"old-{count}", vectors, ids[:count])
    new_vectors = random_vectors(changed, WIDTH, 7).half().numpy()
    added = write_encodings(work / f"added-{count}", new_vectors, ids[count:])
    deleted = np.random.default_rng(1).choice(count, changed, replace=False)
    delete, rows = write_ids(work / "deleted.txt", [ids[row] for row in deleted]), np.setdiff1d(np.arange(count), deleted)
    all_vectors = np.concatenate([vectors[rows], new_vectors])
    rest = write_encodings(work / f"rest-{count}", all_vectors, [*(ids[row] for row in rows), *ids[count:]])
    index = work / f"index-{count}"
    run_stage(Index(encodings=old, output=index))
    stages: dict[str, Callable[[Path], Index]] = {
        "rebuild": lambda output: Index(encodings=rest, output=output),
        "add": lambda output: Index(index=index, add=added, output=output),
        "delete": lambda output: Index(index=index, delete=delete, output=output),
        "add and delete": lambda output: Index(index=index, add=added, delete=delete, output=output),
        "add, delete, compact": lambda output: Index(index=index, add=added, delete=delete, compact=True, output=output),
    }
    time_stages(stages, work / "vectors", rounds)


def updates_of_texts(work: Path, count: int, changed: int, rounds: int) -> None:
    old, added = write_texts(work / "old.jsonl", 0, count), write_texts(work / "added.jsonl", count, changed)
    deleted = {f"d{row}" for row in np.random.default_rng(1).choice(count, changed, replace=False)}
    delete, index = write_ids(work / "deleted-texts.txt", sorted(deleted)), work / "index-of-texts"
    with open(old) as lines, open(work / "rest.jsonl", "w") as file:
        file.writelines(line for line in lines if json.loads(line)["id"] not in deleted)
        file.write(added.read_text())
    run_stage(Index(corpus=old, engine=("bm25",), output=index))
    stages: dict[str, Callable[[Path], Index]] = {
        "rebuild": lambda output: Index(corpus=work / "rest.jsonl", engine=("bm25",), output=output),
        "add": lambda output: Index(index=index, add=added, output=output),
        "delete": lambda output: Index(index=index, delete=delete, output=output),
        "add and delete": lambda output: Index(index=index, add=added, delete=delete, output=output),
    }
    time_stages(stages, work / "texts", rounds)


def sparse_texts(count: int, terms: int, seed: int) -> Sparse:
    """Texts of distinct terms, as frequent as words are."""
    rng = np.random.default_rng(seed)
    rows = [np.unique(rng.zipf(1.2, terms) % TERM_VOCABULARY) for _ in range(count)]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    weights = torch.from_numpy(rng.random(starts[-1], dtype=np.float32) + 0.01)
    return Sparse(torch.from_numpy(starts), torch.from_numpy(np.concatenate(rows)).int(), weights, TERM_VOCABULARY)


def open_parts(engine: type[Engine], documents: Any, folder: Path, count: int) -> Iterator[Engine]:
    """The documents in so many indexes, consecutively."""
    edges = [len(documents) * part // count for part in range(count + 1)]
    for part, (first, last) in enumerate(pairwise(edges)):
        path = folder / f"{count}-{part}"
        if not (path / "engine.json").exists():
            index = engine()
            index.add(documents.select(torch.arange(first, last)))
            index.save(path)
        yield engine.open(path)


def time_searches(engine: type[Engine], documents: Any, queries: Any, folder: Path, rounds: int) -> None:
    """Print milliseconds and processor milliseconds per query, by number of segments, deleted share and depth; and for filters."""
    count, rng = len(documents), np.random.default_rng(2)
    cases: dict[str, Any] = {}
    for segments in SEGMENTS:
        parts = list(open_parts(engine, documents, folder, segments))
        whole = parts[0] if segments == 1 else ShardedIndex(parts, np.arange(count))
        cases[f"{segments} segments"] = whole
        rows = np.sort(rng.choice(count, count * 9 // 10, replace=False))
        cases[f"{segments} segments, 10 % deleted"] = SubsetIndex(whole, rows, rows)
    for size in (1000, count // 10, count // 2):
        rows = np.sort(rng.choice(count, size, replace=False))
        cases[f"filter of {size:,}"] = SubsetIndex(cases["1 segments"], rows, rows)
    durations: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        for name, index in cases.items():
            for depth in DEPTHS:
                began, began_process = time.perf_counter(), time.process_time()
                index.search(queries, depth)
                if number:
                    spent = time.perf_counter() - began, time.process_time() - began_process
                    durations.setdefault((name, depth), []).append((1000 * spent[0] / QUERIES, 1000 * spent[1] / QUERIES))
    for name in cases:
        columns = (column for depth in DEPTHS for column in zip(*durations[name, depth], strict=True))
        print(f"| {name} | " + " | ".join(f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in columns) + " |")
    sys.stdout.flush()


def main() -> None:
    """Print the rows of each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    for name, default in {"documents": 200_000, "texts": 100_000, "changed": 1000, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    arguments = parser.parse_args()
    work, count, rounds = arguments.work, arguments.documents, arguments.rounds
    work.mkdir(parents=True, exist_ok=True)
    if "vectors" in arguments.parts:
        print(f"{count:,} vectors, {arguments.changed:,} changed: seconds, processor seconds, MiB of new files", flush=True)
        updates_of_vectors(work, count, arguments.changed, rounds)
    if "texts" in arguments.parts:
        print(f"{arguments.texts:,} texts, {arguments.changed:,} changed: seconds, processor seconds, MiB of new files", flush=True)
        updates_of_texts(work, arguments.texts, arguments.changed, rounds)
    if "flat" in arguments.parts:
        print(f"flat, {count:,} vectors, {QUERIES} queries at once: ms and processor ms a query at depths {DEPTHS}", flush=True)
        vectors = Dense(torch.from_numpy(store_documents(work, count, WIDTH)))
        time_searches(Flat, vectors, Dense(random_vectors(QUERIES, WIDTH, 5)), work / "flat", rounds)
    if "inverted" in arguments.parts:
        print(f"inverted, {arguments.texts:,} texts, {QUERIES} queries at once: the same", flush=True)
        documents, queries = sparse_texts(arguments.texts, TERMS, 3), sparse_texts(QUERIES, 24, 4)
        time_searches(Inverted, documents, queries, work / "inverted", rounds)


if __name__ == "__main__":
    main()
