"""`moeir analyze`: what the experts have in common, which of them routers take, how far two sides lie apart, who learned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import argument, option, product, settings_of, source
from moeir.stages.base import STREAM, Counts, Stage
from moeir.stages.evaluate import named_runs
from moeir.stages.init import check_seed

if TYPE_CHECKING:
    from moeir.analysis.usage import Usage
    from moeir.architectures.checkpoint import OpenCheckpoint

CHUNK = 1024
TEXTS_AND_MODEL = ("model", "corpus", "queries", "max_tokens", "dtype", "device")
READS = {
    "overlap": ("run", "overlap"),
    "usage": (*TEXTS_AND_MODEL, "threshold"),
    "divergence": (*TEXTS_AND_MODEL, "qrels", "expert", "pairs", "bandwidth", "seed"),
    "shares": ("model", "rows"),
}
NEEDS = {"usage": ("model",), "divergence": ("model", "queries", "corpus", "qrels"), "shares": ("model",)}
FORMS = ("auto", "table", "tsv", "jsonl")


@dataclass(frozen=True)
class Finding:
    """What an analysis found: `names` of columns, and rows; how a table for people writes numbers, and its header if another."""

    names: Sequence[str]
    rows: Sequence[Sequence[object]]
    number: str = ".4f"
    header: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Analyze(Stage):
    """Overlap of runs, usage of routed experts, divergence of queries and documents, or shares in the course of a training."""

    analysis: str | None = argument("overlap, usage, divergence or shares [default: the one that the flags are for].", None)
    run: tuple[Path, ...] = source("run", "overlap: a ranked list; repeat the flag.", (), names=("--runs",))
    overlap: str = option("rbo:persistence=0.9 or overlap:depth=100; see: moeir variants analysis.overlap.", "rbo")
    model: Path | None = source("checkpoint", "usage, divergence, shares: checkpoint to look at.", None, names=("--encoder",))
    corpus: Path | None = source("texts", "usage, divergence: documents.", None)
    queries: Path | None = source("texts", "usage, divergence: queries.", None, names=("--topics",))
    qrels: Path | None = source("qrels", "divergence: judgements that make pairs of queries and documents.", None)
    threshold: str = option("usage: which experts count as used: decisions, as 100000, or a share of them, as 1.14%.", "1")
    expert: str | None = option("divergence: the dense expert [default: the only one].", None)
    pairs: int = option("divergence: pairs of a query and its document.", 400)
    bandwidth: float = option("divergence: of the Gaussian kernel.", 1.0)
    seed: int = option("divergence: of the choice of pairs.", 42)
    rows: int = option("shares: rows; each the mean of a stretch of the training.", 20)
    max_tokens: int = option("Tokens computed at once; lower it if memory runs out.", 16384, affects_result=False)
    dtype: str = option("float32, bfloat16 or auto.", "float32")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    form: str = option("table, tsv, jsonl, or auto: a table on stdout, in a file what --output ends with.", "auto", names=("--format",))
    output: Path = product("analysis", "Where to write; - is stdout.", STREAM)

    def check(self) -> None:
        from moeir.analysis.usage import parsed

        name = self._name()
        self._check_flags(name)
        variants.resolve("analysis.overlap", self.overlap)
        if name == "overlap" and len(self.run) < 2:
            raise UsageError(f"analyze: expected two runs or more, found {len(self.run)}; repeat --run")
        if self.form not in FORMS:
            raise UsageError(f"--form {self.form}: expected {', '.join(FORMS[:-1])} or {FORMS[-1]}")
        if self.pairs < 2:
            raise UsageError(f"--pairs {self.pairs}: expected 2 or more")
        if not 0.001 <= self.bandwidth <= 1000:
            raise UsageError(f"--bandwidth {self.bandwidth:g}: expected 0.001 to 1000; distances are of cosines, 0 to 2")
        if self.max_tokens < 1:
            raise UsageError(f"--max-tokens {self.max_tokens}: expected at least 1")
        check_seed(self.seed)
        parsed(self.threshold)
        if self.rows < 1:
            raise UsageError(f"--rows {self.rows}: expected 1 or more")

    def _name(self) -> str:
        """What was asked for, or what the flags are for."""
        if self.analysis is not None:
            if self.analysis not in READS:
                raise UsageError(f"analyze {self.analysis}: expected one of {', '.join(READS)}")
            return self.analysis
        if self.run or self.model is None:
            return "overlap"
        if self.qrels is not None:
            return "divergence"
        return "usage" if self.corpus is not None or self.queries is not None else "shares"

    def _check_flags(self, name: str) -> None:
        """UsageError for a flag that this analysis lacks, or does not read."""
        for setting in settings_of(type(self)):
            given, owners = getattr(self, setting.name), [one for one, names in READS.items() if setting.name in names]
            if given != setting.default and owners and name not in owners:
                raise UsageError(f"analyze {name}: does not read {setting.flag}; it belongs to analyze {' or '.join(owners)}")
        for flag in NEEDS.get(name, ()):
            if getattr(self, flag) is None:
                raise UsageError(f"analyze {name}: needs --{flag}")
        if name == "usage" and self.corpus is None and self.queries is None:
            raise UsageError("analyze usage: needs --corpus, --queries or both")

    def work(self) -> Counts:
        from moeir.evaluation import tables
        from moeir.records import lines

        found = {"overlap": self._overlap, "usage": self._usage, "divergence": self._divergence, "shares": self._shares}[self._name()]()
        with lines.writer(self.output) as output:
            if (form := self._form()) == "table":
                rows = [[_cell(cell, found.number) for cell in row] for row in found.rows]
                output.write(tables.text(found.header or found.names, rows) + "\n")
            else:
                output.writelines(f"{line}\n" for line in tables.in_file(found.names, found.rows, form))
        return {"rows": len(found.rows)}

    def _form(self) -> str:
        if self.form != "auto":
            return self.form
        return "table" if self.output == STREAM else "jsonl" if ".jsonl" in self.output.suffixes else "tsv"

    def _overlap(self) -> Finding:
        from itertools import combinations

        from moeir.records import runs

        compare = variants.bind("analysis.overlap", self.overlap)
        read = {name: runs.read(path) for name, path in named_runs(self.run).items()}
        rows = []
        for one, other in combinations(read, 2):
            shared = [query for query in read[one].queries if query in read[other].places]
            if not shared:
                raise DataError(f"{one} and {other} have no query in common; are they runs of one query set?")
            values = [compare(read[one].documents_of(query), read[other].documents_of(query)) for query in shared]
            rows.append([one, other, len(shared), sum(values) / len(values)])
        return Finding(["run", "other", "queries", self.overlap], rows, header=["run", "run", "queries", self.overlap])

    def _usage(self) -> Finding:
        checkpoint = self._opened()
        if not checkpoint.encode(["?"]).routing:
            raise UsageError(f"{self.model}: {_without_router(checkpoint)}; there is no usage to count")
        names = ["side", "router", "of", "expert", "chosen", "share", "probability", "entropy", "used"]
        rows: list[list[object]] = []
        for side, path in (("query", self.queries), ("document", self.corpus)):
            if path is not None:
                for router, found in self._counted(checkpoint, path, side).items():
                    rows += [[side, router, *row] for row in found.rows(self.threshold)]
        return Finding(names, rows)

    def _counted(self, checkpoint: "OpenCheckpoint", path: Path, side: str) -> "dict[str, Usage]":
        """Each router's usage over the texts of a file, chunk by chunk."""
        from moeir.analysis.usage import Usage
        from moeir.backbones.precision import autocast, dtype_for

        device = str(checkpoint.device)
        counted: dict[str, Usage] = {}
        with autocast(dtype_for(self.dtype, device), device):
            for chunk in _chunks(path, "routing"):
                for router, said in checkpoint.encode(chunk, side, max_tokens=self.max_tokens).routing.items():
                    found = Usage.of(said.probabilities.float().cpu().numpy(), len(said))
                    counted[router] = counted[router] + found if router in counted else found
        return counted

    def _divergence(self) -> Finding:
        from moeir.analysis.divergence import divergences
        from moeir.analysis.pairs import drawn
        from moeir.backbones.precision import autocast, dtype_for
        from moeir.representations.dense import Dense

        assert self.queries is not None and self.corpus is not None and self.qrels is not None
        checkpoint = self._opened()
        expert = self._dense_expert(checkpoint.architecture.kinds)
        pairs = drawn(self.queries, self.corpus, self.qrels, self.pairs, self.seed)
        device, vectors = str(checkpoint.device), []
        with autocast(dtype_for(self.dtype, device), device):
            for side, contents in zip(("query", "document"), zip(*pairs, strict=True), strict=True):
                part = checkpoint.encode(contents, side, max_tokens=self.max_tokens)[expert]
                assert isinstance(part, Dense)
                vectors.append(part.vectors.float().cpu().numpy())
        kl, js = divergences(vectors[0], vectors[1], bandwidth=self.bandwidth)
        return Finding(["expert", "pairs", "KL", "JS"], [[expert, len(pairs), kl, js]], number=".2e")

    def _dense_expert(self, kinds: dict[str, str]) -> str:
        """The expert that was asked for, or the only dense one."""
        dense = [name for name, kind in kinds.items() if kind == "dense"]
        if self.expert is None and len(dense) == 1:
            return dense[0]
        if self.expert in dense:
            return str(self.expert)
        asked = "--expert: expected one of" if self.expert is None else f"--expert {self.expert}: expected"
        raise UsageError(f"{asked} {', '.join(dense) or 'the dense experts, but there is none'} ({self.model})")

    def _shares(self) -> Finding:
        from moeir.analysis import shares

        assert self.model is not None
        path = self.model / "metrics.jsonl"
        if not path.is_file():
            raise ArtifactError(f"{self.model}: has no metrics.jsonl: not trained; moeir finetune --model {self.model} … trains it")

        names, rows = shares.over_time(path, self.rows)
        if len(names) == 1:
            raise UsageError(f"{path}: says nothing of single experts; expected share.…, usage.… or loss.… of some")
        return Finding(names, rows)

    def _opened(self) -> "OpenCheckpoint":
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.precision import device_for

        assert self.model is not None
        return open_checkpoint(self.model, device_for(self.device))


def _chunks(path: Path, what: str) -> Iterator[list[str]]:
    """The texts of a file, many at a time."""
    from itertools import islice

    from moeir import console
    from moeir.records import texts

    walked = (text.content for text in console.progress(texts.read(path, keep_empty=True), what))
    while chunk := list(islice(walked, CHUNK)):
        yield chunk


def _without_router(checkpoint: "OpenCheckpoint") -> str:
    """Why no router of this checkpoint says anything."""
    from moeir.mixtures.embedding import EmbeddingMixture
    from moeir.mixtures.feedforward import RoutedFeedForward

    name, modules = checkpoint.spec.split(":")[0], list(checkpoint.architecture.modules())
    if any(isinstance(module, RoutedFeedForward) for module in modules):
        return f"the experts of this {name} are chosen by role, queries one and documents another"
    if any(isinstance(module, EmbeddingMixture) for module in modules):
        return f"the experts of this {name} are chosen at random"
    return f"{name} has no router"


def _cell(cell: object, number: str) -> str:
    return "-" if cell is None else format(cell, number) if isinstance(cell, float) else str(cell)
