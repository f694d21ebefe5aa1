"""Dense engines compared: seconds, processor seconds, and recall of the exact result.

    python -m tests.benchmarks.dense_search FOLDER [--documents 100000 --width 384 --queries 1024 --depth 100 --rounds 5 --threads 2
        --engine flat --engine faiss:factory=IVF1024+Flat,nprobe=16 ...]

Vectors are random around 2,000 centres, with a seed, and normalised. FOLDER keeps the indexes for
the next run. The reference is faiss's IndexFlatIP over float32 in memory, in batches and one query at a time. Each round runs every engine
once, in turns; the table has medians of the ratios within rounds. Ids that differ from the reference's are counted, and among them the
errors of the reference: ids whose float64 score is above that of the reference's id at the same rank.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch

from moeir.representations.dense import Dense
from tests.benchmarks.rounds import build_or_open_index, format_speed, make_parser, time_rounds

ROWS_AT_ONCE = 50_000
HEADER = """| engine | queries a second | times IndexFlatIP's (least, most) | in processor time | found of it | other ids | it is wrong in |
|---|---|---|---|---|---|---|"""


def random_vectors(count: int, width: int, seed: int) -> torch.Tensor:
    """Unit vectors [count, width] around 2,000 centres."""
    centres = torch.randn(2000, width, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, width, generator=generator)
    return torch.nn.functional.normalize(centres[torch.randint(2000, (count,), generator=generator)] + 1.5 * noise, dim=1)


def store_documents(folder: Path, count: int, width: int) -> np.ndarray:
    """The documents, float16 [count, width], memory-mapped."""
    path = folder / f"vectors-{count}-{width}.npy"
    if not path.exists():
        target = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(count, width))
        for first in range(0, count, ROWS_AT_ONCE):
            target[first : first + ROWS_AT_ONCE] = random_vectors(min(ROWS_AT_ONCE, count - first), width, 1 + first).half().numpy()
        target.flush()
    return np.load(path, mmap_mode="c")


def compare_results(rows: np.ndarray, reference: np.ndarray, queries: torch.Tensor, vectors: np.ndarray) -> str:
    """Recall of the reference's ids, the number of ranks with other ids, and at how many of them the reference is wrong."""
    recall = np.mean([len(set(mine) & set(theirs)) / len(theirs) for mine, theirs in zip(rows, reference, strict=True)])
    query, rank = np.nonzero(rows != reference)
    doubles = queries.double().numpy()

    def exact(ids: np.ndarray) -> np.ndarray:
        return np.array([vectors[row].astype(np.float64) @ doubles[own] for own, row in zip(query, ids, strict=True)])

    if len(query) > 10_000:
        return f"{recall:.4f} | {len(query)} |"
    wrong = int((exact(rows[query, rank]) > exact(reference[query, rank])).sum())
    return f"{recall:.4f} | {len(query)} | {wrong}"


def main() -> None:
    """Build what is missing, run the rounds, print one table for batches and one for single queries."""
    parser = make_parser(__doc__, ("folder",), documents=100_000, width=384, queries=1024, depth=100, rounds=5, threads=2)
    parser.add_argument("--engine", action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    vectors = store_documents(arguments.folder, arguments.documents, arguments.width)
    documents = Dense(torch.from_numpy(vectors))
    engines = {spec: build_or_open_index(arguments.folder, spec, documents)[0] for spec in arguments.engine or ["flat"]}
    reference = faiss.IndexFlatIP(vectors.shape[1])
    for first in range(0, len(vectors), ROWS_AT_ONCE):
        reference.add(vectors[first : first + ROWS_AT_ONCE].astype(np.float32))
    queries = random_vectors(arguments.queries, vectors.shape[1], 0)
    print(json.dumps({"documents": len(vectors), "width": vectors.shape[1], "depth": arguments.depth, "threads": arguments.threads}))
    for count in (arguments.queries, 1):
        query_batch = queries[:count]
        ways: dict[str, Callable[[], Any]] = {
            "IndexFlatIP": lambda query_batch=query_batch: reference.search(query_batch.numpy(), arguments.depth)[1]
        }
        for spec, index in engines.items():
            ways[spec] = lambda index=index, query_batch=query_batch: index.search(Dense(query_batch), arguments.depth)[0]
        timings, rows = time_rounds(ways, arguments.rounds)
        print(f"\n{count} queries at once\n\n{HEADER}")
        for name in ways:
            quality = compare_results(rows[name], rows["IndexFlatIP"], query_batch, vectors)
            print(f"| {name} | {format_speed(timings, name, 'IndexFlatIP', count)} | {quality} |")


if __name__ == "__main__":
    main()
