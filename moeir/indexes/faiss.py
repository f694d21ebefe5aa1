"""Dense search by faiss, the library of approximate engines (Douze et al. 2024), beside the exact `flat`."""

import re
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import DataError, UsageError
from moeir.indexes.base import NO_ROW, Index, fill_all_ranked_hits
from moeir.indexes.vector_store import VectorShards, VectorStore, check_width

if find_spec("faiss") is not None:
    import faiss
else:
    faiss = None

INDEX_FILE = "faiss.index"
QUERIES_AT_ONCE = 1024
INSTALL_HINT = "engine faiss: faiss is not installed: pip install 'moeir[cpu]', or 'moeir[gpu]' for CUDA, never both"
RESCORE_FACTOR = 4  # times the depth
DEFAULT_EF = 16  # that of faiss


class Faiss(Index):
    """Any inner-product index of faiss by its factory string; + stands for a comma: factory=IVF4096+PQ16, HNSW32, SQ8 …

    Factories that need training use `sample` seeded vectors [default: 64 for each list, at least 65,536]. `nprobe` is how many lists of an
    IVF are searched, `ef` the size of an HNSW's candidate queue [default: 16]; it is never less than the depth, where an HNSW would find
    fewer documents. `rescore=true` also stores the float16 vectors and rescores 4 times the depth of faiss's hits exactly, as `flat` does.
    With a CUDA device faiss searches there if its build supports it.
    """

    kind = "dense"
    exact = False

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
        self._shards = VectorShards()

    def _add(self, shard: Any) -> None:
        self._shards.add(shard.vectors, lambda row: f"row {len(self) + row}: its vector")

    def _write(self, folder: Path) -> dict[str, Any]:
        """Train on a sample, add the vectors block by block, and write faiss's own file."""
        width = max(self._shards.width, 1)
        try:
            engine = faiss.index_factory(width, self.factory.replace("+", ","), faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            reason = _error_text(error)
            raise UsageError(f"faiss:factory={self.factory}: faiss rejects it for dimension {width}: {reason}") from None
        if not engine.is_trained and len(self):
            self._train(engine)
        for block in self._shards.blocks():
            engine.add(block.float().numpy())
        faiss.write_index(engine, str(folder / INDEX_FILE))
        if self.rescore:
            self._shards.save(folder / "vectors.npy")
        return {"longest": self._shards.max_norm, "lost": self._shards.max_bf16_error, "faiss": faiss.__version__}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        try:
            self._engine = faiss.read_index(str(folder / INDEX_FILE), faiss.IO_FLAG_MMAP)
        except RuntimeError as error:
            raise ValueError(_error_text(error)) from error
        if self.rescore:
            width = self._engine.d if self._engine.ntotal else None
            vectors = arrays.read("vectors", np.float16, (self._engine.ntotal, width))
            self._vectors = VectorStore(vectors, torch.device("cpu"), settings["longest"])
        return int(self._engine.ntotal)

    def _train(self, engine: Any) -> None:
        lists = getattr(faiss.try_extract_index_ivf(engine), "nlist", 0)
        count = min(len(self), self.sample or max(64 * lists, 2**16))
        rows = np.sort(np.random.default_rng(self.seed).choice(len(self), count, replace=False))
        try:
            engine.train(self._shards.select(torch.from_numpy(rows)).float().numpy())
        except RuntimeError as error:
            reason = _error_text(error)
            raise DataError(f"faiss:factory={self.factory}: cannot be trained on {count} vectors: {reason}; choose a smaller one") from None

    @cached_property
    def _search_engine(self) -> Any:
        """The engine with its search options, on the GPU if requested and supported."""
        engine, space = self._engine, faiss.ParameterSpace()
        if self.device.startswith("cuda") and getattr(faiss, "get_num_gpus", int)() > 0:
            engine = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), torch.device(self.device).index or 0, engine)
            space = faiss.GpuParameterSpace()
        for option, name, value in (("nprobe", "nprobe", self.nprobe), ("ef", "efSearch", self.ef)):
            try:
                if value is not None:
                    space.set_index_parameter(engine, name, value)
            except RuntimeError:
                raise UsageError(f"faiss:factory={self.factory}: has no option {option}; remove {option}={value}") from None
        return engine

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        engine, id_ranks = self._search_engine, self.id_ranks
        vectors = queries.vectors.detach().cpu().float().contiguous()
        check_width(vectors.shape[1], engine.d)
        is_finite = vectors.isfinite().all(dim=1)
        if not is_finite.all():
            raise DataError(f"query {is_finite.tolist().index(False)}: NaN or infinity")
        width = min(RESCORE_FACTOR * depth, len(self)) if self.rescore else depth
        if (hnsw := _find_hnsw(engine)) is not None:
            hnsw.efSearch = max(self.ef or DEFAULT_EF, width)
        for first in range(0, len(vectors), QUERIES_AT_ONCE):
            part = slice(first, first + QUERIES_AT_ONCE)
            values, hits = engine.search(vectors[part].numpy(), width)
            if self.rescore:
                query, rank = np.nonzero(hits != NO_ROW)
                values[query, rank] = self._exact_scores(vectors[part], query, hits[query, rank])
            fill_all_ranked_hits(hits, values, id_ranks, rows[part], scores[part])

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        if not self.rescore:
            return super()._score_pairs(queries, query_rows, document_rows)
        return self._exact_scores(queries.vectors.detach().cpu().float(), query_rows, document_rows)

    def _exact_scores(self, vectors: torch.Tensor, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return self._vectors.exact_dots(vectors, torch.from_numpy(query), torch.from_numpy(rows)).float().numpy()


def _find_hnsw(engine: Any) -> Any:
    """The graph that is searched for the hits; None if another structure is."""
    while isinstance(engine, faiss.IndexPreTransform | faiss.IndexRefine):
        engine = faiss.downcast_index(engine.index if isinstance(engine, faiss.IndexPreTransform) else engine.base_index)
    return engine.hnsw if isinstance(engine, faiss.IndexHNSW) else None


def _error_text(error: RuntimeError) -> str:
    """faiss's error message without its source location."""
    return re.sub(r"^Error in .* at \S+:\d+: (Error: )?", "", str(error).splitlines()[-1])
