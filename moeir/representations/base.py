"""The interface of a representation, and its files: appended text by text, opened memory-mapped."""

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
from moeir.kernels import full_precision as kernel


class Representation(ABC):
    """One expert's encoding of B texts."""

    kind: ClassVar[str]
    files: ClassVar[dict[str, str]]  # tensor -> dtype on disk

    @abstractmethod
    def __len__(self) -> int:
        """B."""

    @abstractmethod
    def scores(self, documents: Self) -> Tensor:
        """Similarity of every query (self) with every document: [Q, N], float32."""

    @abstractmethod
    def paired(self, documents: Self) -> Tensor:
        """Similarity of text i (self) with document i: [B], float32."""

    @abstractmethod
    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        """The texts `rows` [n], in that order; differentiable. With `permutation`, `rows` holds every text once: no device sync."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `change` applied to every tensor (device, detach)."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """A copy with values, and so all scores, multiplied by `factor`."""

    def positive(self) -> Self:
        """A copy without weights of 0, for kinds that can have them."""
        return self

    def unbounded(self) -> Self:
        """A copy without bounds such as `MultiVector.max_length`, which hold for one batch and not for the next of the same shape."""
        return self

    @classmethod
    @abstractmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The texts of several batches, end to end."""

    @abstractmethod
    def columns(self) -> dict[str, Tensor]:
        """The tensors named in `files`."""

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return next(iter(self.columns().values())).device

    def starts_of_rows(self) -> Tensor | None:
        """First row of each text in the columns [B+1]; None if a text is one row."""
        return None

    def facts(self) -> dict[str, int]:
        """Numbers that the arrays do not hold, written to `shape.json`."""
        return {}

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: dict[str, Tensor], starts: Tensor | None, facts: dict[str, int]) -> Self:
        """The inverse of `columns`, `text_starts` and `metadata`."""

    def save(self, folder: Path) -> None:
        """Write to `folder`: `.npy` arrays and `shape.json`."""
        writer = Writer(folder)
        writer.append(self)
        writer.close()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the files of `folder`, memory-mapped."""
        try:
            arrays = {name: _mapped(folder / f"{name}.npy") for name in cls.files}
            starts = _mapped(folder / "starts.npy") if (folder / "starts.npy").exists() else None
            facts = json.loads((folder / "shape.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise ArtifactError(f"{folder}: cannot be read as a {cls.kind} representation: {problem}") from None
        return cls.from_arrays(arrays, starts, facts)


def _mapped(path: Path) -> Tensor:
    if path.stat().st_size <= HEADER:  # an empty file cannot be mapped
        return torch.from_numpy(np.load(path, allow_pickle=False))
    return torch.from_numpy(mapping.opened(path))


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Context for computing scores in float32, even under autocast or with TF32 allowed."""
    return kernel.full_precision(device)


class Writer:
    """Appends representations of one kind to a folder; `row_counts` of an earlier `flush` resume it there."""

    def __init__(self, folder: Path, marks: dict[str, int] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._marks = folder, marks or {}
        self._arrays: dict[str, GrowingArray] = {}
        self._facts: dict[str, int] = {}

    def append(self, texts: Representation) -> None:
        """Append the next texts."""
        starts = texts.starts_of_rows()
        self._facts = texts.facts() | {"texts": self._facts.get("texts", self._marks.get("texts", 0)) + len(texts)}
        for name, column in texts.columns().items():
            stored = column.half() if texts.files[name] == "float16" else column
            if not torch.isfinite(stored).all():
                largest = float(column.detach().float().abs().nan_to_num(torch.inf).max())
                raise DataError(f"{self._folder.name}: a value of {largest:g} cannot be stored as {texts.files[name]}")
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
        """Flush every array to disk; return the row counts to resume from."""
        for array in self._arrays.values():
            array.flush()
        return {**{name: array.rows for name, array in self._arrays.items()}, "texts": self._facts.get("texts", 0)}

    def close(self) -> None:
        """Write the final `.npy` headers and `shape.json`."""
        for array in self._arrays.values():
            array.close()
        (self._folder / "shape.json").write_text(json.dumps(self._facts) + "\n", encoding="utf-8")


def _numpy(column: Tensor) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = column.detach().cpu().numpy()
    return values


def spans(starts: Tensor, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Row indices of the selected texts, end to end: (positions [t], new starts [n+1]). Passing `total` = t saves a CUDA sync.

    >>> ragged_positions(torch.tensor([0, 2, 3]), torch.tensor([1, 0]))
    (tensor([2, 0, 1]), tensor([0, 1, 3]))
    """
    lengths = starts.diff().index_select(0, rows)
    new_starts = cumulate(lengths)
    text_indices = torch.repeat_interleave(torch.arange(len(rows), device=starts.device), lengths, output_size=total)
    shifts = starts.index_select(0, rows) - new_starts[:-1]
    return torch.arange(len(text_indices), device=starts.device) + shifts.index_select(0, text_indices), new_starts


def cumulate(lengths: Tensor) -> Tensor:
    """Exclusive prefix sums: lengths [n] -> starts [n+1].

    >>> lengths_to_starts(torch.tensor([2, 1]))
    tensor([0, 2, 3])
    """
    return F.pad(lengths.cumsum(0), (1, 0))
