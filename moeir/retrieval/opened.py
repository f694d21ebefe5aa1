"""Indexes of every expert with the checkpoint that encodes queries; indexes of disjoint documents are searched as one."""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from moeir import fusion, variants
from moeir.architectures.checkpoint import OpenCheckpoint, open_checkpoint
from moeir.artifacts import manifests
from moeir.backbones.precision import autocast, device_for, dtype_for
from moeir.errors import ArtifactError, UsageError
from moeir.indexes.base import Index
from moeir.indexes.exact_sum import summed
from moeir.records.runs import Run, id_order
from moeir.retrieval.fusing import exact_sum
from moeir.retrieval.merged import merged
from moeir.retrieval.speed import Speed

QUERIES_AT_ONCE = 256
Part: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]  # of each hit: query number, document row, score


@dataclass
class OpenIndex:
    """Indexes of every expert, and the checkpoint that encodes queries (None for BM25). `order` [N]: rank of each row by id."""

    paths: tuple[Path, ...]
    ids: list[str]
    engines: dict[str, Index]
    order: np.ndarray
    checkpoint: OpenCheckpoint | None
    dtype: torch.dtype
    device: str = "cpu"

    @property
    def label(self) -> str:
        """Name in messages."""
        return ", ".join(map(str, self.paths))

    def chosen(self, experts: Sequence[str]) -> list[str]:
        """Experts to search: all, or those given."""
        unknown = [name for name in experts if name not in self.engines]
        if unknown:
            raise UsageError(f"--expert {unknown[0]}: {self.label} has {', '.join(self.engines)}")
        return [name for name in self.engines if not experts or name in experts]

    @property
    def fusion(self) -> str:
        """Fusion spec that applies by default."""
        return "came-sum" if self.checkpoint is None else self.checkpoint.architecture.fusion

    @cached_property
    def rows(self) -> dict[str, int]:
        """Row of every document, by id."""
        return {name: row for row, name in enumerate(self.ids)}

    def search(
        self, queries: list[str], depth: int = 10, expert: str | None = None, fuse: str | None = None
    ) -> list[list[tuple[str, float]]]:
        """Top documents and scores for each query text, from one expert, or from all, fused as on the command line."""
        if depth < 1:
            raise UsageError(f"depth {depth}: expected at least 1")
        names = [str(number) for number in range(len(queries))]
        runs, _ = self.runs(names, queries, depth, self.chosen((expert,) if expert else ()), fuse or self.fusion)
        run = list(runs.values())[-1]
        return [run.hits(name) for name in names]

    def runs(
        self,
        names: list[str],
        queries: list[str],
        depth: int,
        experts: list[str],
        fuse: str,
        *,
        batch_size: int = QUERIES_AT_ONCE,
        speed: Speed | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> tuple[dict[str, Run], dict[str, Any]]:
        """One run per expert and, for several, `fused`; for an exact sum also the number of queries with proven top ranks.

        `latency` records the time of each step of each batch; `advance` is called with the number of finished queries.
        """
        exact, options = exact_sum(fuse)
        speed = Speed(self.device) if speed is None else speed
        engines = {name: self.engines[name] for name in experts}
        parts: dict[str, list[Part]] = {name: [] for name in [*experts, *(["fused"] if exact and len(experts) > 1 else [])]}
        proven = dict.fromkeys(sorted({min(10, depth), depth}), 0)
        for first, batch in self.encoded(queries, batch_size, speed):
            count = min(batch_size, len(queries) - first)
            with speed.step("search", count):
                lists = {name: engine.search(batch[name], depth) for name, engine in engines.items()}
                if "fused" in parts:
                    sums = summed(engines, {name: batch[name] for name in experts}, lists, **options)
                    proven = {size: proven[size] + int(sums.holds(size).sum()) for size in proven}
                    lists["fused"] = sums.rows, sums.scores
            for name, (rows, scores) in lists.items():
                query, rank = np.nonzero(rows >= 0)
                parts[name].append((query + first, rows[query, rank], scores[query, rank]))
            advance(count)
        runs = self._as_runs(names, parts)
        if len(runs) > 1 and not exact:
            with speed.step("fuse", len(queries)):
                runs["fused"] = fusion.fused(list(runs.values()), variants.bind("fusion", fuse), depth)
        return runs, {"proven": proven} if "fused" in parts else {}

    def encoded(self, queries: list[str], batch_size: int, speed: Speed) -> Iterator[tuple[int, Any]]:
        """Batches of queries in the form the engines take: (row of the first, expert -> queries)."""
        for first in range(0, len(queries), batch_size):
            batch = queries[first : first + batch_size]
            if self.checkpoint is None:
                yield first, dict.fromkeys(self.engines, batch)
            else:
                with speed.step("encode", len(batch)), autocast(self.dtype, str(self.checkpoint.device)):
                    encoded = self.checkpoint.encode(batch, "query")
                yield first, encoded

    def _as_runs(self, names: list[str], parts: Mapping[str, list[Part]]) -> dict[str, Run]:
        """Runs that share one list of ids, those of the retrieved documents."""
        columns = {name: [np.concatenate(column) for column in zip(*hits, strict=True)] for name, hits in parts.items()}
        rows = np.unique(np.concatenate([column[1] for column in columns.values()]))
        rows = rows[np.argsort(self.order[rows])]
        ids = [self.ids[row] for row in rows.tolist()]
        sorted_order = self.order[rows]
        runs = {}
        for name, (query, row, score) in columns.items():
            runs[name] = Run.from_columns(names, query, ids, np.searchsorted(sorted_order, self.order[row]), score, tag=name)
        return runs


def open_index(
    path: Path | str | Sequence[Path | str],
    *,
    model: Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    verified: bool = False,
) -> OpenIndex:
    """Open an index with its checkpoint, which is located along index → encodings → checkpoint.

    Several paths are parts of one collection, indexed separately with the same checkpoint; they are searched as one. The checksum of
    every file is verified unless `verified` says that the caller did.
    """
    paths = tuple(Path(one) for one in ([path] if isinstance(path, Path | str) else path))
    target = device_for(device)
    counts = [(manifests.read_manifest(one) if verified else manifests.verify(one, "index"))["counts"] for one in paths]
    _check_same(paths, counts)
    if model is not None and "checkpoint" not in counts[0]:
        raise UsageError(f"--model {model}: {paths[0]} reads its queries without one")
    ids = [manifests.read_lines(one / "ids.txt") for one in paths]
    parts = [_engines(one, facts["experts"], id_order(own), target) for one, facts, own in zip(paths, counts, ids, strict=True)]
    all_ids = [name for own in ids for name in own]
    _check_apart(paths, ids)
    order = id_order(all_ids)
    engines = dict(parts[0])
    if len(paths) > 1:
        engines = {name: merged([part[name] for part in parts], order, name) for name in parts[0]}
    checkpoint = _checkpoint(paths[0], counts[0]["checkpoint"], model, target) if "checkpoint" in counts[0] else None
    return OpenIndex(paths, all_ids, engines, order, checkpoint, dtype_for(dtype, target), target)


def _engines(path: Path, specs: Mapping[str, str], order: np.ndarray, device: str) -> dict[str, Index]:
    engines = {}
    for expert, spec in specs.items():
        variant = variants.find("indexes", variants.parse(spec).name)
        engine: type[Index] = getattr(importlib.import_module(variant.module), variant.symbol)
        engines[expert] = engine.open(path / expert, order=order, device=device)
    return engines


def _check_same(paths: Sequence[Path], counts: Sequence[Mapping[str, Any]]) -> None:
    """ArtifactError unless all indexes have the same checkpoint and engines."""
    for path, facts in zip(paths[1:], counts[1:], strict=True):
        if facts.get("checkpoint", {}).get("digest") != counts[0].get("checkpoint", {}).get("digest"):
            raise ArtifactError(f"{path}: made with another checkpoint than {paths[0]}; encode and index all parts with one")
        if facts["experts"] != counts[0]["experts"]:
            specs, first = (", ".join(f"{name}={spec}" for name, spec in one["experts"].items()) for one in (facts, counts[0]))
            raise ArtifactError(f"{path}: has {specs}; {paths[0]} has {first}; index all parts with the same --engine")


def _check_apart(paths: Sequence[Path], ids: Sequence[list[str]]) -> None:
    """ArtifactError if two indexes share a document."""
    for later, path in enumerate(paths):
        for earlier in range(later):
            if both := set(ids[earlier]).intersection(ids[later]):
                raise ArtifactError(f"{path}: document {min(both)!r} is in {paths[earlier]} too; parts of a collection share none")


def _checkpoint(path: Path, parent: Mapping[str, str], model: Path | None, device: str) -> OpenCheckpoint:
    folder = model or (path / parent["path"]).resolve()
    if not folder.is_dir():
        raise ArtifactError(f"{path}: the checkpoint it was made with is not at {folder}; say where it is with --model")
    digest = manifests.digest_of(manifests.verify(folder, "checkpoint")["files"])
    if digest != parent["digest"]:
        commands = f"moeir encode --model {folder} and moeir index"
        raise ArtifactError(f"{folder}: not the checkpoint {path} was made with; name that one with --model, or run {commands} again")
    return open_checkpoint(folder, device)
