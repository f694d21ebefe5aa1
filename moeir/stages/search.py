"""`moeir search`: queries against every expert's index, one run for each expert and the fused run."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from moeir import variants
from moeir.errors import ArtifactError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import FILE_SUFFIXES, STREAM, Counts, Stage, check_depth, check_word
from moeir.values import convert

if TYPE_CHECKING:
    import numpy as np

    from moeir.architectures.checkpoint import OpenCheckpoint
    from moeir.indexes.base import Index
    from moeir.records.runs import Run

QUERIES_AT_ONCE = 256
EXACT_SUM = "exact-sum"
Part: TypeAlias = "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Search(Stage):
    """Search all experts of an index and fuse their lists. A .trec path or - gets the fused run, a folder gets them all."""

    index: Path = source("index", "What index wrote.")
    queries: Path = source("texts", "Queries.", names=("--topics",))
    depth: int = option("Documents per query and expert.", 1000, names=("--hits", "--k"))
    expert: tuple[str, ...] = option("Search these experts only; repeat the flag.", ())
    fuse: str | None = option(
        "How experts become one: exact-sum (missing sides computed; exact-sum:deepen=true searches until the order is proven), came-sum …; "
        "see: moeir variants fusion [default: exact-sum where the checkpoint is trained as one score (mote, coil), else came-sum].",
        None,
    )
    model: Path | None = source("checkpoint", "The checkpoint, if it has moved; must be the one the index was made with.", None)
    dtype: str = option("Precision of query encoding: float32, bfloat16 or auto.", "float32")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    tag: str | None = option("Run tag [default: moeir.EXPERT].", None, names=("--runtag",))
    output: Path = product("run", "A .trec file, - for stdout, or a folder.")

    def check(self) -> None:
        if self.fuse is not None:
            _fusion(self.fuse)
        check_depth(self.depth)
        if self.tag is not None:
            check_word("--tag", self.tag)

    def makes_folder(self) -> bool:
        return self.output != STREAM and not self.output.name.removesuffix(".partial").endswith(FILE_SUFFIXES)

    def work(self) -> Counts:
        from moeir.records import runs, texts

        opened = open_index(self.index, model=self.model, device=self.device, dtype=self.dtype)
        experts = opened.chosen(self.expert)
        queries = list(texts.read(self.queries))
        fuse = self.fuse or opened.fusion
        found, facts = opened.runs([query.id for query in queries], [query.content for query in queries], self.depth, experts, fuse)
        for expert in experts:
            run = found[expert]
            if without := len(queries) - sum(length > 0 for length in run.starts[1:] - run.starts[:-1]):
                log.warning("%s: %d of %d queries found no document", expert, without, len(queries))
        if facts:
            counts = (f"the first {size} for {count} of {len(queries)} queries" for size, count in facts["proven"].items())
            log.info("%s: proven to be the order of all documents: %s", fuse, ", ".join(counts))
        if self.makes_folder():
            for name, run in found.items():
                runs.write(run, self.output / f"{name}.trec", tag=self.tag or f"moeir.{name}")
        else:
            name, run = list(found.items())[-1]
            runs.write(run, self.output, tag=self.tag or f"moeir.{name}")
        return {"queries": len(queries), "experts": experts, "hits": {name: len(run.scores) for name, run in found.items()}, **facts}


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

    @property
    def fusion(self) -> str:
        """How the experts become one unless told otherwise."""
        return "came-sum" if self.checkpoint is None else self.checkpoint.architecture.fusion

    def search(
        self, queries: list[str], depth: int = 10, expert: str | None = None, fuse: str | None = None
    ) -> list[list[tuple[str, float]]]:
        """For each query text its best documents and scores, from one expert or from all, fused as the command line would."""
        check_depth(depth)
        names = [str(number) for number in range(len(queries))]
        found, _ = self.runs(names, queries, depth, self.chosen((expert,) if expert else ()), fuse or self.fusion)
        run = list(found.values())[-1]
        return [run.hits(name) for name in names]

    def runs(
        self, names: list[str], queries: list[str], depth: int, experts: list[str], fuse: str
    ) -> "tuple[dict[str, Run], dict[str, Any]]":
        """One run for each expert and, of several, `fused`; of an exact sum also for how many queries its first ranks are proven."""
        from moeir import console, fusion
        from moeir.indexes.exact_sum import summed

        exact, options = _fusion(fuse)
        engines = {name: self.engines[name] for name in experts}
        parts: dict[str, list[Part]] = {name: [] for name in [*experts, *(["fused"] if exact and len(experts) > 1 else [])]}
        proven = dict.fromkeys(sorted({min(10, depth), depth}), 0)
        with console.meter("searching", len(queries)) as meter:
            for first, batch in self._encoded(queries):
                lists = {name: engine.search(batch[name], depth) for name, engine in engines.items()}
                if "fused" in parts:
                    sums = summed(engines, {name: batch[name] for name in experts}, lists, **options)
                    proven = {size: count + int(sums.holds(size).sum()) for size, count in proven.items()}
                    lists["fused"] = sums.rows, sums.scores
                for name, (rows, scores) in lists.items():
                    parts[name].append(self._part(first, rows, scores))
                meter.advance(min(QUERIES_AT_ONCE, len(queries) - first))
        sorted_ids = sorted(self.ids)
        found = {name: _run(names, sorted_ids, part, name) for name, part in parts.items()}
        if len(found) > 1 and not exact:
            found["fused"] = fusion.fused(list(found.values()), variants.bind("fusion", fuse), depth)
        return found, {"proven": proven} if "fused" in parts else {}

    def _part(self, first: int, rows: "np.ndarray[Any, Any]", scores: "np.ndarray[Any, Any]") -> "Part":
        """Hits of a batch as columns: query, place of the document's id, score."""
        import numpy as np

        query, place = np.nonzero(rows >= 0)
        return query + first, self.order[rows[query, place]], scores[query, place]

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


def _fusion(spec: str) -> tuple[bool, dict[str, Any]]:
    """Whether a spec means the exact sum, which needs the engines, and the options it gives it; UsageError if it means nothing."""
    parsed = variants.parse(spec)
    if parsed.name.replace("_", "-") != EXACT_SUM:
        variants.resolve("fusion", spec)
        return False, {}
    for key in dict(parsed.options):
        if key != "deepen":
            raise UsageError(f"{spec}: {EXACT_SUM} has no option {key!r}; it has deepen=true")
    return True, {key: convert(value, "bool", f"{spec}: {key}") for key, value in parsed.options}


def _run(names: list[str], ids: list[str], parts: "list[Part]", tag: str) -> "Run":
    import numpy as np

    from moeir.records.runs import Run

    query, document, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Run.from_columns(names, query, ids, document, score, tag=tag)


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
