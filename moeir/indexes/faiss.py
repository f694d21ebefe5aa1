"""Dense search by faiss, the library of approximate engines (Douze et al. 2024), beside the exact `flat`."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes import simd_loops
from moeir.indexes.base import Index, fill_ranked_hits
from moeir.indexes.vector_store import VectorStore, as_uint16, check_width

if find_spec("faiss") is not None:
    import faiss
else:
    faiss = None

INDEX_FILE = "faiss.index"
ROWS_AT_ONCE, QUERIES_AT_ONCE = 2**14, 1024
INSTALL_HINT = "engine faiss: faiss is not installed: pip install 'moeir[cpu]', or 'moeir[gpu]' for CUDA, never both"
RESCORE_FACTOR = 4  # times the depth


class Faiss(Index):
    """Any inner-product index of faiss by its factory string; + stands for a comma: factory=IVF4096+PQ16, HNSW32, SQ8 …

    Factories that need training use `sample` seeded vectors [default: 64 for each list, at least 65,536]. `nprobe` is how many lists of an
    IVF are searched, `ef` the size of an HNSW's candidate queue. `rescore=true` also stores the float16 vectors and rescores 4 times the
    depth of faiss's hits exactly, as `flat` does. With a CUDA device faiss searches there if its build supports it.
    """

    kind: ClassVar[str] = "dense"
    exact: ClassVar[bool] = False

    def __init__(
        self,
        id_ranks: np.ndarray | None = None,
        device: str = "cpu",
        *,
        factory: str = "HNSW32",
        nprobe: int | None = None,
        ef: int | None = None,
        rescore: bool = False,
        sample: int | None = None,
        seed: int = 42,
    ) -> None:
        super().__init__(id_ranks, device)
        if faiss is None:
            raise UsageError(INSTALL_HINT)
        for name, value in (("nprobe", nprobe), ("ef", ef), ("sample", sample)):
            if value is not None and value < 1:
                raise UsageError(f"faiss:{name}={value}: expected at least 1")
        self.factory, self.nprobe, self.ef = factory, nprobe, ef
        self.rescore, self.sample, self.seed = rescore, sample, seed
        self._vectors = VectorStore(torch.device("cpu"))
        self._engine: Any = None
        self._search_engine: Any = None

    def __len__(self) -> int:
        return len(self._vectors) if self._engine is None else int(self._engine.ntotal)

    def add(self, shard: Any) -> None:
        if self._engine is not None:
            raise ArtifactError("a built faiss index takes no more documents; build a new one")
        first = len(self)
        self._vectors.add(shard.vectors, lambda row: f"row {first + row}: its vector")

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "longest": self._vectors.max_norm, "lost": self._vectors.max_bf16_error, "faiss": faiss.__version__}

    def save(self, folder: Path | str) -> None:
        engine = self._built_engine()
        super().save(folder)
        faiss.write_index(engine, str(Path(folder) / INDEX_FILE))
        if self.rescore:
            self._vectors.save(Path(folder) / "vectors.npy")

    def _load_arrays(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        try:
            self._engine = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise ValueError(_error_text(error)) from error
        if self.rescore:
            self._vectors.restore(arrays["vectors"], settings["longest"], settings["lost"])
            if len(self._vectors) != self._engine.ntotal:
                raise ValueError(f"{INDEX_FILE} holds {self._engine.ntotal} vectors, vectors.npy {len(self._vectors)}")

    def _built_engine(self) -> Any:
        """Train on a sample, then add the vectors block by block."""
        if self._engine is None:
            width = max(self._vectors.width, 1)
            try:
                engine = faiss.index_factory(width, self.factory.replace("+", ","), faiss.METRIC_INNER_PRODUCT)
            except RuntimeError as error:
                reason = _error_text(error)
                raise UsageError(f"faiss:factory={self.factory}: faiss rejects it for dimension {width}: {reason}") from None
            if not engine.is_trained and len(self._vectors):
                self._train(engine)
            for first in range(0, len(self._vectors), ROWS_AT_ONCE):
                engine.add(self._vectors[slice(first, first + ROWS_AT_ONCE)].float().numpy())
            self._engine = engine
        return self._engine

    def _train(self, engine: Any) -> None:
        lists = getattr(faiss.try_extract_index_ivf(engine), "nlist", 0)
        count = min(len(self._vectors), self.sample or max(64 * lists, 2**16))
        rows = np.sort(np.random.default_rng(self.seed).choice(len(self._vectors), count, replace=False))
        try:
            engine.train(self._vectors[torch.from_numpy(rows)].float().numpy())
        except RuntimeError as error:
            reason = _error_text(error)
            raise DataError(f"faiss:factory={self.factory}: cannot be trained on {count} vectors: {reason}; choose a smaller one") from None

    def _engine_for_search(self) -> Any:
        """The engine with its search options, on the GPU if requested and supported."""
        if self._search_engine is None:
            engine = self._built_engine()
            if self.device.startswith("cuda") and getattr(faiss, "get_num_gpus", int)() > 0:
                device_number = torch.device(self.device).index or 0
                engine = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), device_number, engine)
                space = faiss.GpuParameterSpace()
            else:
                space = faiss.ParameterSpace()
            for name, value in (("nprobe", self.nprobe), ("efSearch", self.ef)):
                if value is not None:
                    self._set_parameter(space, engine, name, value)
            self._search_engine = engine
        return self._search_engine

    def _set_parameter(self, space: Any, engine: Any, name: str, value: int) -> None:
        try:
            space.set_index_parameter(engine, name, value)
        except RuntimeError:
            option = {"nprobe": "nprobe", "efSearch": "ef"}[name]
            raise UsageError(f"faiss:factory={self.factory}: has no option {option}; remove {option}={value}") from None

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        engine, id_ranks = self._engine_for_search(), self.id_ranks
        vectors = queries.vectors.detach().cpu().float().numpy()
        check_width(vectors.shape[1], engine.d)
        if not np.isfinite(vectors).all():
            raise DataError(f"query {int((~np.isfinite(vectors)).any(1).argmax())}: NaN or infinity")
        width = min(RESCORE_FACTOR * depth, len(self)) if self.rescore else depth
        for first in range(0, len(vectors), QUERIES_AT_ONCE):
            part = np.ascontiguousarray(vectors[first : first + QUERIES_AT_ONCE])
            values, hits = engine.search(part, width)
            if self.rescore:
                query, rank = np.nonzero(hits >= 0)
                values[query, rank] = self._exact_scores(part, query, hits[query, rank])
            for i in range(len(part)):
                is_hit = hits[i] >= 0
                fill_ranked_hits(hits[i][is_hit], values[i][is_hit], id_ranks, rows[first + i], scores[first + i])

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        if not self.rescore:
            return super()._score_pairs(queries, query_rows, document_rows)
        return self._exact_scores(queries.vectors.detach().cpu().float().numpy(), query_rows, document_rows)

    def _exact_scores(self, queries: np.ndarray, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scores = np.empty(len(rows))
        for first, shard in self._vectors.shards():
            positions = np.flatnonzero((rows >= first) & (rows < first + len(shard)))
            shard_scores = np.empty(len(positions))
            simd_loops.exact_pair_dots(
                as_uint16(shard), np.ascontiguousarray(queries), query[positions], rows[positions] - first, shard_scores
            )
            scores[positions] = shard_scores
        return scores.astype(np.float32)


def _error_text(error: RuntimeError) -> str:
    """faiss's error message without its source location."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error).splitlines()[-1])
