"""The interface of a representation, and its files: appended text by text, opened memory-mapped."""

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.artifacts.array_folder import ArrayFolder
from moeir.artifacts.atomic_write import make_folder
from moeir.artifacts.journals import AppendableNpy
from moeir.errors import ArtifactError, DataError
from moeir.representations.evidence import Evidence, ExplainedDocuments

WIDTHS: dict[str, tuple[None, ...]] = {"vectors": (None,), "terms": (), "weights": ()}  # shape of a row, where several kinds share a tensor


class Representation(ABC):
    """One expert's encoding of B texts.

    A kind is one dataclass in a file of this folder, named as the kind; whatever depends on the kind is an attribute or a method here.
    Its fields are the tensors of `files`, one row per text (`PackedRepresentation`: several), and the numbers of `sizes`.
    """

    kind: ClassVar[str]
    files: ClassVar[dict[str, str]]  # tensor -> dtype on disk
    default_engine: ClassVar[str] = "scan"
    exported_as: ClassVar[str | None] = None  # dense, sparse or multivector; None: other engines cannot store it
    pruning_options: ClassVar[tuple[str, ...]] = ()  # the options that `prune` takes
    positive_scores_only: ClassVar[bool] = False  # documents that share nothing with a query, with a score of 0, are not retrieved
    packed: ClassVar[bool] = False  # a text has any number of rows in the tensors, from the one that `starts.npy` holds
    value_column: ClassVar[str] = "vectors"  # the tensor whose values scores are proportional to
    sizes: ClassVar[tuple[str, ...]] = ()  # the fields that the arrays do not hold, written to `shape.json`

    def __len__(self) -> int:
        """B."""
        return len(next(iter(self.columns().values())))

    @abstractmethod
    def scores(self, documents: Self) -> Tensor:
        """Similarity of every query (self) with every document: [Q, N], float32."""

    @abstractmethod
    def score_pairs(self, documents: Self) -> Tensor:
        """Similarity of text i (self) with document i: [B], float32."""

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        """The texts `rows` [n], in that order; differentiable. With `permutation`, `rows` holds every text once: no device sync."""
        return self.map(lambda column: column.index_select(0, rows))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `change` applied to every tensor (device, detach)."""
        return replace(self, **{name: change(column) for name, column in self.columns().items()})

    def scale(self, factor: float) -> Self:
        """A copy with values, and so all scores, multiplied by `factor`."""
        return replace(self, **{self.value_column: self.columns()[self.value_column] * factor})

    def drop_zero_weights(self) -> Self:
        """A copy without weights of 0, for kinds that can have them."""
        return self

    def drop_bounds(self) -> Self:
        """A copy without bounds such as `MultiVector.max_length`, which hold for one batch and not for the next of the same shape."""
        return self

    def prune(self, options: Mapping[str, Any]) -> Self:
        """Documents with fewer terms or vectors, by those of `pruning_options` that are given; other options change nothing."""
        return self

    def term_usage(self) -> tuple[Tensor, float] | None:
        """Mean absolute weight of every term over the texts [V], and terms per text; None for kinds without weighted terms."""
        return None

    def explain(self, documents: ExplainedDocuments) -> list[Evidence]:
        """What each document has in common with the query (self, one text); empty for a kind that has nothing to show."""
        return [{} for _ in range(documents.count)]

    def export_row(self, row: int) -> Any:
        """The values of one text for other engines: [D] or [M, D] of a vector or vectors, (terms, weights) of weighted terms."""
        raise NotImplementedError

    def vector_width(self) -> int | None:
        """D of the exported vectors, None for weighted terms."""
        return self.columns()["vectors"].shape[1] if "vectors" in self.files else None

    def check_finite(self, label: Callable[[int], str], *, stored: bool = False) -> None:
        """DataError for NaN or infinity, also in the dtype of its files if `stored`; `label` names a text by its number."""
        for name, column in self.columns().items():
            check_finite(column, self.text_starts(), label, self.files[name] if stored else "float32")

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The texts of several batches, end to end."""
        return replace(parts[0], **{name: torch.cat([part.columns()[name] for part in parts]) for name in cls.files})

    def columns(self) -> dict[str, Tensor]:
        """The tensors named in `files`."""
        return {name: getattr(self, name) for name in self.files}

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return next(iter(self.columns().values())).device

    def text_starts(self) -> Tensor | None:
        """First row of each text in the columns [B+1]; None if a text is one row."""
        return None

    def save(self, folder: Path) -> None:
        """Write to `folder`: `.npy` arrays and `shape.json`."""
        writer = RepresentationWriter(folder)
        writer.append(self)
        writer.close()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open the files of `folder`, memory-mapped; ArtifactError for arrays of another dtype or shape, or that disagree."""
        try:
            facts = dict(json.loads((folder / "shape.json").read_text(encoding="utf-8")))
            arrays, columns = ArrayFolder(folder), dict[str, Tensor]()
            rows, by = (None, "") if cls.packed else (facts["texts"], "shape.json")
            for name, dtype in cls.files.items():
                widths = WIDTHS[name] if name in WIDTHS else arrays[name].shape[1:]
                below = facts.get("vocabulary", 2**31) if name == "terms" else None
                columns[name] = torch.from_numpy(arrays.read(name, dtype, (rows, *widths), by=by, below=below))
                rows, by = len(columns[name]), by or f"{name}.npy"
            if cls.packed:
                columns["starts"] = torch.from_numpy(arrays.read_offsets("starts", facts["texts"], int(rows or 0), f"shape.json and {by}"))
            return cls(**columns, **{name: facts[name] for name in cls.sizes})
        except (OSError, ValueError, TypeError, LookupError) as problem:
            raise ArtifactError(f"{folder}: cannot be read as a {cls.kind} representation: {problem}") from None


class ByExpert(Mapping[str, Representation]):
    """A mapping of experts to their representations of the same B texts."""

    representations: dict[str, Representation]

    def __getitem__(self, expert: str) -> Representation:
        return self.representations[expert]

    def __iter__(self) -> Iterator[str]:
        return iter(self.representations)

    def __len__(self) -> int:
        return len(self.representations)

    @property
    def text_count(self) -> int:
        """Number of texts B."""
        return len(next(iter(self.representations.values())))

    @property
    def summary(self) -> str:
        """The number of texts, and the experts with their kinds."""
        return f"{self.text_count:,} texts, {', '.join(f'{name} {one.kind}' for name, one in self.items())}"


class PackedRepresentation(Representation):
    """A kind whose texts have any number of rows in the columns: text b has starts[b]:starts[b+1]. starts [B+1]."""

    starts: Tensor
    packed: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.starts) - 1

    def text_starts(self) -> Tensor:
        return self.starts

    def text_indices(self) -> Tensor:
        """Index of each row's text [rows]."""
        rows = len(next(iter(self.columns().values())))
        return torch.repeat_interleave(torch.arange(len(self), device=self.starts.device), self.starts.diff(), output_size=rows)

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        total = len(next(iter(self.columns().values()))) if permutation else None
        positions, starts = ragged_positions(self.starts, rows, total)
        return replace(super().map(lambda column: column.index_select(0, positions)), starts=starts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(super().map(change), starts=change(self.starts))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        return replace(super().concatenate(parts), starts=lengths_to_starts(torch.cat([part.starts.diff() for part in parts])))


def representation_class(kind: str) -> type[Representation]:
    """The class of a kind, from the file of its name: `exact-match` is in exact_match.py."""
    try:
        module = importlib.import_module(f"moeir.representations.{kind.replace('-', '_')}")
    except ModuleNotFoundError as problem:
        if not str(problem.name).startswith("moeir."):
            raise
        module = None
    for member in vars(module).values() if module else ():
        if isinstance(member, type) and issubclass(member, Representation) and getattr(member, "kind", None) == kind:
            return member
    raise ArtifactError(f"this version of moeir has no representation of kind {kind!r}")


class RepresentationWriter:
    """Appends representations of one kind to a folder; `row_counts` of an earlier `flush` resume it there."""

    def __init__(self, folder: Path, row_counts: dict[str, int] | None = None) -> None:
        make_folder(folder)
        self._folder, self._row_counts = folder, row_counts or {}
        self._arrays: dict[str, AppendableNpy] = {}
        self._metadata: dict[str, int] = {}

    def append(self, texts: Representation, label: Callable[[int], str] | None = None) -> None:
        """Append the next texts; `label` names one of them by its number in errors."""
        texts.check_finite(label or f"{self._folder.name}: text {{}}".format, stored=True)
        starts = texts.text_starts()
        count = self._metadata.get("texts", self._row_counts.get("texts", 0)) + len(texts)
        self._metadata = {name: getattr(texts, name) for name in texts.sizes} | {"texts": count}
        for name, column in texts.columns().items():
            stored = column.half() if texts.files[name] == "float16" else column
            self._array(name, texts.files[name], column.shape[1] if column.ndim == 2 else None).append(_to_numpy(stored))
        if starts is not None:
            array = self._array("starts", "int64", None)
            shift = self._arrays[next(iter(texts.files))].rows - int(starts[-1])
            block = _to_numpy(starts) + shift
            array.append(block if array.rows == 0 else block[1:])

    def _array(self, name: str, dtype: str, width: int | None) -> AppendableNpy:
        if name not in self._arrays:
            self._arrays[name] = AppendableNpy(self._folder / f"{name}.npy", dtype, width, self._row_counts.get(name, 0))
        return self._arrays[name]

    def flush(self) -> dict[str, int]:
        """Flush every array to disk; return the row counts to resume from."""
        for array in self._arrays.values():
            array.flush()
        return {**{name: array.rows for name, array in self._arrays.items()}, "texts": self._metadata.get("texts", 0)}

    def close(self) -> None:
        """Write the final `.npy` headers and `shape.json`."""
        for array in self._arrays.values():
            array.close()
        (self._folder / "shape.json").write_text(json.dumps(self._metadata) + "\n", encoding="utf-8")


def check_finite(column: Tensor, starts: Tensor | None, label: Callable[[int], str], dtype: str = "float32") -> None:
    """DataError if a number of a column would not be finite in `dtype`; text b has rows starts[b]:starts[b+1], or its one row."""
    finite = (column.half() if dtype == "float16" else column).isfinite()
    if bool(finite.all()):
        return
    row = int(finite.view(len(column), -1).all(1).int().argmin())
    value = float(column[row][~finite[row]].flatten()[0])
    text = row if starts is None else int(torch.searchsorted(starts, row, right=True)) - 1
    advice = "check the weights of the checkpoint, or try --dtype float32"
    raise DataError(f"{label(text)} holds {'NaN' if value != value else f'{value:g}'}, which is no finite {dtype} number; {advice}")


def _to_numpy(column: Tensor) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = column.detach().cpu().numpy()
    return values


def ragged_positions(starts: Tensor, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Row indices of the selected texts, end to end: (positions [t], new starts [n+1]). Passing `total` = t saves a CUDA sync.

    >>> ragged_positions(torch.tensor([0, 2, 3]), torch.tensor([1, 0]))
    (tensor([2, 0, 1]), tensor([0, 1, 3]))
    """
    lengths = starts.diff().index_select(0, rows)
    new_starts = lengths_to_starts(lengths)
    text_indices = torch.repeat_interleave(torch.arange(len(rows), device=starts.device), lengths, output_size=total)
    shifts = starts.index_select(0, rows) - new_starts[:-1]
    return torch.arange(len(text_indices), device=starts.device) + shifts.index_select(0, text_indices), new_starts


def lengths_to_starts(lengths: Tensor) -> Tensor:
    """Exclusive prefix sums: lengths [n] -> starts [n+1].

    >>> lengths_to_starts(torch.tensor([2, 1]))
    tensor([0, 2, 3])
    """
    return F.pad(lengths.cumsum(0), (1, 0))
