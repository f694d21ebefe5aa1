"""A late-interaction head trained in minutes, to measure engines on trained vectors: one linear map behind a random projection.

    python -m tests.benchmarks.fit_head CHECKPOINT ENCODINGS QUERIES QRELS OUTPUT [--questions 2000 --held 300 --seconds 150 --batch 24]

CHECKPOINT is a colbert with a random projection, ENCODINGS its encodings of a corpus. A square map of the vectors, then normalised, is
trained on judged pairs with in-batch negatives; it could be merged into the projection. OUTPUT gets `documents` and, of the held-out
questions, `queries`, both as encodings of the expert.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.architectures.checkpoint import open_checkpoint
from moeir.artifacts import manifests
from moeir.records import qrels, texts
from moeir.representations.base import RepresentationWriter
from moeir.representations.multivector import MultiVector

TOKENS, TEMPERATURE = 96, 0.7  # tokens of a passage in training; factor on scores


def fit_map(queries: MultiVector, documents: MultiVector, rows: list[int], seconds: float, batch: int) -> Tensor:
    """The map [D, D]; query i belongs to document rows[i]."""
    width = queries.vectors.shape[1]
    linear_map = torch.eye(width).requires_grad_()
    optimiser, rng, start = torch.optim.Adam([linear_map], lr=3e-3), random.Random(0), time.monotonic()
    while time.monotonic() - start < seconds:
        chosen = torch.tensor(rng.sample(range(len(rows)), batch))
        query_batch = queries.select(chosen)
        parts = [documents.select(torch.tensor([rows[one]])) for one in chosen]
        document_batch = MultiVector.concatenate([MultiVector(one.vectors[:TOKENS], one.starts.clamp(max=TOKENS)) for one in parts])
        scores = apply_map(query_batch, linear_map).scores(apply_map(document_batch, linear_map))
        loss = F.cross_entropy(TEMPERATURE * scores, torch.arange(batch))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"loss of the last batch: {loss.item():.3f}")
    return linear_map.detach()


def apply_map(encoded: MultiVector, linear_map: Tensor) -> MultiVector:
    """Vectors times the map, of length 1."""
    return MultiVector(F.normalize(encoded.vectors.float() @ linear_map, dim=-1), encoded.starts)


def split_texts(documents: MultiVector) -> Iterator[MultiVector]:
    """A thousand texts at a time."""
    for rows in torch.arange(len(documents)).split(1000):
        yield documents.select(rows)


def main() -> None:
    """Fit, then write both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "encodings", "queries", "qrels", "output"):
        parser.add_argument(name, type=Path)
    for name, value in {"questions": 2000, "held": 300, "seconds": 150, "batch": 24}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(arguments.checkpoint)
    expert = next(iter(checkpoint.architecture.representation_kinds))
    documents = MultiVector.open(arguments.encodings / expert)
    row_by_id = {one: row for row, one in enumerate(manifests.read_lines(arguments.encodings / "ids.txt"))}
    questions = {text.id: text.content for text in texts.read_texts(arguments.queries)}
    judged_pairs = [
        (query, document_row)
        for query, grades in qrels.read_qrels(arguments.qrels).items()
        for one, grade in grades.items()
        if grade > 0 and query in questions and (document_row := row_by_id.get(one)) is not None
    ]
    heldout_ids = random.Random(0).sample(sorted({query for query, _ in judged_pairs}), arguments.held)
    training_pairs = random.Random(0).sample([pair for pair in judged_pairs if pair[0] not in set(heldout_ids)], arguments.questions)
    with torch.no_grad():
        training_queries = checkpoint.encode([questions[query] for query, _ in training_pairs], "query")[expert]
        heldout_queries = checkpoint.encode([questions[query] for query in heldout_ids], "query")[expert]
    linear_map = fit_map(
        MultiVector(training_queries.vectors.float(), training_queries.starts),
        documents,
        [row for _, row in training_pairs],
        arguments.seconds,
        arguments.batch,
    )
    apply_map(heldout_queries, linear_map).save(arguments.output / "queries")
    writer = RepresentationWriter(arguments.output / "documents")
    for part in split_texts(documents):
        writer.append(apply_map(part, linear_map))
    writer.close()


if __name__ == "__main__":
    main()
