"""Late-interaction engines compared: queries a second, beside plain torch.

    python -m tests.benchmarks.multivector_search FOLDER ENCODINGS [--documents 20000 --queries 64 --depth 100 --rounds 3
        --threads 2 --plain 4 --engine maxsim ...]

ENCODINGS is the expert's folder in the encodings of a collection, as `colbert` makes it; a query is 32 vectors of a document, with noise.
FOLDER keeps the indexes for the next run. The first engine is the reference; plain torch, float32 and padded by length, is run once, on
`plain` queries. Each round runs every engine once, in turns, the first is not timed; ratios are medians within rounds.
"""

from functools import partial

import torch

from moeir.representations.multivector import MultiVector
from tests.benchmarks.rounds import build_or_open_index, format_speed, make_parser, time_call, time_rounds
from tests.oracles.representations import maxsim, pad

LENGTH = 32  # vectors of a query


def draw_queries(documents: MultiVector, count: int) -> MultiVector:
    """Vectors of documents from all over the collection, with noise, of length 1; a short document's come again from its first."""
    chosen = torch.linspace(0, len(documents) - 1, count).long()
    positions = documents.starts[chosen][:, None] + torch.arange(LENGTH) % documents.starts.diff()[chosen][:, None]
    vectors = documents.vectors[positions.flatten()].float()
    noise = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(1))
    vectors = torch.nn.functional.normalize(vectors + noise / vectors.shape[1] ** 0.5, dim=1)
    return MultiVector(vectors, torch.arange(0, len(vectors) + 1, LENGTH))


def search_plainly(queries: MultiVector, documents: MultiVector) -> None:
    """Padded float32 products, documents sorted by length."""
    padded_queries, real = pad(queries)
    for part in documents.starts.diff().argsort().split(64):
        padded_documents, mask = pad(documents.select(part))
        for query in range(len(padded_queries)):
            maxsim(padded_queries[query : query + 1], real[query : query + 1], padded_documents, mask)


def main() -> None:
    """Build what is missing, run the rounds, print one table."""
    numbers = {"documents": 20_000, "queries": 64, "depth": 100, "rounds": 3, "threads": 2, "plain": 4}
    parser = make_parser(__doc__, ("folder", "encodings"), **numbers)
    parser.add_argument("--engine", action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    every = MultiVector.open(arguments.encodings)
    starts = every.starts[: arguments.documents + 1]
    documents = MultiVector(every.vectors[: int(starts[-1])], starts)
    queries = draw_queries(documents, arguments.queries)
    print(f"{len(documents)} documents, {len(documents.vectors)} vectors of {documents.vectors.shape[1]}, {len(queries)} queries")
    if arguments.plain:
        few = queries.select(torch.arange(arguments.plain))
        timing, _ = time_call(partial(search_plainly, few, documents))
        speeds = [len(few) / seconds for seconds in timing]
        print(f"plain torch: {speeds[0]:.2f} queries a second (in processor time {speeds[1]:.2f})\n", flush=True)
    indexes = {spec: build_or_open_index(arguments.folder, spec, documents)[0] for spec in arguments.engine or ["maxsim"]}
    timings, _ = time_rounds({spec: partial(index.search, queries, arguments.depth) for spec, index in indexes.items()}, arguments.rounds)
    print("| engine | queries a second | times the first's (least, most) | in processor time |\n|---|---|---|---|")
    for spec in indexes:
        print(f"| {spec} | {format_speed(timings, spec, next(iter(indexes)), len(queries))} |")


if __name__ == "__main__":
    main()
