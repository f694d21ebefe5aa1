"""Late interaction with token vectors in 2 bits per dimension (Santhanam et al. 2022), optionally rescored in float16."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.journals import AppendableNpy
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes import residual_codec
from moeir.indexes.base import NO_ROW, Index, fill_ranked_hits
from moeir.indexes.residual_codec import ROWS_AT_ONCE, ResidualCodec
from moeir.indexes.token_store import TokenVectorStore, query_blocks
from moeir.indexes.two_step import MAX_FLOAT32, QueryBlock
from moeir.indexes.vector_store import check_width
from moeir.kernels.numba_cache import njit_cached

COLUMNS = ("codes", "leading", "residuals")
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

    kind: ClassVar[str] = "multivector"
    exact: ClassVar[bool] = False

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
        self._token_store = TokenVectorStore(torch.device("cpu"))
        self._codec: ResidualCodec | None = None
        self._stored_arrays: dict[str, np.ndarray] = {}
        self._vector_settings: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._token_store)

    def add(self, shard: Any) -> None:
        if self._codec is not None:
            raise ArtifactError("a built plaid index takes no more documents; build a new one")
        self._token_store.add(shard)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **self._vector_settings}

    def save(self, folder: Path | str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if self._codec is None:
            self._build(Path(folder))
        else:
            for name in COLUMNS:
                np.save(Path(folder) / f"{name}.npy", self._stored_arrays[name], allow_pickle=False)
        super().save(folder)
        if self.rescore:
            self._token_store.save(Path(folder))

    def _arrays(self) -> dict[str, np.ndarray]:
        assert self._codec is not None
        lists = {name: self._stored_arrays[name] for name in ("list_starts", "list_rows")}
        return {"starts": self._token_store.starts.numpy(), **vars(self._codec), **lists}

    def _load_arrays(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        if self.rescore:
            self._token_store.restore(arrays, settings)
        else:
            self._token_store.starts = torch.from_numpy(np.asarray(arrays["starts"]))
        self._vector_settings = {name: settings[name] for name in ("dimension", "vectors", "longest", "lost")}
        self._codec = ResidualCodec(*(np.array(arrays[name]) for name in ("centroids", "rotation", "words")))
        self._stored_arrays = {name: np.asarray(arrays[name]) for name in (*COLUMNS, "list_starts", "list_rows")}
        count, tokens = len(self._codec.centroids), int(self._token_store.starts[-1])
        if {len(self._stored_arrays[name]) for name in COLUMNS} != {tokens} or len(self._stored_arrays["list_starts"]) != count + 1:
            raise ValueError(f"codes.npy, leading.npy, residuals.npy and centroids.npy disagree with starts.npy about {tokens} vectors")

    def token_vectors(self, row: int) -> np.ndarray:
        if self.rescore:
            return self._token_store.token_vectors(row)
        token_range = slice(*self._token_store.starts[row : row + 2].tolist())
        codec = self._built_codec()
        return codec.decode(
            self._stored_arrays["codes"][token_range], np.hstack([self._stored_arrays[name][token_range] for name in COLUMNS[1:]])
        )

    def _built_codec(self) -> ResidualCodec:
        return self._codec or self._build(None)

    def _build(self, folder: Path | None) -> ResidualCodec:
        """Train centroids and codewords on a sample, then encode all vectors block by block, into files of a folder or into memory."""
        vectors, starts, self._vector_settings = self._token_store.vectors, self._token_store.starts.numpy(), self._token_store.settings()
        nearest_power = 2 ** round(np.log2(4 * max(len(vectors), 1) ** 0.5))
        count = min(self.centroids or nearest_power, max(len(vectors), 1))
        if len(vectors):
            self._codec = ResidualCodec.train(vectors, count, self.seed)
        else:
            self._codec = ResidualCodec.empty(vectors.width)
        self._stored_arrays = dict(zip(COLUMNS, _collect_columns(self._encoded_blocks(count), folder), strict=True))
        lists = _invert_codes(starts, self._stored_arrays["codes"], len(self._codec.centroids))
        self._stored_arrays |= dict(zip(("list_starts", "list_rows"), lists, strict=True))
        return self._codec

    def _encoded_blocks(self, count: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Encode all vectors in blocks: centroid numbers [n], the leading quarter of the residual bytes, the other bytes."""
        vectors, codec = self._token_store.vectors, self._built_codec()
        code_dtype, leading = np.uint16 if count <= 2**16 else np.uint32, -(-len(codec.words) // 4)
        for first in range(0, max(len(vectors), 1), ROWS_AT_ONCE):
            codes, residuals = codec.encode(vectors[slice(first, first + ROWS_AT_ONCE)])
            yield codes.astype(code_dtype), residuals[:, :leading], residuals[:, leading:]

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        id_ranks, codec_arrays = self.id_ranks, self._codec_arrays()
        width = min(RESCORE_FACTOR * depth + RESCORE_EXTRA, len(self)) if self.rescore else depth
        max_candidates = self.candidates or max(int(CANDIDATES_PER_ROOT * len(self) ** 0.5), CANDIDATES_PER_RANK * depth)
        full_count = max(max_candidates // FULL_SCORE_DIVISOR, 2 * width)
        lists = (self._stored_arrays["list_starts"], self._stored_arrays["list_rows"], id_ranks, self.nprobe, max_candidates, full_count)
        for block in self._query_blocks(queries):
            hits, values = (
                np.full((len(block.query_rows), width), NO_ROW, np.int64),
                np.full((len(block.query_rows), width), -np.inf, np.float32),
            )

            def search(query_row: int, block: QueryBlock = block, hits: np.ndarray = hits, values: np.ndarray = values) -> int:
                return int(
                    residual_codec.search_codes(query_tokens(block, query_row), *codec_arrays, *lists, hits[query_row], values[query_row])
                )

            counts = np.array(self._map_queries(search, len(block.query_rows)))
            if self.rescore:
                query, is_hit = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)), np.arange(width) < counts[:, None]
                values[is_hit] = self._token_store.exact_maxsim(block, query, torch.from_numpy(hits[is_hit])).float().numpy()
            for query_row, query_hits, query_values, count in zip(block.query_rows, hits, values, counts, strict=True):
                fill_ranked_hits(query_hits[:count], query_values[:count], id_ranks, rows[query_row], scores[query_row])

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        scores, codec_arrays, document_rows = np.zeros(len(query_rows), np.float32), self._codec_arrays(), np.asarray(document_rows)
        for block in self._query_blocks(queries):
            first, last = (np.searchsorted(query_rows, block.query_rows, side) for side in ("left", "right"))
            if self.rescore:
                positions = np.concatenate([np.arange(*each) for each in zip(first, last, strict=True)])
                query, rows = np.repeat(np.arange(len(first)), last - first), document_rows[positions]
                scores[positions] = self._token_store.exact_maxsim(block, torch.from_numpy(query), torch.from_numpy(rows)).float().numpy()
                continue

            def score(query_row: int, block: QueryBlock = block, first: np.ndarray = first, last: np.ndarray = last) -> None:
                positions = slice(first[query_row], last[query_row])
                if positions.stop > positions.start:
                    residual_codec.score_texts(query_tokens(block, query_row), *codec_arrays, document_rows[positions], scores[positions])

            self._map_queries(score, len(block.query_rows))
        return scores

    def _map_queries(self, function: Callable[[int], Any], count: int) -> list[Any]:
        """`function` of 0 to count − 1, in as many threads as torch uses; zeros if the index has no vectors."""
        if not len(self._built_codec().centroids):
            return [0] * count
        if (threads := min(torch.get_num_threads(), count)) < 2:
            return [function(query_row) for query_row in range(count)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(function, range(count)))

    def _codec_arrays(self) -> tuple[np.ndarray, ...]:
        starts = self._token_store.starts.numpy()
        return *vars(self._built_codec()).values(), starts, *(self._stored_arrays[name] for name in COLUMNS)

    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        """Blocks of the queries that have tokens, checked."""
        self._built_codec()
        check_width(queries.vectors.shape[1], self._vector_settings["dimension"])
        for block in query_blocks(queries, QUERIES_AT_ONCE, torch.device("cpu")):
            invalid = ~(block.norms * max(self._vector_settings["longest"], 1.0) < MAX_FLOAT32)
            if invalid.any():
                raise DataError(f"query {block.query_rows[int(invalid.int().argmax())]}: NaN, infinity, or a score too large for float32")
            yield block


def query_tokens(block: QueryBlock, query_row: int) -> np.ndarray:
    """One query's tokens float32 [L, D], without tokens of zeros, which add nothing."""
    vectors = block.vectors[query_row]
    tokens: np.ndarray = vectors[vectors.any(dim=1)].numpy()
    return tokens


def _collect_columns(blocks: Iterator[tuple[np.ndarray, ...]], folder: Path | None) -> list[np.ndarray]:
    """Concatenate the columns, in memory or, block by block, in files of a folder."""
    if folder is None:
        return [np.concatenate(column) for column in zip(*blocks, strict=True)]
    files: list[AppendableNpy] = []
    for columns in blocks:
        files = files or [
            AppendableNpy(folder / f"{name}.npy", part.dtype, part.shape[1] if part.ndim == 2 else None)
            for name, part in zip(COLUMNS, columns, strict=True)
        ]
        for file, part in zip(files, columns, strict=True):
            file.append(part)
    for file in files:
        file.close()
    return [np.asarray(memmap.open_memmap(folder / f"{name}.npy")) for name in COLUMNS]


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
