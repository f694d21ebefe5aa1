"""The contract of a representation, and how one is written row after row and opened again."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.artifacts import mapping
from moeir.artifacts.journals import HEADER, GrowingArray
from moeir.errors import ArtifactError, DataError
from moeir.kernels import full_precision as products


class Representation(ABC):
    """B texts as one expert sees them."""

    kind: ClassVar[str]
    files: ClassVar[dict[str, str]]  # tensor -> type on disk

    @abstractmethod
    def __len__(self) -> int:
        """B."""

    @abstractmethod
    def scores(self, documents: Self) -> Tensor:
        """Similarity of every query here with every document: [Q, N], float32."""

    @abstractmethod
    def paired(self, documents: Self) -> Tensor:
        """Similarity of text i here with document i: [B], float32."""

    @abstractmethod
    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        """The texts `rows` [n], in that order; differentiable. Of a `permutation` of all texts the device is not asked how much it is."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with every tensor changed (device, detach)."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Values times `factor`, which multiplies every score."""

    def positive(self) -> Self:
        """The same without weights of 0, where there can be any."""
        return self

    def unbounded(self) -> Self:
        """The same, of which nothing is known but its tensors: the bounds of one batch are not those of another in its form."""
        return self

    @classmethod
    @abstractmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Texts of several batches end to end."""

    @abstractmethod
    def columns(self) -> dict[str, Tensor]:
        """The tensors named in `files`."""

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return next(iter(self.columns().values())).device

    def starts_of_rows(self) -> Tensor | None:
        """[B+1] where each text begins in its columns, None where a text is one row."""
        return None

    def facts(self) -> dict[str, int]:
        """What the arrays do not say."""
        return {}

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: dict[str, Tensor], starts: Tensor | None, facts: dict[str, int]) -> Self:
        """The inverse of `columns`, `starts_of_rows` and `facts`."""

    def save(self, folder: Path) -> None:
        """Write to `folder`: `.npy` arrays and `shape.json`."""
        writer = Writer(folder)
        writer.append(self)
        writer.close()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Memory-mapped from `folder`."""
        try:
            arrays = {name: _mapped(folder / f"{name}.npy") for name in cls.files}
            starts = _mapped(folder / "starts.npy") if (folder / "starts.npy").exists() else None
            facts = json.loads((folder / "shape.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise ArtifactError(f"{folder}: cannot be read as a {cls.kind} representation: {problem}") from None
        return cls.from_arrays(arrays, starts, facts)


def _mapped(path: Path) -> Tensor:
    if path.stat().st_size <= HEADER:  # nothing cannot be mapped
        return torch.from_numpy(np.load(path, allow_pickle=False))
    return torch.from_numpy(mapping.opened(path))


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Scores are computed in float32 whoever asks, under autocast and where the process has allowed TF32 too."""
    return products.full_precision(device)


class Writer:
    """Appends representations of one kind to a folder; `marks` say how far it is, and open it again there."""

    def __init__(self, folder: Path, marks: dict[str, int] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._marks = folder, marks or {}
        self._arrays: dict[str, GrowingArray] = {}
        self._facts: dict[str, int] = {}

    def append(self, texts: Representation) -> None:
        """Write the next texts."""
        starts = texts.starts_of_rows()
        self._facts = texts.facts() | {"texts": self._facts.get("texts", self._marks.get("texts", 0)) + len(texts)}
        for name, column in texts.columns().items():
            stored = column.half() if texts.files[name] == "float16" else column
            if not torch.isfinite(stored).all():
                worst = float(column.detach().float().abs().nan_to_num(torch.inf).max())
                raise DataError(f"{self._folder.name}: a value of {worst:g} cannot be stored as {texts.files[name]}")
            self._array(name, texts.files[name], column.shape[1] if column.ndim == 2 else None).append(_numpy(stored))
        if starts is not None:
            array = self._array("starts", "int64", None)
            shift = self._arrays[next(iter(texts.files))].rows - int(starts[-1])
            block = _numpy(starts) + shift
            array.append(block if array.rows == 0 else block[1:])

    def _array(self, name: str, dtype: str, width: int | None) -> GrowingArray:
        if name not in self._arrays:
            self._arrays[name] = GrowingArray(self._folder / f"{name}.npy", dtype, width, self._marks.get(name, 0))
        return self._arrays[name]

    def flush(self) -> dict[str, int]:
        """Bring everything to disk; the marks to continue from."""
        for array in self._arrays.values():
            array.flush()
        return {**{name: array.rows for name, array in self._arrays.items()}, "texts": self._facts.get("texts", 0)}

    def close(self) -> None:
        """Settle headers and write `shape.json`."""
        for array in self._arrays.values():
            array.close()
        (self._folder / "shape.json").write_text(json.dumps(self._facts) + "\n", encoding="utf-8")


def _numpy(column: Tensor) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = column.detach().cpu().numpy()
    return values


def spans(starts: Tensor, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Where the parts of chosen texts lie: (positions [t], new starts [n+1]). `total` is t, where it is known: CUDA need not be asked.

    >>> spans(torch.tensor([0, 2, 3]), torch.tensor([1, 0]))
    (tensor([2, 0, 1]), tensor([0, 1, 3]))
    """
    lengths = starts.diff().index_select(0, rows)
    fresh = cumulate(lengths)
    owners = torch.repeat_interleave(torch.arange(len(rows), device=starts.device), lengths, output_size=total)
    moved = starts.index_select(0, rows) - fresh[:-1]
    return torch.arange(len(owners), device=starts.device) + moved.index_select(0, owners), fresh


def cumulate(lengths: Tensor) -> Tensor:
    """Where each of n stretches begins, and the last ends: lengths [n] -> [n+1].

    >>> cumulate(torch.tensor([2, 1]))
    tensor([0, 2, 3])
    """
    return F.pad(lengths.cumsum(0), (1, 0))
