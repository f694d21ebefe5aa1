"""Late interaction with token vectors in 2 bits per dimension (Santhanam et al. 2022), optionally rescored in float16."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder, find_nonempty_begins
from moeir.artifacts.journals import AppendableNpy
from moeir.errors import UsageError
from moeir.indexes import residual_codec
from moeir.indexes.base import NO_ROW, Index, fill_all_ranked_hits
from moeir.indexes.residual_codec import ResidualCodec
from moeir.indexes.token_store import TokenShards, TokenVectorStore, query_blocks
from moeir.indexes.two_step import QueryBlock
from moeir.indexes.vector_store import check_width
from moeir.kernels.numba_cache import njit_cached

CANDIDATES_PER_ROOT, CANDIDATES_PER_RANK = 100, 16  # candidates: 100 · √documents, at least 16 for each rank of the depth
FULL_SCORE_DIVISOR = 4  # one candidate in four is scored in full
RESCORE_FACTOR, RESCORE_EXTRA = 3, 32  # hits rescored: 3 · depth + 32
QUERIES_AT_ONCE = 64


class Plaid(Index):
    """Approximate MaxSim: centroids choose candidates, vectors of 2 bits per dimension score them; CPU only.

    A token vector of 128 dimensions takes 34 bytes, 2 for its centroid and 32 for the residual (36 beyond 65,536 centroids). Each query
    token probes the documents of its `nprobe` best centroids; the `candidates` best of them by those centroids [default: 100 ·
    √documents, at least 16 times the depth] are scored with a quarter of their bytes, the best quarter of those in full. `rescore=true`
    also stores the float16 vectors and rescores the best of those, 3 · depth + 32, exactly: those scores are maxsim's. `centroids` is
    their number [default: the power of two nearest to 4 · √vectors].
    """

    kind = "multivector"
    exact = False

    def __init__(
        self,
        id_ranks: np.ndarray | None = None,
        device: str = "cpu",
        *,
        centroids: int | None = None,
        nprobe: int = 64,
        candidates: int | None = None,
        rescore: bool = False,
        seed: int = 42,
    ) -> None:
        super().__init__(id_ranks, device)
        for name, value in (("centroids", centroids), ("nprobe", nprobe), ("candidates", candidates)):
            if value is not None and value < 1:
                raise UsageError(f"plaid:{name}={value}: expected at least 1")
        self.centroids, self.nprobe, self.candidates = centroids, nprobe, candidates
        self.rescore, self.seed = rescore, seed
        self._shards = TokenShards()

    def _add(self, shard: Any) -> None:
        self._shards.add_texts(shard, len(self))

    def _write(self, folder: Path) -> dict[str, Any]:
        """Train centroids and codewords on a sample, then encode all vectors block by block."""
        nearest_power = 2 ** round(np.log2(4 * max(len(self._shards), 1) ** 0.5))
        count = min(self.centroids or nearest_power, max(len(self._shards), 1))
        codec = ResidualCodec.train(self._shards, count, self.seed) if len(self._shards) else ResidualCodec.empty(self._shards.width)
        self._write_codes(codec, np.uint16 if count <= 2**16 else np.uint32, folder)
        codes = memmap.open_memmap(folder / "codes.npy")
        list_starts, list_rows = _invert_codes(self._shards.starts.numpy(), np.asarray(codes), len(codec.centroids))
        for name, array in {**vars(codec), "list_starts": list_starts, "list_rows": list_rows}.items():
            memmap.save_array(folder / f"{name}.npy", array)
        if self.rescore:
            self._shards.save(folder / "vectors.npy")
        return self._shards.save_starts(folder)

    def _write_codes(self, codec: ResidualCodec, code_dtype: Any, folder: Path) -> None:
        """Write centroid numbers [n], the leading quarter of the residual bytes, and the other bytes."""
        leading = codec.leading_bytes
        columns = (("codes", code_dtype, None), ("leading", np.uint8, leading), ("residuals", np.uint8, len(codec.words) - leading))
        files = [AppendableNpy(folder / f"{name}.npy", dtype, width) for name, dtype, width in columns]
        for block in self._shards.blocks():
            codes, residuals = codec.encode(block)
            for file, column in zip(files, (codes, residuals[:, :leading], residuals[:, leading:]), strict=True):
                file.append(column)
        for file in files:
            file.close()

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        documents, vectors = settings["documents"], settings["vectors"]
        self._dimension, self._max_norm = settings["dimension"], settings["longest"]
        self._texts = TokenVectorStore.from_files(arrays, settings, torch.device("cpu")) if self.rescore else None
        self._codec = ResidualCodec.from_files(arrays, self._dimension)
        centroids, leading = len(self._codec.centroids), self._codec.leading_bytes
        self._columns = [
            arrays.read("codes", (np.uint16, np.uint32), (vectors,), by="engine.json and centroids.npy", below=centroids),
            arrays.read("leading", np.uint8, (vectors, leading)),
            arrays.read("residuals", np.uint8, (vectors, len(self._codec.words) - leading)),
        ]
        self._starts = arrays.read_offsets("starts", documents, vectors, "engine.json and codes.npy")
        list_rows = arrays.read("list_rows", np.int32, (None,), below=documents)
        list_starts = arrays.read_offsets("list_starts", centroids, len(list_rows), "centroids.npy and list_rows.npy")
        arrays.check_order("list_rows", find_nonempty_begins(list_starts))
        self._lists = list_starts, list_rows
        return len(self._starts) - 1

    def token_vectors(self, row: int) -> np.ndarray:
        if self._texts is not None:
            return self._texts.token_vectors(row)
        codes, *residuals = (column[self._starts[row] : self._starts[row + 1]] for column in self._columns)
        return self._codec.decode(codes, np.hstack(residuals))

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        id_ranks, codec_arrays = self.id_ranks, self._codec_arrays()
        width = min(RESCORE_FACTOR * depth + RESCORE_EXTRA, len(self)) if self.rescore else depth
        max_candidates = self.candidates or max(int(CANDIDATES_PER_ROOT * len(self) ** 0.5), CANDIDATES_PER_RANK * depth)
        full_count = max(max_candidates // FULL_SCORE_DIVISOR, 2 * width)
        limits = (id_ranks, self.nprobe, max_candidates, full_count)
        hits, values = np.full((len(rows), width), NO_ROW, np.int64), np.full((len(rows), width), -np.inf, np.float32)

        def search(tokens: np.ndarray, row: int) -> None:
            residual_codec.search_codes(tokens, *codec_arrays, *self._lists, *limits, hits[row], values[row])

        for block in self._query_blocks(queries):
            self._map_queries(search, block, block.query_rows)
            if self._texts is not None:
                position, rank = np.nonzero(hits[block.query_rows] != NO_ROW)
                query = block.query_rows[position]
                values[query, rank] = self._texts.exact_maxsim(block, position, hits[query, rank])
        fill_all_ranked_hits(hits, values, id_ranks, rows, scores)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        scores, codec_arrays = np.zeros(len(query_rows), np.float32), self._codec_arrays()

        def score(tokens: np.ndarray, pairs: slice) -> None:
            residual_codec.score_texts(tokens, *codec_arrays, document_rows[pairs], scores[pairs])

        for block in self._query_blocks(queries):
            first, last = (np.searchsorted(query_rows, block.query_rows, side) for side in ("left", "right"))
            if self._texts is None:
                self._map_queries(score, block, [slice(*pair_range) for pair_range in zip(first, last, strict=True)])
            else:
                pairs = np.concatenate([np.arange(*pair_range) for pair_range in zip(first, last, strict=True)])
                position = np.repeat(np.arange(len(first)), last - first)
                scores[pairs] = self._texts.exact_maxsim(block, position, document_rows[pairs])
        return scores

    def _map_queries(self, function: Callable[[np.ndarray, Any], None], block: QueryBlock, arguments: Sequence[Any]) -> None:
        """Call `function` with the tokens of each query and its argument, in as many threads as torch uses."""
        if len(self._codec.centroids):
            tokens = [query_tokens(block, position) for position in range(len(arguments))]
            with ThreadPoolExecutor(min(torch.get_num_threads(), len(tokens))) as pool:
                list(pool.map(function, tokens, arguments))

    def _codec_arrays(self) -> tuple[np.ndarray, ...]:
        return *vars(self._codec).values(), self._starts, *self._columns

    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        """Blocks of the queries that have tokens, checked."""
        check_width(queries.vectors.shape[1], self._dimension)
        for block in query_blocks(queries, QUERIES_AT_ONCE, torch.device("cpu")):
            block.check_scores(self._max_norm)
            yield block


def query_tokens(block: QueryBlock, query_row: int) -> np.ndarray:
    """One query's tokens float32 [L, D], without tokens of zeros, which add nothing."""
    vectors = block.vectors[query_row]
    tokens: np.ndarray = vectors[vectors.any(dim=1)].numpy()
    return tokens


def _invert_codes(starts: np.ndarray, codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Inverted lists: the distinct texts of each centroid, ascending: list_starts int64 [C + 1], list_rows int32 [n]."""
    counts, last_text = np.zeros(count + 1, np.int64), np.full(count, -1, np.int64)
    _fill_lists(starts, codes, counts, last_text, np.empty(0, np.int32))
    list_starts = np.cumsum(counts)
    list_rows = np.empty(int(list_starts[-1]), np.int32)
    _fill_lists(starts, codes, list_starts.copy(), np.full(count, -1, np.int64), list_rows)
    return list_starts, list_rows


@njit_cached()
def _fill_lists(starts: Any, codes: Any, cursors: Any, last_text: Any, rows: Any) -> None:
    """Count each centroid's texts in cursors[code + 1] or, if `rows` is not empty, write them at cursors[code]."""
    for text in range(len(starts) - 1):
        for position in range(starts[text], starts[text + 1]):
            code = codes[position]
            if last_text[code] != text:
                last_text[code] = text
                if len(rows):
                    rows[cursors[code]] = text
                    cursors[code] += 1
                else:
                    cursors[code + 1] += 1
