"""`moeir search`: queries against every expert's index, one run for each expert and the fused run."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import ArtifactError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import FILE_SUFFIXES, STREAM, Counts, Stage, check_depth, check_word

if TYPE_CHECKING:
    import numpy as np

    from moeir.architectures.checkpoint import OpenCheckpoint
    from moeir.indexes.base import Index
    from moeir.records.runs import Run

QUERIES_AT_ONCE = 256
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Search all experts of an index and fuse their lists. A .trec path or - gets the fused run, a folder gets them all."""

    index: Path = source("index", "What index wrote.")
    queries: Path = source("texts", "Queries.", names=("--topics",))
    depth: int = option("Documents per query and expert.", 1000, names=("--hits", "--k"))
    expert: tuple[str, ...] = option("Search these experts only; repeat the flag.", ())
    fuse: str = option("How the experts' lists become one; see: moeir variants fusion.", "came-sum")
    model: Path | None = source("checkpoint", "The checkpoint, if it has moved; must be the one the index was made with.", None)
    dtype: str = option("Precision of query encoding: float32, bfloat16 or auto.", "float32")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    tag: str | None = option("Run tag [default: moeir.EXPERT].", None, names=("--runtag",))
    output: Path = product("run", "A .trec file, - for stdout, or a folder.")

    def check(self) -> None:
        variants.resolve("fusion", self.fuse)
        check_depth(self.depth)
        if self.tag is not None:
            check_word("--tag", self.tag)

    def makes_folder(self) -> bool:
        return self.output != STREAM and not self.output.name.removesuffix(".partial").endswith(FILE_SUFFIXES)

    def work(self) -> Counts:
        from moeir import fusion
        from moeir.records import runs, texts

        opened = open_index(self.index, model=self.model, device=self.device, dtype=self.dtype)
        experts = opened.chosen(self.expert)
        queries = list(texts.read(self.queries))
        found = opened.runs([query.id for query in queries], [query.content for query in queries], self.depth, experts)
        for expert, run in found.items():
            if without := len(queries) - sum(length > 0 for length in run.starts[1:] - run.starts[:-1]):
                log.warning("%s: %d of %d queries found no document", expert, without, len(queries))
        if len(found) > 1:
            found["fused"] = fusion.fused(list(found.values()), variants.bind("fusion", self.fuse), self.depth)
        if self.makes_folder():
            for name, run in found.items():
                runs.write(run, self.output / f"{name}.trec", tag=self.tag or f"moeir.{name}")
        else:
            name, run = list(found.items())[-1]
            runs.write(run, self.output, tag=self.tag or f"moeir.{name}")
        return {"queries": len(queries), "experts": experts, "hits": {name: len(run.scores) for name, run in found.items()}}


@dataclass
class OpenIndex:
    """The indexes of every expert, and the checkpoint that reads queries (None for BM25)."""

    path: Path
    ids: list[str]
    engines: "dict[str, Index]"
    order: "np.ndarray[Any, Any]"
    checkpoint: "OpenCheckpoint | None"
    dtype: Any

    def chosen(self, experts: tuple[str, ...]) -> list[str]:
        """The experts to search: all, or those named."""
        unknown = [name for name in experts if name not in self.engines]
        if unknown:
            raise UsageError(f"--expert {unknown[0]}: {self.path} has {', '.join(self.engines)}")
        return [name for name in self.engines if not experts or name in experts]

    def search(self, queries: list[str], depth: int = 10, expert: str | None = None) -> list[list[tuple[str, float]]]:
        """For each query text its best documents and scores, from one expert or, by came-sum, from all."""
        from moeir import fusion

        names = [str(number) for number in range(len(queries))]
        found = list(self.runs(names, queries, depth, self.chosen((expert,) if expert else ())).values())
        run = fusion.fused(found, fusion.came_sum, depth) if len(found) > 1 else found[0]
        return [run.hits(name) for name in names]

    def runs(self, names: list[str], queries: list[str], depth: int, experts: list[str]) -> "dict[str, Run]":
        """One run for each expert."""
        import numpy as np

        from moeir import console
        from moeir.records.runs import Run

        parts: dict[str, list[tuple[Any, Any, Any]]] = {name: [] for name in experts}
        sorted_ids = sorted(self.ids)
        with console.meter("searching", len(queries)) as meter:
            for first, batch in self._encoded(queries):
                for name in experts:
                    rows, scores = self.engines[name].search(batch[name], depth)
                    query, place = np.nonzero(rows >= 0)
                    parts[name].append((query + first, self.order[rows[query, place]], scores[query, place]))
                meter.advance(min(QUERIES_AT_ONCE, len(queries) - first))
        columns = {name: [np.concatenate(column) for column in zip(*part, strict=True)] for name, part in parts.items()}
        return {name: Run.from_columns(names, column[0], sorted_ids, column[1], column[2], tag=name) for name, column in columns.items()}

    def _encoded(self, queries: list[str]) -> Iterator[tuple[int, Any]]:
        """Batches of queries as the engines take them: (place of the first, expert -> queries)."""
        from moeir.backbones.precision import autocast

        for first in range(0, len(queries), QUERIES_AT_ONCE):
            batch = queries[first : first + QUERIES_AT_ONCE]
            if self.checkpoint is None:
                yield first, dict.fromkeys(self.engines, batch)
            else:
                with autocast(self.dtype, str(self.checkpoint.device)):
                    yield first, self.checkpoint.encode(batch, "query")


def open_index(path: Path | str, *, model: Path | None = None, device: str = "auto", dtype: str = "float32") -> OpenIndex:
    """An index with the checkpoint it was made with, found by walking index → encodings → checkpoint."""
    import importlib

    from moeir.artifacts import manifests
    from moeir.backbones.precision import device_for, dtype_for
    from moeir.records.runs import id_order

    path = Path(path)
    facts = manifests.read_manifest(path)["counts"]
    ids = manifests.read_lines(path / "ids.txt")
    if model is not None and "checkpoint" not in facts:
        raise UsageError(f"--model {model}: {path} reads its queries without one")
    order, place = id_order(ids), device_for(device)
    engines = {}
    for expert, spec in facts["experts"].items():
        variant = variants.find("indexes", variants.parse(spec).name)
        engine = getattr(importlib.import_module(variant.module), variant.symbol)
        engines[expert] = engine.open(path / expert, order=order, device=place)
    checkpoint = _checkpoint(path, facts["checkpoint"], model, place) if "checkpoint" in facts else None
    return OpenIndex(path, ids, engines, order, checkpoint, dtype_for(dtype, place))


def _checkpoint(path: Path, said: dict[str, str], model: Path | None, device: str) -> "OpenCheckpoint":
    from moeir.architectures.checkpoint import open_checkpoint
    from moeir.artifacts import manifests

    folder = model or (path / said["path"]).resolve()
    if not folder.is_dir():
        raise ArtifactError(f"{path}: the checkpoint it was made with is not at {folder}; say where it is with --model")
    found = manifests.digest_of(manifests.verify(folder, "checkpoint")["files"])
    if found != said["digest"]:
        raise ArtifactError(f"{folder}: not the checkpoint {path} was made with; name that one with --model, or encode and index again")
    return open_checkpoint(folder, device)
