"""Searcher: the indexes of all experts with the checkpoint that encodes queries; fusion by a formula or by the exact sum.

Indexes of the parts of a collection are searched as one, with exactly the results of one index of all documents; BM25 beside a
checkpoint's index of the same documents is one more expert.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from moeir import variants
from moeir.artifacts import manifests
from moeir.artifacts.identity import read_unchanged
from moeir.errors import ArtifactError, UsageError
from moeir.fusion import FUSED, formulas
from moeir.indexes.base import INDEX_AGAIN, NO_ROW, Index, SearchableIndex, fill_all_ranked_hits
from moeir.indexes.exact_sum import fuse_exact
from moeir.indexes.subset import SubsetIndex, check_ids
from moeir.parsing import check_count
from moeir.records.ids import IdColumn
from moeir.records.passages import collapse_ids
from moeir.records.runs import Run, id_ranks
from moeir.records.texts import parse_id, parse_string, read_id_list
from moeir.retrieval.latency import LatencyRecorder

if TYPE_CHECKING:
    import torch

    from moeir.architectures.checkpoint import RetrievalModel

QUERIES_PER_BATCH = 256
FUSION_DEPTH = 1000  # documents of each list that `search` fuses
HitColumns: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]  # of each hit: query number, document row, score


def is_exact_sum(spec: str) -> bool:
    """Whether a spec names the exact sum, which needs the engines; UsageError for an unknown spec."""
    return variants.resolve_spec("fusion", spec)[0].name == "exact-sum"


@dataclass
class Searcher:
    """Indexes of every expert, and the checkpoint that encodes queries (None for BM25). `order` [N]: rank of each row by id."""

    paths: tuple[Path, ...]
    ids: IdColumn
    engines: dict[str, SearchableIndex]
    order: np.ndarray
    checkpoint: "RetrievalModel | None"
    dtype: "torch.dtype | None"  # of the checkpoint's matrix products
    device: str = "cpu"

    @property
    def label(self) -> str:
        """Name in messages."""
        return ", ".join(map(str, self.paths))

    def select_experts(self, experts: Sequence[str]) -> list[str]:
        """Experts to search: all, or those given."""
        unknown = [name for name in experts if name not in list(self.engines)]
        if unknown:
            raise UsageError(f"--expert {unknown[0]}: {self.label} has {', '.join(self.engines)}")
        return [name for name in self.engines if not experts or name in experts]

    @property
    def default_fusion(self) -> str:
        """Fusion spec that applies by default: by ranks where BM25, whose scores have another scale, is beside a checkpoint's experts."""
        if self.checkpoint is None:
            return "came-sum"
        return "rrf" if any(engine.kind == "text" for engine in self.engines.values()) else self.checkpoint.architecture.default_fusion

    @cached_property
    def row_by_id(self) -> dict[str, int]:
        """Row of every document, by id."""
        return {name: row for row, name in enumerate(self.ids)}

    def filter_ids(self, ids: Iterable[str | int] | Path, source: str = "filter_ids") -> "Searcher":
        """Search among the documents of these ids only: rankings are those of an index of them, with the statistics of the whole one.

        Ids that the index does not have are left out, with a warning; DataError if it has none of them. A path is that of a file
        with one in each line. `source` is named in messages.
        """
        if isinstance(ids, str | Path):
            ids, source = read_id_list(ids), str(ids)
        wanted = dict.fromkeys(parse_id(name, source) for name in ids)
        check_ids(source, wanted, self.row_by_id, self.label)
        return self._select_rows(np.array(sorted(self.row_by_id[name] for name in wanted if name in self.row_by_id), dtype=np.int64))

    def collapse_passages(self) -> "Searcher":
        """Search for the documents of an index of passages, `ID#NUMBER`: each scores as its best passage, before fusion and for filters."""
        ids, documents = collapse_ids(self.ids.byte_strings, self.label)
        ranks, engines = np.arange(len(ids)), dict[str, SearchableIndex]()
        engines |= {name: SubsetIndex(engine, documents, ranks) for name, engine in self.engines.items()}
        return replace(self, ids=ids, engines=engines, order=ranks)

    def _select_rows(self, rows: np.ndarray) -> "Searcher":
        """A searcher of some documents [n], ascending."""
        order = np.empty(len(rows), dtype=np.int64)
        order[np.argsort(self.order[rows])] = np.arange(len(rows))
        documents = np.full(len(self.ids), NO_ROW, dtype=np.int64)
        documents[rows] = np.arange(len(rows))
        engines: dict[str, SearchableIndex] = {name: SubsetIndex(engine, documents, order) for name, engine in self.engines.items()}
        return replace(self, ids=self.ids.select(rows), engines=engines, order=order)

    def add_experts(self, other: "Searcher") -> "Searcher":
        """A searcher with the experts of another one too, which has no checkpoint; ArtifactError for other documents or equal experts."""
        if shared := next((name for name in other.engines if name in self.engines), None):
            raise ArtifactError(f"{other.label}: has an expert {shared}, as {self.label} has; name one of them")
        if self.ids != other.ids:
            expected = "expected indexes of one corpus, in its order"
            raise ArtifactError(f"{other.label}: has other documents than {self.label}, or the same in another order; {expected}")
        return replace(self, paths=(*self.paths, *other.paths), engines={**self.engines, **other.engines})

    def __repr__(self) -> str:
        return f"Searcher({self.label}: {len(self.ids):,} documents, {', '.join(self.engines)})"

    def __fspath__(self) -> str:
        if len(self.paths) > 1:
            raise UsageError(f"{self.label}: parts of a collection; name their paths one by one")
        return str(self.paths[0])

    @overload
    def search(
        self, queries: Iterable[str], depth: int = ..., expert: str | None = ..., fuse: str | None = ..., *, ids: None = ...
    ) -> list[list[tuple[str, float]]]: ...

    @overload
    def search(
        self, queries: Iterable[str], depth: int = ..., expert: str | None = ..., fuse: str | None = ..., *, ids: Iterable[str | int]
    ) -> Run: ...

    def search(
        self,
        queries: Iterable[str],
        depth: int = 10,
        expert: str | None = None,
        fuse: str | None = None,
        *,
        ids: Iterable[str | int] | None = None,
    ) -> list[list[tuple[str, float]]] | Run:
        """Top documents and scores for each query text, from one expert, or from all, fused as on the command line.

        With `ids`, the queries' ids, the result is a run, which `moeir.evaluate` and `moeir.write_run` take. What is fused are lists of
        at least 1,000 documents, as by `moeir search`, so that the first ranks do not depend on `depth`.
        """
        depth = check_count(depth, "depth")
        if isinstance(queries, str | Mapping) or not isinstance(queries, Iterable):
            raise UsageError(f"search: expected a list of query texts, found one {type(queries).__name__}")
        contents = [str(parse_string(text, f"search: query {number}")) for number, text in enumerate(queries, 1)]
        names = list(map(str, range(len(contents)))) if ids is None else [parse_id(name, "search: ids") for name in ids]
        if not len(set(names)) == len(names) == len(contents):
            raise UsageError(f"search: expected {len(contents)} different ids, one for each query, found {len(set(names))}")
        if not contents:
            raise UsageError("search: expected at least one query")
        experts = self.select_experts((expert,) if expert else ())
        list_depth = depth if len(experts) == 1 else max(depth, FUSION_DEPTH)
        runs = self.search_runs(names, contents, list_depth, experts, str(fuse or self.default_fusion))
        run = list(runs.values())[-1].top(depth)
        return [run.hits(name) for name in names] if ids is None else run

    def search_runs(
        self,
        names: list[str],
        queries: list[str],
        depth: int,
        experts: list[str],
        fuse: str,
        *,
        batch_size: int = QUERIES_PER_BATCH,
        encoded: Iterable[tuple[int, Any]] | None = None,
        latency: LatencyRecorder | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> dict[str, Run]:
        """One run per expert and, for several, `fused`.

        `encoded` are the queries as `encode_batches` gives them, if they are encoded already. `latency` records the time of each step of
        each batch; `advance` is called with the number of finished queries.
        """
        exact = is_exact_sum(fuse)
        latency = LatencyRecorder(self.device) if latency is None else latency
        engines = {name: self.engines[name] for name in experts}
        parts: dict[str, list[HitColumns]] = {name: [] for name in [*experts, *([FUSED] if exact and len(experts) > 1 else [])]}
        for first, batch in self.encode_batches(queries, batch_size, latency, experts) if encoded is None else encoded:
            count = len(batch[experts[0]])
            with latency.time_step("search", count):
                lists = {name: engine.search(batch[name], depth) for name, engine in engines.items()}
                for name in engines:
                    self._check_hits(name, lists[name], (count, min(depth, len(self.ids))))
                if FUSED in parts:
                    lists[FUSED] = fuse_exact(engines, {name: batch[name] for name in experts}, lists)
            for name, (rows, scores) in lists.items():
                query, rank = np.nonzero(rows >= 0)
                parts[name].append((query + first, rows[query, rank], scores[query, rank]))
            advance(count)
        runs = self._build_runs(names, parts, depth)
        if len(runs) > 1 and not exact:
            with latency.time_step("fuse", len(queries)):
                runs[FUSED] = formulas.fuse_runs(list(runs.values()), variants.bind_variant("fusion", fuse), depth)
        return runs

    def _check_hits(self, name: str, hits: tuple[np.ndarray, np.ndarray], shape: tuple[int, int]) -> None:
        """UsageError if what an engine found, which may be own code, is not rows and scores [Q, K]."""
        rows, scores = hits
        if rows.shape != shape or scores.shape != shape or np.isnan(scores).any() or rows.max(initial=NO_ROW) >= len(self.ids):
            result = f"rows {rows.shape} up to {rows.max(initial=NO_ROW)} and scores {scores.shape}, {np.isnan(scores).sum()} of them NaN"
            shapes = f"{shape}, queries and documents: rows below {len(self.ids)} and numbers, and {NO_ROW} and −∞ after the last hit"
            raise UsageError(f"{name}: its engine returned {result}; expected {shapes}")

    def encode_batches(
        self, queries: list[str], batch_size: int, speed: LatencyRecorder, experts: Collection[str] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Batches of queries in the form the engines take: (row of the first, expert -> queries); of all experts or some."""
        wanted = list(self.engines if experts is None else experts)
        models = [name for name in wanted if self.engines[name].kind != "text"]
        for first in range(0, len(queries), batch_size):
            batch = queries[first : first + batch_size]
            by_expert: dict[str, Any] = dict.fromkeys(wanted, batch)
            if models and self.checkpoint is not None:
                from moeir.backbones.device import autocast

                with speed.time_step("encode", len(batch)), autocast(self.dtype, str(self.checkpoint.device)):
                    encoded = self.checkpoint.encode(batch, "query", experts=models)
                by_expert |= {name: encoded[name] for name in models}
            yield first, by_expert

    def _build_runs(self, names: list[str], parts: Mapping[str, list[HitColumns]], depth: int) -> dict[str, Run]:
        """Runs that share one list of ids, those of the retrieved documents."""
        columns = {name: [np.concatenate(column) for column in zip(*hits, strict=True)] for name, hits in parts.items()}
        rows = np.unique(np.concatenate([column[1] for column in columns.values()]))
        rows = rows[np.argsort(self.order[rows])]
        ids = list(self.ids.select(rows))
        codes, runs = np.empty(len(self.ids), np.int32), {}  # codes of other rows are not read
        codes[rows] = np.arange(len(rows))
        for name, (query, row, score) in columns.items():
            runs[name] = Run.from_columns(names, query, ids, codes[row], score, tag=name, depth=depth)
        return runs


@read_unchanged
def open_index(
    path: Path | str | Sequence[Path | str],
    *,
    model: Path | str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    verified: bool = False,
    prompt: str | None = None,
) -> Searcher:
    """Open an index with its checkpoint, which is located along index → encodings → checkpoint.

    Several paths are parts of one collection, indexed separately with the same checkpoint; they are searched as one. An index without a
    checkpoint (BM25) beside others is one more expert, of the same documents. The checksum of
    every file is verified unless `verified` says that the caller did. `model` is the checkpoint if it has moved, or a calibrated one.
    Queries have the checkpoint's query prefix, or the `prompt` of this name.
    """
    paths = tuple(Path(one) for one in ([path] if isinstance(path, Path | str) else path))
    if not paths:
        raise UsageError("open_index: expected the path of an index, or several")
    for one in () if verified else paths:
        manifests.verify_artifact(one, "index")
    counts = [manifests.read_counts(one) for one in paths]
    of_texts = [one for one, facts in zip(paths, counts, strict=True) if "checkpoint" not in facts]
    if 0 < len(of_texts) < len(paths):
        others = [one for one in paths if one not in of_texts]
        searcher = open_index(others, model=model, device=device, dtype=dtype, verified=True, prompt=prompt)
        for one in of_texts:
            searcher = searcher.add_experts(open_index(one, verified=True))
        return searcher
    _check_compatible(paths, counts)
    recorded = counts[0].get("checkpoint")
    for flag, value in (("--model", model), ("--prompt", prompt)):
        if value is not None and recorded is None:
            raise UsageError(f"{flag} {value}: {paths[0]}: this index has no checkpoint; leave {flag} out")
    target = "cpu"
    if recorded is not None or device != "auto":
        from moeir.backbones.device import select_device  # with torch, which takes a second to load

        target = select_device(device)
    ids = [IdColumn.read(one / "ids.txt") for one in paths]
    ranks = list(map(id_ranks, ids))
    parts = [_open_engines(one, facts["experts"], own, target) for one, facts, own in zip(paths, counts, ranks, strict=True)]
    all_ids = IdColumn.concatenate(ids)
    order = ranks[0] if len(paths) == 1 else id_ranks(all_ids)
    _check_disjoint(paths, ids, all_ids, order)
    engines: dict[str, SearchableIndex] = dict(parts[0])
    if len(paths) > 1 and (text_engine := next((name for name, engine in engines.items() if engine.kind == "text"), None)):
        whole = "weighs terms by how many documents of the whole collection have them; index it in one piece"
        raise UsageError(f"--index: {text_engine} {whole}")
    if len(parts) > 1:
        engines = {name: ShardedIndex([part[name] for part in parts], order) for name in parts[0]}
    checkpoint = precision = None
    if recorded is not None:
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.device import select_dtype

        checkpoint = open_checkpoint(manifests.find_checkpoint(paths[0], recorded, None if model is None else Path(model)), target)
        if prompt is not None:
            checkpoint.select_prompt(prompt)
        precision = select_dtype(dtype, target, inference=True)
        checkpoint.pack_for_inference(precision)
    return Searcher(paths, all_ids, engines, order, checkpoint, precision, target)


def _open_engines(path: Path, specs: Mapping[str, str], order: np.ndarray, device: str) -> dict[str, Index]:
    """The engines of an index by expert; ArtifactError if this version has no such engine, or if one holds other documents."""
    engines = dict[str, Index]()
    for expert, spec in specs.items():
        try:
            variant = variants.find_variant("indexes", variants.parse_spec(spec).name)
        except UsageError as problem:
            raise ArtifactError(f"{path}: {problem}") from None
        engine: type[Index] = getattr(importlib.import_module(variant.module), variant.symbol)
        engines[expert] = engine.open(path / expert, id_ranks=order, device=device)
        if (count := len(engines[expert])) != len(order):
            raise ArtifactError(f"{path / expert}: damaged: expected {len(order)} documents by ids.txt, found {count}; {INDEX_AGAIN}")
    return engines


def _check_compatible(paths: Sequence[Path], counts: Sequence[Mapping[str, Any]]) -> None:
    """ArtifactError unless all indexes have the same checkpoint and engines."""
    for path, facts in zip(paths[1:], counts[1:], strict=True):
        if facts.get("checkpoint", {}).get("digest") != counts[0].get("checkpoint", {}).get("digest"):
            raise ArtifactError(f"{path}: made with another checkpoint than {paths[0]}; encode and index all parts with one")
        if facts["experts"] != counts[0]["experts"]:
            specs, first = (", ".join(f"{name}={spec}" for name, spec in one["experts"].items()) for one in (facts, counts[0]))
            raise ArtifactError(f"{path}: has {specs}; {paths[0]} has {first}; index all parts with the same --engine")


def _check_disjoint(paths: Sequence[Path], ids: Sequence[IdColumn], all_ids: IdColumn, order: np.ndarray) -> None:
    """ArtifactError if two indexes share a document; `ids` of each index, those of all [N], and their ranks `order` [N]."""
    if len(paths) == 1:
        return
    by_id = np.argsort(order)
    names, owners = all_ids.byte_strings[by_id], np.repeat(np.arange(len(paths)), list(map(len, ids)))[by_id]
    shared = np.flatnonzero(names[1:] == names[:-1])
    if len(shared):
        earlier, later = sorted(owners[shared[0] : shared[0] + 2].tolist())
        name = names[shared[0]].decode()
        raise ArtifactError(f"{paths[later]}: document {name!r} is in {paths[earlier]} too; parts of a collection share none")


class ShardedIndex(SearchableIndex):
    """Indexes of one expert over several parts, rows numbered consecutively; the top K of all are among the top K of each part."""

    def __init__(self, parts: Sequence[SearchableIndex], id_ranks: np.ndarray) -> None:
        super().__init__(id_ranks)
        self.parts = list(parts)
        self._starts = np.cumsum([0, *map(len, parts)])
        self.kind, self.score_if_not_found = parts[0].kind, parts[0].score_if_not_found
        self.exact = all(part.exact for part in parts)

    def expect_many_queries(self) -> None:
        for part in self.parts:
            part.expect_many_queries()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        lists = [part.search(queries, depth) for part in self.parts]
        starts = self._starts[:-1].tolist()
        hits = [np.where(part_rows == NO_ROW, NO_ROW, part_rows + start) for (part_rows, _), start in zip(lists, starts, strict=True)]
        values = [part_scores for _, part_scores in lists]
        fill_all_ranked_hits(np.concatenate(hits, axis=1), np.concatenate(values, axis=1), self.id_ranks, rows, scores)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        scores = np.empty(len(document_rows), dtype=np.float32)
        owners = np.searchsorted(self._starts, document_rows, side="right") - 1
        for number, part in enumerate(self.parts):
            own = np.flatnonzero(owners == number)
            scores[own] = part.score_pairs(queries, query_rows[own], document_rows[own] - self._starts[number])
        return scores

    def token_vectors(self, row: int) -> np.ndarray | None:
        owner = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.parts[owner].token_vectors(row - int(self._starts[owner]))
