"""Approximate learned-sparse search by Seismic (Bruch et al. 2024): clustered posting lists with summaries."""

import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.errors import ArtifactError, UsageError
from moeir.indexes.base import Index, fill_ranked_hits
from moeir.indexes.inverted import ROWS_AT_ONCE, check_vocabulary, sparse_rows
from moeir.indexes.postings import SparseRows

INDEX_FILE = "postings"


class Seismic(Index):
    """Approximate learned-sparse search by Seismic (extra `seismic`), for weights above 0; not exact.

    `postings` per term are stored on average, in clusters; the `query_terms` strongest terms of a query are searched; `caution` (0 to 1)
    is Seismic's heap_factor, the share of the K-th score a cluster's summary must reach to be searched: less finds more but is slower.
    """

    kind: ClassVar[str] = "sparse"
    exact: ClassVar[bool] = False

    def __init__(
        self, id_ranks: np.ndarray | None = None, device: str = "cpu", *, postings: int = 3500, query_terms: int = 20, caution: float = 0.7
    ) -> None:
        super().__init__(id_ranks, device)
        if postings < 1 or query_terms < 1 or not 0 < caution <= 1:
            raise UsageError("seismic: postings and query_terms must be at least 1, caution above 0 and at most 1")
        if importlib.util.find_spec("seismic") is None:
            raise UsageError("seismic: the package pyseismic-lsr is not installed; pip install 'moeir[seismic]'")
        self.postings, self.query_terms, self.caution = postings, query_terms, caution
        self.vocabulary: int | None = None
        self._shards: list[Any] = []
        self._index: Any = None
        self._document_count, self._read_only = 0, False

    def __len__(self) -> int:
        return self._document_count

    def add(self, shard: Any) -> None:
        if self._read_only:
            raise ArtifactError("an opened seismic index takes no more documents; build a new one")
        check_vocabulary(shard, self.vocabulary)
        self.vocabulary = shard.vocabulary
        self._shards.append(shard)
        self._document_count += len(shard)
        self._index = None

    @property
    def _engine_class(self) -> Any:
        package = importlib.import_module("seismic")
        return package.SeismicIndexRaw if (self.vocabulary or 0) <= 2**16 else package.SeismicIndexRawLV

    def _built_index(self) -> Any:
        """Seismic's own index, built from a binary file: the number of documents, then length, terms and weights of each."""
        if self._index is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "documents.bin"
                with open(path, "wb") as file:
                    file.write(np.uint32(len(self)).tobytes())
                    for texts in self._document_blocks():
                        for begin, end in pairwise(texts.starts):
                            parts = (np.array([end - begin], "<u4"), texts.terms[begin:end].astype("<u4"), texts.weights[begin:end])
                            file.write(b"".join(part.tobytes() for part in parts))
                with stdout_to_stderr():
                    self._index = self._engine_class.build(str(path), n_postings=self.postings)
        return self._index

    def _document_blocks(self) -> Iterator[SparseRows]:
        row = 0
        for shard in self._shards:
            for first in range(0, len(shard), ROWS_AT_ONCE):
                yield sparse_rows(shard, first, min(first + ROWS_AT_ONCE, len(shard)), row, "row").sort_terms()
            row += len(shard)

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        check_vocabulary(queries, self.vocabulary)
        starts, terms, weights = sparse_rows(queries, 0, len(queries), 0, "query").sort_terms()
        index, id_ranks = self._built_index(), self.id_ranks
        for query_row, (begin, end) in enumerate(pairwise(starts)):
            if begin == end:
                continue
            query_terms = terms[begin:end].astype(np.int32), weights[begin:end].astype(np.float32)
            results = index.search(*query_terms, depth, self.query_terms, self.caution, 0, True)
            hits = np.array([row for _, row in results], dtype=np.int64)
            fill_ranked_hits(
                hits, np.array([score for score, _ in results], dtype=np.float32), id_ranks, rows[query_row], scores[query_row]
            )

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": self.vocabulary}

    def save(self, folder: Path | str) -> None:
        """Write `engine.json` and Seismic's own file."""
        super().save(folder)
        if len(self):
            index = self._built_index()
            with stdout_to_stderr():
                index.save(str(Path(folder) / INDEX_FILE))

    def _load_arrays(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        self.vocabulary, self._document_count, self._read_only = settings["vocabulary"], settings["documents"], True
        if self._document_count:
            self._index = self._engine_class.load(str(next(folder.glob(f"{INDEX_FILE}*"), folder / INDEX_FILE)))


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
