"""Exact late interaction: every query token meets every token of every document (Khattab and Zaharia 2020, eq. 3)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from moeir.indexes.base import Index
from moeir.indexes.candidates import UNDERFLOW, Block, Pool, TwoStep, dots, halved, rounding, slices
from moeir.indexes.storage import Vectors


class MaxSim(TwoStep, Index):
    """Exact MaxSim over all documents, on any device.

    Document vectors are kept as float16, as encodings hold them; queries stay float32. The score is the float64 sum over
    the query's tokens of the largest exact inner product, rounded to float32. The second step does not multiply
    everything again in float64: of each query token's products with a document only those whose float32 value lies
    within twice its rounding bound of the largest can be the largest, mostly one. A document without tokens is never
    found, a query without tokens finds nothing.
    """

    kind: ClassVar[str] = "multivector"

    def __init__(self, order: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(order, device)
        self._vectors = Vectors(self._device)
        self._starts = torch.zeros(1, dtype=torch.int64)
        self._by_length: tuple[torch.Tensor, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    def add(self, shard: Any) -> None:
        rows, starts = len(self), shard.starts.cpu().long()

        def owner(token: int) -> str:
            row = int(torch.searchsorted(starts, token, right=True)) - 1
            return f"row {rows + row}: its token vector {token - int(starts[row])}"

        self._vectors.add(shard.vectors[: int(starts[-1])], owner)
        self._starts = torch.cat([self._starts, self._starts[-1] + starts[1:]])
        self.longest, self._by_length = self._vectors.longest, None

    def settings(self) -> dict[str, Any]:
        extent = {"dimension": self._vectors.width, "vectors": len(self._vectors), "longest": self.longest}
        return {**super().settings(), **extent}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"starts": self._starts.numpy()}

    def save(self, folder: Path | str) -> None:
        super().save(folder)
        self._vectors.save(Path(folder) / "vectors.npy")

    def _restore(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        self._starts = torch.from_numpy(np.asarray(arrays["starts"]))
        self._vectors.restore(arrays["vectors"], settings["longest"])
        self.longest = self._vectors.longest
        if int(self._starts[-1]) != len(self._vectors):
            raise ValueError(f"{len(self._vectors)} vectors, starts.npy counts {int(self._starts[-1])}")

    def _blocks(self, queries: Any) -> Iterator[Block]:
        self._vectors.check_width(queries.vectors.shape[1])
        starts = queries.starts.cpu()
        lengths = starts.diff()
        lines = lengths.argsort(stable=True)
        lines = lines[lengths[lines] > 0]
        step = self.queries_at_once or (128 if self._device.type == "cuda" else 32)
        for part in (lines[cut] for cut in slices(len(lines), step)):
            positions, real = spread(starts[part], lengths[part])
            vectors = queries.vectors.detach()[positions.to(queries.vectors.device)].to(self._device).float()
            yield Block(part.numpy(), vectors.masked_fill(~real[..., None].to(self._device), 0.0))  # 0 before the sum

    def _documents(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Their tokens float16 [N, M, D], the last repeated as padding, and which are real, bool [N, M]."""
        positions, real = spread(self._starts[rows], self._starts[rows + 1] - self._starts[rows])
        return self._vectors[positions.flatten()].view(*positions.shape, -1), real.to(self._device)

    def _scan(self, block: Block, pool: Pool) -> None:
        queries = block.vectors.flatten(0, 1)                                       # [Q * L, D]
        rows, lengths = self._sorted()
        for first, last in stretches(lengths, self.elements_at_once // max(queries.shape), self.documents_at_once):
            documents, _ = self._documents(rows[first:last])
            similarity = documents.flatten(0, 1).float() @ queries.T                # [N * M, Q * L]
            best = similarity.view(*documents.shape[:2], -1).amax(dim=1)            # [N, Q * L]; repeats never win alone
            pool.push(best.view(len(best), *block.vectors.shape[:2]).sum(dim=2).T, rows[first:last].to(self._device))

    def _exact(self, block: Block, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.empty(len(rows), dtype=torch.float64, device=self._device)
        rows = rows.cpu()
        lengths = self._starts[rows + 1] - self._starts[rows]
        ends = torch.bincount(query.cpu(), minlength=len(block.lines)).cumsum(0).tolist()
        for line, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            members = begin + lengths[begin:end].argsort(stable=True)
            for first, last in stretches(lengths[members].numpy(), self.pairs_at_once(self._vectors.width), None):
                part = members[first:last]
                documents, real = self._documents(rows[part])
                scores[part.to(self._device)] = self._pairs(block.vectors[line], documents, real)
        return scores

    def _findable(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = self._starts.diff().numpy()[rows] > 0
        return found

    def _pairs(self, query: torch.Tensor, documents: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """query [L, D], documents [N, M, D], real [N, M] -> float64 [N]."""
        query = query[query.any(dim=1)]  # a token of zeros, padding or not, adds exactly 0
        rough = documents.float() @ query.T                                        # [N, M, L]
        bound = 2.0 * (rounding(query.shape[1] + 8) * query.double().norm(dim=1) * self.longest + UNDERFLOW)
        near = (rough >= (rough.amax(dim=1, keepdim=True).double() - bound).float()) & real[..., None]
        document, position, token = near.nonzero(as_tuple=True)
        products = torch.empty(len(token), dtype=torch.float64, device=self._device)
        for part in slices(len(token), self.pairs_at_once(query.shape[1])):
            products[part] = dots(query[token[part]], documents[document[part], position[part]])
        best = products.new_full((len(documents) * len(query),), float("-inf"))     # −∞ before the maximum
        best.scatter_reduce_(0, document * len(query) + token, products, "amax")
        return halved(best.view(len(documents), len(query)))

    def _sorted(self) -> tuple[torch.Tensor, np.ndarray]:
        """Rows of documents with tokens, shortest first, and their lengths."""
        if self._by_length is None:
            lengths = self._starts.diff()
            rows = lengths.argsort(stable=True)
            rows = rows[lengths[rows] > 0]
            self._by_length = rows, lengths[rows].numpy()
        return self._by_length


def spread(starts: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions int64 [B, L] of the tokens of packed texts, the last one repeated, and which are real.

    >>> spread(torch.tensor([0, 2]), torch.tensor([2, 3]))[0].tolist()
    [[0, 1, 1], [2, 3, 4]]
    """
    steps = torch.arange(int(lengths.max()))
    real = steps < lengths[:, None]
    return starts[:, None] + steps.minimum(lengths[:, None] - 1), real


def stretches(lengths: np.ndarray, tokens: int, documents: int | None) -> Iterator[tuple[int, int]]:
    """Cut ascending lengths [N] into stretches that fit `tokens` when padded, each at least one document.

    >>> list(stretches(np.array([1, 2, 2, 5]), 6, None))
    [(0, 3), (3, 4)]
    """
    first = 0
    while first < len(lengths):
        widest = max(1, tokens // int(lengths[first]))
        ahead = lengths[first : first + min(widest, documents or widest)]
        last = first + max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), tokens, side="right")))
        yield first, last
        first = last
