"""Approximate learned-sparse search by Seismic (Bruch et al. 2024): clustered posting lists with summaries."""

import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import UsageError
from moeir.indexes.base import Index, fill_ranked_hits
from moeir.indexes.sparse_rows import SparseShards, query_rows

INDEX_FILE = "postings"


class Seismic(Index):
    """Approximate learned-sparse search by Seismic (extra `seismic`), for weights above 0; not exact.

    `postings` per term are stored on average, in clusters; the `query_terms` strongest terms of a query are searched; `caution` (0 to 1)
    is Seismic's heap_factor, the share of the K-th score a cluster's summary must reach to be searched: less finds more but is slower.
    """

    kind = "sparse"
    exact = False

    def __init__(
        self, id_ranks: np.ndarray | None = None, device: str = "cpu", *, postings: int = 3500, query_terms: int = 20, caution: float = 0.7
    ) -> None:
        super().__init__(id_ranks, device)
        if postings < 1 or query_terms < 1 or not 0 < caution <= 1:
            raise UsageError("seismic: postings and query_terms must be at least 1, caution above 0 and at most 1")
        if importlib.util.find_spec("seismic") is None:
            raise UsageError("seismic: the package pyseismic-lsr is not installed; pip install 'moeir[seismic]'")
        self.postings, self.query_terms, self.caution = postings, query_terms, caution
        self._shards = SparseShards()
        self._vocabulary: int | None = None
        self._index: Any = None

    def _add(self, shard: Any) -> None:
        self._shards.add(shard)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Build Seismic's own file from a binary one: the number of documents, then length, terms and weights of each."""
        if len(self):
            with tempfile.NamedTemporaryFile(suffix=".bin") as file:
                file.write(np.uint32(len(self)).tobytes())
                for texts in self._shards.blocks():
                    starts, terms, weights = texts.sort_terms()
                    for begin, end in pairwise(starts):
                        parts = (np.array([end - begin], "<u4"), terms[begin:end].astype("<u4"), weights[begin:end])
                        file.write(b"".join(part.tobytes() for part in parts))
                file.flush()
                with stdout_to_stderr():
                    index = _engine_class(self._shards.vocabulary).build(file.name, n_postings=self.postings)
                    index.save(str(folder / INDEX_FILE))
        return {"vocabulary": self._shards.vocabulary}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        self._vocabulary, documents = settings["vocabulary"], int(settings["documents"])
        if documents:
            self._index = _engine_class(self._vocabulary).load(str(next(folder.glob(f"{INDEX_FILE}*"), folder / INDEX_FILE)))
        return documents

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        starts, terms, weights = query_rows(queries, self._vocabulary).sort_terms()
        id_ranks = self.id_ranks
        for query_row, (begin, end) in enumerate(pairwise(starts)):
            if begin == end:
                continue
            query_terms = terms[begin:end].astype(np.int32), weights[begin:end].astype(np.float32)
            results = self._index.search(*query_terms, depth, self.query_terms, self.caution, 0, True)
            hits, values = (np.array([result[part] for result in results], dtype) for part, dtype in ((1, np.int64), (0, np.float32)))
            fill_ranked_hits(hits, values, id_ranks, rows[query_row], scores[query_row])


def _engine_class(vocabulary: int | None) -> Any:
    package = importlib.import_module("seismic")
    return package.SeismicIndexRaw if (vocabulary or 0) <= 2**16 else package.SeismicIndexRawLV


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect what a compiled library prints to stderr; stdout is for data."""
    saved_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)
