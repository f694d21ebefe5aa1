"""Token vectors in 2 bits per dimension: the nearest of a few thousand centroids, and the residual, one byte for every four dimensions.

Centroids and residuals as in ColBERTv2 and PLAID (Santhanam et al. 2022); a byte is the index of the nearest of 256 learned codewords
(product quantisation, Jégou et al. 2011), of which four separate codes of 2 bits are a special case. Bytes are in order of importance.

Scoring is by table lookup instead of products, one query at a time. A query token's product with a decoded vector is its product with
the centroid plus one number for each byte of the residual. Both are looked up, for 32 query tokens at once, as integers in units of a step
chosen per query: int16 for centroids, int8 for bytes, so that tables fit in cache. Nothing depends on batches or threads.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes.simd_loops import LANES, dot_32, max_lookup_sum_32
from moeir.indexes.vector_store import ROWS_AT_ONCE, VectorShards, as_uint16
from moeir.kernels.numba_cache import njit_cached
from moeir.kernels.precision import has_native_bfloat16

CODEWORDS, BITS_PER_CODE, GROUP_DIMENSIONS = 256, 8, 8  # codewords, bits of a code, and the most dimensions in a group
SAMPLE_PER_CENTROID, CODEBOOK_SAMPLE, KMEANS_ROUNDS = 24, 2**15, 6


@dataclass(frozen=True)
class ResidualCodec:
    """centroids float32 [C, D]; rotation float32 [D, 8 · S] of residuals into S = ⌈D / 4⌉ groups; words float32 [S, 256, 8].

    A group holds principal components worth 8 bits together, those of largest variance first; unused columns are zero.
    """

    centroids: np.ndarray
    rotation: np.ndarray
    words: np.ndarray

    @classmethod
    def train(cls, vectors: VectorShards, count: int, seed: int) -> "ResidualCodec":
        """Train on a seeded sample of the vectors: `count` centroids, or one for each vector of the sample if fewer."""
        generator = np.random.default_rng(seed)
        sample_rows = np.sort(generator.choice(len(vectors), min(len(vectors), SAMPLE_PER_CENTROID * count), replace=False))
        sample = vectors.select(torch.from_numpy(sample_rows)).float()
        centroids = sample[torch.from_numpy(np.sort(generator.choice(len(sample), min(count, len(sample)), replace=False)))].clone()
        for _ in range(KMEANS_ROUNDS if count < len(sample) else 0):
            codes = torch.from_numpy(nearest_centroids(sample, centroids))
            counts = torch.bincount(codes, minlength=len(centroids))
            sums = torch.zeros(centroids.shape, dtype=torch.float64)
            for part_codes, part in zip(codes.split(ROWS_AT_ONCE), sample.split(ROWS_AT_ONCE), strict=True):
                sums.index_add_(0, part_codes, part.double())
            centroids[counts > 0] = (sums / counts[:, None])[counts > 0].float()
        codebook_rows = np.sort(generator.choice(len(sample), min(len(sample), CODEBOOK_SAMPLE), replace=False))
        residuals = sample.numpy()[codebook_rows] - centroids.numpy()[nearest_centroids(sample[torch.from_numpy(codebook_rows)], centroids)]
        rotation = allocate_dimensions(residuals)
        return cls(centroids.numpy(), rotation, _train_codebooks(residuals @ rotation, generator))

    @classmethod
    def empty(cls, width: int) -> "ResidualCodec":
        """A codec for no vectors [0, D]: no centroids."""
        groups = -(-width // 4)
        shapes = ((0, width), (width, GROUP_DIMENSIONS * groups), (groups, CODEWORDS, GROUP_DIMENSIONS))
        return cls(*(np.zeros(shape, np.float32) for shape in shapes))

    @classmethod
    def from_files(cls, arrays: ArrayFolder, width: int) -> "ResidualCodec":
        """From the arrays of a folder, read into memory, for vectors of D dimensions."""
        groups = -(-width // 4)
        centroids = arrays.read("centroids", np.float32, (None, width), finite=True)
        rotation = arrays.read("rotation", np.float32, (width, GROUP_DIMENSIONS * groups), finite=True)
        words = arrays.read("words", np.float32, (groups, CODEWORDS, GROUP_DIMENSIONS), finite=True)
        return cls(centroids.copy(), rotation.copy(), words.copy())

    @property
    def leading_bytes(self) -> int:
        """How many of a vector's S bytes are the leading ones."""
        return -(-len(self.words) // 4)

    def encode(self, vectors: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Vectors [n, D] -> nearest centroids int32 [n], and residual bytes uint8 [n, S]."""
        vectors, residuals = vectors.float(), np.empty((len(vectors), len(self.words)), np.uint8)
        codes = nearest_centroids(vectors, torch.from_numpy(self.centroids))
        rotated = (vectors.numpy() - self.centroids[codes]) @ self.rotation
        _nearest_codewords(rotated, self.words.transpose(0, 2, 1).copy(), residuals)
        return codes, residuals

    def decode(self, codes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """The inverse of `encode`, up to quantisation: float32 [n, D]."""
        decoded_residuals = np.stack([self.words[group][residuals[:, group]] for group in range(len(self.words))], axis=1)
        vectors: np.ndarray = self.centroids[codes] + decoded_residuals.reshape(len(codes), self.rotation.shape[1]) @ self.rotation.T
        return vectors


def allocate_dimensions(residuals: np.ndarray) -> np.ndarray:
    """Allocate principal components of residuals [n, D] to ⌈D / 4⌉ groups of equal bits, largest variance first: float32 [D, 8 · S].

    A component of variance λ is worth ½ log₂(λ / θ) bits, with θ such that all are worth 8 bits per group (reverse water-filling, Cover
    and Thomas 2006, §10.3.3); components that remain when all groups are full are dropped.

    >>> spread = np.diag([1.0, 2.0, 2.0, 64.0, 2.0, 2.0, 2.0, 2.0])  # each row is a vector along one direction
    >>> (allocate_dimensions(spread) != 0).sum(axis=0).reshape(2, 8).sum(axis=1).tolist()
    [2, 6]
    """
    width = residuals.shape[1]
    groups = -(-width // 4)
    variances, directions = (part[..., ::-1] for part in np.linalg.eigh(residuals.T.astype(np.float64) @ residuals))
    component_bits = _bit_allocation(np.maximum(variances, 1e-30), BITS_PER_CODE * groups)
    rotation, component, remaining_bits = np.zeros((width, GROUP_DIMENSIONS * groups), np.float32), 0, float(component_bits.sum())
    for group in range(groups):
        group_bits, slots = 0.0, 0
        target = remaining_bits / (groups - group)
        while component < width and slots < GROUP_DIMENSIONS and (slots == 0 or group_bits + component_bits[component] / 2 <= target):
            rotation[:, GROUP_DIMENSIONS * group + slots] = directions[:, component]
            group_bits, slots, component = group_bits + component_bits[component], slots + 1, component + 1
        remaining_bits -= group_bits
    return rotation


def _bit_allocation(variances: np.ndarray, bits: int) -> np.ndarray:
    low, high = np.log2(variances.min()) - 2.0 * bits, np.log2(variances.max())
    for _ in range(60):
        level = (low + high) / 2
        component_bits: np.ndarray = np.maximum(np.log2(variances) - level, 0.0) / 2
        low, high = (level, high) if component_bits.sum() > bits else (low, level)
    return component_bits


def nearest_centroids(vectors: torch.Tensor, centroids: torch.Tensor) -> np.ndarray:
    """Nearest centroid of each vector, by bfloat16 products on CPUs that have them: [n, D], [C, D] -> int32 [n]."""
    dtype = torch.bfloat16 if has_native_bfloat16("cpu") else torch.float32
    half_squared_norms = (0.5 * centroids.double().square().sum(dim=1)).float().numpy()
    rows = max(64, 2**21 // max(len(centroids), 1))
    products, transposed_centroids = torch.empty(rows, len(centroids), dtype=dtype), centroids.to(dtype).T
    codes, padded_part = np.empty(len(vectors), np.int32), torch.zeros(rows, vectors.shape[1], dtype=dtype)
    for first in range(0, len(vectors), rows):
        part = vectors[first : first + rows]
        padded_part[: len(part)] = part
        torch.mm(padded_part, transposed_centroids, out=products)
        stored, shift = (as_uint16(products), 16) if dtype == torch.bfloat16 else (products.view(torch.int32).numpy(), 0)
        _nearest_centroid_loop(stored, np.int32(shift), half_squared_norms, codes[first : first + len(part)])
    return codes


@njit_cached(parallel=True, fastmath={"nnan", "nsz"})
def _nearest_centroid_loop(product_bits: Any, shift: Any, half_squared_norms: Any, codes: Any) -> None:
    for row in numba.prange(len(codes)):
        wide = np.empty(len(half_squared_norms), np.int32)
        for i in range(len(half_squared_norms)):
            wide[i] = np.int32(product_bits[row, i]) << shift
        values = wide.view(np.float32)
        best = np.float32(-np.inf)
        for i in range(len(half_squared_norms)):
            values[i] -= half_squared_norms[i]
            best = max(best, values[i])
        codes[row] = 0
        for i in range(len(half_squared_norms)):
            if values[i] == best:
                codes[row] = i
                break


def _train_codebooks(residuals: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Codewords of rotated residuals [n, 8 · S], by k-means in each group."""
    groups = residuals.shape[1] // GROUP_DIMENSIONS
    start = np.sort(generator.choice(len(residuals), CODEWORDS, replace=len(residuals) < CODEWORDS))
    words = np.ascontiguousarray(residuals[start].reshape(CODEWORDS, groups, GROUP_DIMENSIONS).transpose(1, 0, 2))
    codes = np.empty((len(residuals), groups), np.uint8)
    for _ in range(2 * KMEANS_ROUNDS):
        _nearest_codewords(residuals, words.transpose(0, 2, 1).copy(), codes)
        for group in range(groups):
            group_codes, columns = codes[:, group], residuals[:, group * GROUP_DIMENSIONS : (group + 1) * GROUP_DIMENSIONS].T
            counts = np.bincount(group_codes, minlength=CODEWORDS)
            sums = np.stack([np.bincount(group_codes, weights=column, minlength=CODEWORDS) for column in columns])
            words[group][counts > 0] = (sums[:, counts > 0] / counts[counts > 0]).T.astype(np.float32)
    return words


@njit_cached(parallel=True, fastmath={"nnan", "nsz"})
def _nearest_codewords(residuals: Any, words: Any, codes: Any) -> None:
    """Nearest codeword of each group: rotated residuals float32 [n, 8 · S], words [S, 8, 256] -> codes uint8 [n, S]."""
    for row in numba.prange(len(codes)):
        distances, residual = np.empty(CODEWORDS, np.float32), residuals[row]
        for group in range(len(words)):
            distances[:] = 0.0
            for slot in range(GROUP_DIMENSIONS):
                value = residual[GROUP_DIMENSIONS * group + slot]
                for i in range(CODEWORDS):
                    distances[i] += (words[group, slot, i] - value) ** 2
            least = np.float32(np.inf)
            for i in range(CODEWORDS):
                least = min(least, distances[i])
            for i in range(CODEWORDS):
                if distances[i] == least:
                    codes[row, group] = i
                    break


INT16_RANGE, INT8_RANGE = 32000.0, 127.0  # largest sum of lookups in int16, before rounding, and largest lookup of a byte in int8


@njit_cached(nogil=True)
def search_codes(
    tokens: Any, centroids: Any, rotation: Any, words: Any, starts: Any, codes: Any, leading: Any, residuals: Any,
    list_starts: Any, list_rows: Any, id_ranks: Any, nprobe: int, candidates: int, full_count: int, rows: Any, scores: Any,
) -> None:  # fmt: skip
    """The best texts of one query [L, D] by their decoded vectors -> rows int64 [K], scores float32 [K], unsorted; further entries stay.

    Candidates are the texts with a token at one of each query token's `nprobe` best centroids; the best `candidates` of them by those
    centroids are scored with the first quarter of their bytes, the best `full_count` of those in full.
    """
    centroid_table, codeword_table, step, probed_centroids = query_tables(tokens, centroids, rotation, words, nprobe)
    hits, values = gather_candidates(centroid_table, probed_centroids, len(tokens), list_starts, list_rows, len(starts) - 1)
    hits = hits[top_k(hits, values, id_ranks, candidates)]
    if len(hits) > full_count:
        for i in range(len(hits)):
            token_range = slice(starts[hits[i]], starts[hits[i] + 1])
            values[i] = score_codes(centroid_table, codeword_table, codes[token_range], leading[token_range], residuals[:0])
        hits = hits[top_k(hits, values[: len(hits)], id_ranks, full_count)]
    for i in range(len(hits)):
        token_range = slice(starts[hits[i]], starts[hits[i] + 1])
        values[i] = score_codes(centroid_table, codeword_table, codes[token_range], leading[token_range], residuals[token_range])
    best = top_k(hits, values[: len(hits)], id_ranks, len(rows))
    for i in range(len(best)):
        rows[i] = hits[best[i]]
        scores[i] = np.float32(values[best[i]] * step)


@njit_cached(nogil=True)
def score_texts(
    tokens: Any, centroids: Any, rotation: Any, words: Any, starts: Any, codes: Any, leading: Any, residuals: Any, rows: Any, scores: Any
) -> None:
    """Scores of chosen texts for one query, identical to those of `search_codes`: rows [P] -> scores float32 [P], −∞ without tokens."""
    centroid_table, codeword_table, step, _ = query_tables(tokens, centroids, rotation, words, 1)
    for i in range(len(rows)):
        token_range = slice(starts[rows[i]], starts[rows[i] + 1])
        steps = score_codes(centroid_table, codeword_table, codes[token_range], leading[token_range], residuals[token_range])
        scores[i] = np.float32(steps * step) if token_range.stop > token_range.start else np.float32(-np.inf)


@njit_cached()
def query_tables(tokens: Any, centroids: Any, rotation: Any, words: Any, nprobe: int) -> Any:
    """A query's centroid_table int16 [L/32, C, 32], codeword_table int8 [L/32, S, 256, 32], step size, best centroids [L/32, 32, n]."""
    length, width = tokens.shape
    blocks, groups, slots = (length + LANES - 1) // LANES, len(words), words.shape[2]
    lane_tokens, rotated = np.zeros((blocks, width, LANES), np.float32), np.zeros((blocks, rotation.shape[1], LANES), np.float32)
    centroid_products = np.empty((blocks, len(centroids), LANES), np.float32)
    codeword_products = np.empty((blocks, groups, words.shape[1], LANES), np.float32)
    best = np.empty((blocks, LANES, min(nprobe, len(centroids))), np.int64)
    step, max_sums, max_values = 1e-30, np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for block in range(blocks):
        for i in range(LANES * block, min(LANES * block + LANES, length)):
            lane_tokens[block, :, i - LANES * block] = tokens[i]
        dot_32(lane_tokens[block], centroids, centroid_products[block])
        dot_32(lane_tokens[block], rotation.T.copy(), rotated[block])
        max_abs(centroid_products[block], max_sums)
        for group in range(groups):
            dot_32(rotated[block, slots * group : slots * group + slots], words[group], codeword_products[block, group])
            max_abs(codeword_products[block, group], max_values)
            for i in range(LANES):
                max_sums[i] += max_values[i]
                step = max(step, np.float64(max_values[i]) / INT8_RANGE)
        for i in range(LANES):
            step = max(step, np.float64(max_sums[i]) / INT16_RANGE)
        top_rows(centroid_products[block], best[block])
    scale = np.float32(1.0 / step)
    centroid_table, codeword_table = np.rint(centroid_products * scale), np.rint(codeword_products * scale)
    return centroid_table.astype(np.int16), codeword_table.astype(np.int8), step, best


@njit_cached()
def max_abs(values: Any, maxima: Any) -> None:
    """Largest absolute value of each column: values [n, 32] -> maxima [32]."""
    maxima[:] = 0.0
    for row in range(len(values)):
        for i in range(LANES):
            maxima[i] = max(maxima[i], abs(values[row, i]))


@njit_cached()
def top_rows(values: Any, best: Any) -> None:
    """Rows of the n largest values of each column, descending, ties by first row: values [C, 32] -> best [32, n]."""
    count = best.shape[1]
    top_values, least = np.full(best.shape, np.float32(-np.inf), np.float32), np.full(LANES, np.float32(-np.inf))
    best[:] = 0
    for row in range(len(values)):
        above = 0
        for i in range(LANES):
            above |= values[row, i] > least[i]
        for i in range(LANES if above else 0):
            if values[row, i] > least[i]:
                slot = count - 1
                while slot > 0 and top_values[i, slot - 1] < values[row, i]:
                    top_values[i, slot], best[i, slot] = top_values[i, slot - 1], best[i, slot - 1]
                    slot -= 1
                top_values[i, slot], best[i, slot] = values[row, i], row
                least[i] = top_values[i, count - 1]


@njit_cached()
def gather_candidates(centroid_table: Any, best: Any, tokens: int, list_starts: Any, list_rows: Any, documents: int) -> Any:
    """Texts with a token at one of these centroids, ascending, and their scores by centroids: best [L/32, 32, n] -> int64, int32 [hits].

    A query token adds its product with a text's best centroid minus that with its n-th best centroid, the estimate for tokens outside the
    lists: Σ_i max_j from the lists alone, as in WARP (Scheerer et al. 2025); no other data of a text is read.
    """
    sums, last_token = np.zeros(documents, np.int32), np.zeros(documents, np.int32)
    for i in range(tokens):
        probed_centroids, lane = best[i // LANES, i % LANES], i % LANES
        least = np.int32(centroid_table[i // LANES, probed_centroids[-1], lane])
        for code in probed_centroids:
            gain = np.int32(np.int32(centroid_table[i // LANES, code, lane]) - least)
            for position in range(list_starts[code], list_starts[code + 1]):
                row = list_rows[position]
                if last_token[row] != i + 1:  # lists are in order of centroid score
                    last_token[row] = i + 1
                    sums[row] += gain
    hits = np.flatnonzero(last_token)
    return hits, sums[hits]


@njit_cached()
def top_k(hits: Any, values: Any, id_ranks: Any, count: int) -> Any:
    """Indices of the `count` hits with the largest values int32 [n]; ties at the cut go to the highest id rank."""
    if len(hits) <= count:
        return np.arange(len(hits))
    cut = np.partition(values, len(values) - count)[len(values) - count]
    equal = np.flatnonzero(values == cut)
    free = count - np.sum(values > cut)
    if len(equal) > free:
        equal = equal[np.argsort(-id_ranks[hits[equal]])[:free]]
    keep = values > cut
    keep[equal] = True
    return np.flatnonzero(keep)


@njit_cached()
def score_codes(centroid_table: Any, codeword_table: Any, codes: Any, leading: Any, residuals: Any) -> int:
    """MaxSim Σ_i max_j in steps with a text's token vectors [n], decoded from leading bytes [n, s] and the other bytes [n, S − s].

    Either may be empty, [0, s] or [0, S − s]; without both, only the centroids count.
    """
    total, best = 0, np.empty(LANES, np.int16)
    for block in range(len(centroid_table)):
        max_lookup_sum_32(centroid_table[block], codeword_table[block], codes, leading, residuals, best)
        for i in range(LANES):
            total += best[i]
    return total
