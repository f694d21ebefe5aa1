"""Token vectors in 2 bits a dimension: the nearest of a few thousand centroids, and what is left of it, a byte for every four dimensions.

Centroids and residuals as ColBERTv2 and PLAID keep them (Santhanam et al. 2022); a byte names the nearest of 256 learned codewords
(product quantisation, Jégou et al. 2011), of which four separate codes of 2 bits are a special case. Bytes come in order of what they say.
"""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch

from moeir.indexes.storage import Vectors, bits
from moeir.kernels.bfloat16 import multiplies_bfloat16
from moeir.kernels.compiling import compiled

WORDS, BITS, GROUP = 256, 8, 8  # codewords, their bits, and the most dimensions that one stands for
SAMPLE_PER_CENTROID, SAMPLE_OF_WORDS, ROUNDS = 24, 2**15, 6
ROWS_AT_ONCE = 2**14


@dataclass(frozen=True)
class Quantiser:
    """centroids float32 [C, D]; rotation float32 [D, 8 · S] of residuals into S = ⌈D / 4⌉ groups; words float32 [S, 256, 8].

    A group holds the principal components that are worth 8 bits together, the widest in the first; unused columns are zero.
    """

    centroids: np.ndarray
    rotation: np.ndarray
    words: np.ndarray

    @classmethod
    def trained(cls, vectors: Vectors, count: int, seed: int) -> "Quantiser":
        """Fitted to a seeded sample of the vectors, `count` centroids or one for each vector of the sample."""
        generator = np.random.default_rng(seed)
        chosen = np.sort(generator.choice(len(vectors), min(len(vectors), SAMPLE_PER_CENTROID * count), replace=False))
        sample = vectors[torch.from_numpy(chosen)].float()
        centroids = sample[torch.from_numpy(np.sort(generator.choice(len(sample), min(count, len(sample)), replace=False)))].clone()
        for _ in range(ROUNDS if count < len(sample) else 0):
            codes = nearest(sample, centroids)
            counts = np.bincount(codes, minlength=len(centroids))
            sums = np.zeros(centroids.shape, np.float64)
            _add(sample.numpy(), codes, sums)
            full = counts > 0
            centroids[torch.from_numpy(full)] = torch.from_numpy((sums[full] / counts[full, None]).astype(np.float32))
        own = np.sort(generator.choice(len(sample), min(len(sample), SAMPLE_OF_WORDS), replace=False))
        left = sample.numpy()[own] - centroids.numpy()[nearest(sample[torch.from_numpy(own)], centroids)]
        rotation = dealt(left)
        return cls(centroids.numpy(), rotation, _fitted_words(left @ rotation, generator))

    @classmethod
    def untrained(cls, width: int) -> "Quantiser":
        """For no vectors [0, D]: no centroid."""
        groups = -(-width // 4)
        shapes = ((0, width), (width, GROUP * groups), (groups, WORDS, GROUP))
        return cls(*(np.zeros(shape, np.float32) for shape in shapes))

    def encoded(self, vectors: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Vectors [n, D] -> the centroid of each int32 [n], and the bytes of its residual uint8 [n, S]."""
        codes = np.empty(len(vectors), np.int32)
        residuals = np.empty((len(vectors), len(self.words)), np.uint8)
        centroids, beside = torch.from_numpy(self.centroids), self.words.transpose(0, 2, 1).copy()
        for first in range(0, len(vectors), ROWS_AT_ONCE):
            part = vectors[first : first + ROWS_AT_ONCE].float()
            codes[first : first + len(part)] = found = nearest(part, centroids)
            _nearest_words((part.numpy() - self.centroids[found]) @ self.rotation, beside, residuals[first : first + len(part)])
        return codes, residuals

    def decoded(self, codes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """What `encoded` kept of the vectors: float32 [n, D]."""
        left = np.stack([self.words[group][residuals[:, group]] for group in range(len(self.words))], axis=1)
        vectors: np.ndarray = self.centroids[codes] + left.reshape(len(codes), self.rotation.shape[1]) @ self.rotation.T
        return vectors


def dealt(left: np.ndarray) -> np.ndarray:
    """Principal components of residuals [n, D] dealt to ⌈D / 4⌉ groups of like worth, the widest first: float32 [D, 8 · S].

    Of variance λ a component is worth ½ log₂(λ / θ) bits, θ such that all are worth 8 bits a group (reverse water-filling, Cover and
    Thomas 2006, §10.3.3); what is left over when all groups are full is not kept.

    >>> spread = np.diag([1.0, 2.0, 2.0, 64.0, 2.0, 2.0, 2.0, 2.0])  # rows are vectors along one direction each
    >>> (dealt(spread) != 0).sum(axis=0).reshape(2, 8).sum(axis=1).tolist()
    [2, 6]
    """
    width = left.shape[1]
    groups = -(-width // 4)
    variances, directions = (part[..., ::-1] for part in np.linalg.eigh(left.T.astype(np.float64) @ left))
    worth = _worth(np.maximum(variances, 1e-30), BITS * groups)
    rotation, place, open_bits = np.zeros((width, GROUP * groups), np.float32), 0, float(worth.sum())
    for group in range(groups):
        held, slots = 0.0, 0
        while place < width and slots < GROUP and (slots == 0 or held + worth[place] / 2 <= open_bits / (groups - group)):
            rotation[:, GROUP * group + slots] = directions[:, place]
            held, slots, place = held + worth[place], slots + 1, place + 1
        open_bits -= held
    return rotation


def _worth(variances: np.ndarray, bits: int) -> np.ndarray:
    low, high = np.log2(variances.min()) - 2.0 * bits, np.log2(variances.max())
    for _ in range(60):
        level = (low + high) / 2
        worth: np.ndarray = np.maximum(np.log2(variances) - level, 0.0) / 2
        low, high = (level, high) if worth.sum() > bits else (low, level)
    return worth


def nearest(vectors: torch.Tensor, centroids: torch.Tensor) -> np.ndarray:
    """The nearest centroid of each vector, as near as bfloat16 products say where those are quick: [n, D], [C, D] -> int32 [n]."""
    kind = torch.bfloat16 if multiplies_bfloat16("cpu") else torch.float32
    half = (0.5 * centroids.double().square().sum(dim=1)).float().numpy()
    rows = max(64, 2**21 // max(len(centroids), 1))
    products, other = torch.empty(rows, len(centroids), dtype=kind), centroids.to(kind).T
    codes, place = np.empty(len(vectors), np.int32), torch.zeros(rows, vectors.shape[1], dtype=kind)
    for first in range(0, len(vectors), rows):
        part = vectors[first : first + rows]
        place[: len(part)] = part
        torch.mm(place, other, out=products)
        stored, shift = (bits(products), 16) if kind == torch.bfloat16 else (products.view(torch.int32).numpy(), 0)
        _nearest_rows(stored, np.int32(shift), half, codes[first : first + len(part)])
    return codes


@compiled(parallel=True, fastmath={"nnan", "nsz"})
def _nearest_rows(stored: Any, shift: Any, half: Any, codes: Any) -> None:
    for row in numba.prange(len(codes)):
        wide = np.empty(len(half), np.int32)
        for i in range(len(half)):
            wide[i] = np.int32(stored[row, i]) << shift
        values = wide.view(np.float32)
        best = np.float32(-np.inf)
        for i in range(len(half)):
            values[i] -= half[i]
            best = max(best, values[i])
        codes[row] = 0
        for i in range(len(half)):
            if values[i] == best:
                codes[row] = i
                break


@compiled()
def _add(vectors: Any, codes: Any, sums: Any) -> None:
    for row in range(len(codes)):
        for i in range(vectors.shape[1]):
            sums[codes[row], i] += vectors[row, i]


def _fitted_words(left: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Codewords of rotated residuals [n, 8 · S], by k-means in each group."""
    groups = left.shape[1] // GROUP
    start = np.sort(generator.choice(len(left), WORDS, replace=len(left) < WORDS))
    words = np.ascontiguousarray(left[start].reshape(WORDS, groups, GROUP).transpose(1, 0, 2))
    codes = np.empty((len(left), groups), np.uint8)
    for _ in range(2 * ROUNDS):
        _nearest_words(left, words.transpose(0, 2, 1).copy(), codes)
        for group in range(groups):
            own, counts = left[:, group * GROUP : (group + 1) * GROUP], np.bincount(codes[:, group], minlength=WORDS)
            sums = np.stack([np.bincount(codes[:, group], weights=own[:, i], minlength=WORDS) for i in range(GROUP)])
            words[group][counts > 0] = (sums[:, counts > 0] / counts[counts > 0]).T.astype(np.float32)
    return words


@compiled(parallel=True, fastmath={"nnan", "nsz"})
def _nearest_words(left: Any, words: Any, codes: Any) -> None:
    """The nearest codeword of each group: rotated residuals float32 [n, 8 · S], words [S, 8, 256] -> codes uint8 [n, S]."""
    for row in numba.prange(len(codes)):
        far, own = np.empty(WORDS, np.float32), left[row]
        for group in range(len(words)):
            far[:] = 0.0
            for slot in range(GROUP):
                value = own[GROUP * group + slot]
                for i in range(WORDS):
                    far[i] += (words[group, slot, i] - value) ** 2
            least = np.float32(np.inf)
            for i in range(WORDS):
                least = min(least, far[i])
            for i in range(WORDS):
                if far[i] == least:
                    codes[row, group] = i
                    break
