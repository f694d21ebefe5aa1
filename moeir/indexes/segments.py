"""The folder of an index: segments of documents in their order of addition, and which of their rows are deleted.

A new index is one segment: `ids.txt`, and for each expert a folder with the files of its engine. An updated index has a folder for each
segment (`segment-0`, …) and `deleted.npy`, the deleted rows int64, ascending, counted over all segments. Files of a segment never change,
so an update links to them.
"""

import importlib
import logging
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from moeir import variants
from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder
from moeir.artifacts.atomic_write import link_file
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes.base import INDEX_AGAIN, Index
from moeir.records.ids import IdColumn

DELETED, IDS_FILE = "deleted", "ids.txt"
ROWS_AT_ONCE = 2**14
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexFolder:
    """An index on disk: the engine of each expert, the segments, the ids of each one's documents, and which rows are deleted."""

    path: Path
    engines: Mapping[str, str]
    segments: tuple[Path, ...]
    segment_ids: tuple[IdColumn, ...]
    is_deleted: np.ndarray  # bool, of each row of all segments

    @classmethod
    def read(cls, path: Path, counts: Mapping[str, Any]) -> Self:
        """The index at `path`; `counts` are those of its manifest. ArtifactError if its files disagree."""
        is_updated, count = "segments" in counts, counts.get("segments")
        if is_updated and (type(count) is not int or count < 1):
            raise ArtifactError(f"{path}/manifest.json: segments is {count!r}, expected a whole number from 1 on; {INDEX_AGAIN}")
        segments = (path / f"segment-{number}" for number in range(counts["segments"])) if is_updated else (path,)
        ids_of = {segment: IdColumn.read(segment / IDS_FILE) for segment in segments}  # one by one: the first that is missing ends it
        is_deleted = np.zeros(sum(map(len, ids_of.values())), dtype=bool)
        if is_updated:
            arrays = ArrayFolder(path, INDEX_AGAIN)
            is_deleted[arrays.read(DELETED, np.int64, (counts["deleted"],), by="manifest.json", below=len(is_deleted))] = True
            if is_deleted.sum() != counts["deleted"]:
                arrays.refuse(DELETED, f"{counts['deleted']} different rows", f"{is_deleted.sum()}")
        return cls(path, counts["experts"], tuple(ids_of), tuple(ids_of.values()), is_deleted)

    @cached_property
    def rows(self) -> np.ndarray:
        """The rows that are not deleted, int64 [N], ascending."""
        return np.flatnonzero(~self.is_deleted)

    @cached_property
    def ids(self) -> IdColumn:
        """The ids of the documents that are not deleted [N]."""
        return IdColumn.concatenate(self.segment_ids).select(self.rows)

    def delete(self, ids: Collection[str]) -> Self:
        """The index without the documents of these ids; ids that it does not have change nothing."""
        row_by_id = dict(zip(self.ids, self.rows.tolist(), strict=True))
        is_deleted = self.is_deleted.copy()
        is_deleted[[row_by_id[name] for name in ids if name in row_by_id]] = True
        return replace(self, is_deleted=is_deleted)

    def check_updates(self) -> None:
        """UsageError if the engine of an expert takes no updates."""
        for expert, spec in self.engines.items():
            if not variants.bind_variant("indexes", spec)().takes_updates:
                raise UsageError(f"{self.path}: {expert} is searched by {spec}, which takes no updates; index all documents again")

    @property
    def takes_segments(self) -> bool:
        """Whether documents can be added as a segment: no engine's scores depend on which documents are indexed together."""
        return not any(variants.bind_variant("indexes", spec)().scores_depend_on_others for spec in self.engines.values())

    def link_segments(self, folder: Path, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Make the segments part of another index, as hard links where the file system has them.

        `entries` are those of the index's manifest; returns those of the links.
        """
        new_segment = "segment-0/" if self.segments == (self.path,) else ""
        names = {name: new_segment + name for name in entries if name != f"{DELETED}.npy"}
        for name, new_name in names.items():
            link_file(self.path / name, folder / new_name)
        return {new_name: entries[name] for name, new_name in names.items()}

    def write_deleted(self, folder: Path) -> int:
        """Write the deleted rows; returns their number."""
        deleted = np.flatnonzero(self.is_deleted)
        memmap.save_array(folder / f"{DELETED}.npy", deleted)
        return len(deleted)

    def documents(self, expert: str, folder: Path) -> Iterator[Any]:
        """The documents of an expert as its engine's `add` takes them; representations are written to `folder` and memory-mapped."""
        from moeir.representations.base import Representation, RepresentationWriter

        stored = self._stored_documents(expert)
        for first in stored:
            if not isinstance(first, Representation):
                yield first
                continue
            writer = RepresentationWriter(folder)
            for part in chain([first], stored):
                writer.append(part)
            writer.close()
            yield type(first).open(folder)

    def _stored_documents(self, expert: str) -> Iterator[Any]:
        first = 0
        for segment, ids in zip(self.segments, self.segment_ids, strict=True):
            rows = self.rows[slice(*np.searchsorted(self.rows, [first, first + len(ids)]))] - first
            engine = open_engine(segment, expert, self.engines[expert])
            for begin in range(0, len(rows), ROWS_AT_ONCE):
                yield engine.stored_documents(rows[begin : begin + ROWS_AT_ONCE])
            first += len(ids)


def check_ids(source: str, ids: Collection[str], known: Container[str], label: str, *, may_be_new: bool = False) -> None:
    """Warn of ids that an index does not have; DataError if it has none of them, unless they `may_be_new`."""
    unknown = [name for name in ids if name not in known]
    if unknown and len(unknown) == len(ids) and not may_be_new:
        raise DataError(f"{source}: none of its ids is in {label}, such as {unknown[0]!r}; expected ids of its documents")
    if unknown:
        log.warning("%s: %d of %d ids are not in %s, such as %r; they are left out", source, len(unknown), len(ids), label, unknown[0])


def open_engine(segment: Path, expert: str, spec: str, id_ranks: np.ndarray | None = None, device: str = "cpu") -> Index:
    """Open the index of one expert, of a new index or a segment; ArtifactError if this version has no such engine."""
    try:
        variant = variants.find_variant("indexes", variants.parse_spec(spec).name)
    except UsageError as problem:
        raise ArtifactError(f"{segment}: {problem}") from None
    engine: type[Index] = getattr(importlib.import_module(variant.module), variant.symbol)
    return engine.open(segment / expert, id_ranks=id_ranks, device=device)
