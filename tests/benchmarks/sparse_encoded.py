"""Sparse vectors of a trained model for tests.benchmarks.sparse_search: an expert's encodings, end to end, and those of queries.

python tests/benchmarks/sparse_encoded.py CHECKPOINT EXPERT FOLDER QUERIES ENCODINGS…
"""

import sys
from pathlib import Path

import torch

from moeir.architectures.checkpoint import open_checkpoint
from moeir.records import texts
from moeir.representations.sparse import Sparse


def main() -> None:
    """Write FOLDER/documents and FOLDER/queries."""
    checkpoint, expert, folder, queries, *encodings = sys.argv[1:]
    parts = [Sparse.open(Path(one) / expert) for one in encodings]
    shifts = torch.tensor([0, *(len(part.terms) for part in parts)]).cumsum(0)
    starts = torch.cat([parts[0].starts[:1], *(part.starts[1:] + shift for part, shift in zip(parts, shifts, strict=False))])
    terms, weights = (torch.cat([getattr(part, name) for part in parts]) for name in ("terms", "weights"))
    Sparse(starts, terms, weights, parts[0].vocabulary).save(Path(folder) / "documents")
    query_texts = [query.content for query in texts.read_texts(queries)]
    open_checkpoint(checkpoint).encode(query_texts, "query")[expert].save(Path(folder) / "queries")


if __name__ == "__main__":
    main()
