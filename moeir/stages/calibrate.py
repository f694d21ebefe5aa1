"""`moeir calibrate`: fit weights of an index's experts, or of any runs, on judged queries; applied if they win on held-out ones."""

import logging
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.artifacts import manifests
from moeir.console import format_count
from moeir.errors import DataError, UsageError
from moeir.evaluation import tables
from moeir.fusion import files
from moeir.settings import input_field, option, output_field
from moeir.stages.base import DEPTH, DEVICE, DTYPE, STREAM, THREADS, Counts, Facts, Stage
from moeir.stages.run_arguments import (
    check_measures,
    log_guessed_depths,
    name_runs,
    prefix_errors_with,
    read_runs,
    run_paths,
    short_run_names,
    warn_of_better_part,
)

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run
    from moeir.retrieval.searcher import Searcher

SIGNIFICANT = 0.05  # weights are applied if their gain on held-out queries has a lower p
FEWEST_QUERIES = 6  # with fewer, gains may be chance: even if all five gain, their signs alone have p = 2 / 2^5
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Calibrate(Stage):
    """Fit a weight for the scores of each expert of an index, or of each of any runs, on judged queries that they were not trained on. The
    weights are applied if the weighted sum wins on held-out queries, else all are 1. With --index, the output is its checkpoint with these
    weights; moeir search --model applies them, and the index stays as it is. With --run, it is a file for moeir fuse --learned."""

    default_split: ClassVar[str] = "dev"
    index: tuple[Path, ...] = input_field(
        "index",
        "Output folder of moeir index; repeat the flag for parts of a collection, which are searched as one.",
        (),
        needs=("queries",),
        excludes=("run",),
    )
    run: tuple[Path, ...] = input_field(
        "run",
        "Instead of --index: one run per expert, in the order of the fusion; repeat the flag.",
        (),
        least_count=2,
        aliases=("--runs",),
    )
    queries: Path | None = input_field(
        "texts", "With --index: queries that no expert was trained on.", None, aliases=("--topics",), needs=("index",)
    )
    qrels: Path = input_field("qrels", "Relevance judgements of the queries.")
    model: Path | None = input_field(
        "checkpoint", "With --index: the checkpoint that it was made with, if it has moved.", None, needs=("index",)
    )
    measure: str = option(
        "Measure of the lists, of their sum and of the weighted sum; it decides whether the weights win.",
        "nDCG@10",
        aliases=("--metric", "-m"),
    )
    depth: int = option("Documents per query and expert, and of the sums.", 1000, **DEPTH)
    batch_size: int = option("Queries encoded and searched together.", 256, minimum=1, affects_result=False, needs=("index",))
    threads: int | None = option(**THREADS, needs=("index",))
    dtype: str = option(**DTYPE, needs=("index",))
    device: str = option(**DEVICE, needs=("index",))
    output: Path = output_field(
        "checkpoint", "Folder to write, whose unchanged files are hard links to those of the checkpoint; with --run a JSON file."
    )

    def product(self) -> tuple[Path, str]:
        return self.output, "fusion" if self.run else "checkpoint"

    def check(self) -> None:
        check_measures([self.measure])
        if not self.index and not self.run:
            raise UsageError("calibrate needs --index, to weigh its experts, or several --run, to weigh them")
        if self.run and self.output == STREAM:
            raise UsageError("--output -: expected a file to write")
        name_runs(self.run)

    def prepare(self) -> "tuple[Searcher, RetrievalModel] | None":
        return self._open_index() if self.index else None

    def _open_index(self) -> "tuple[Searcher, RetrievalModel]":
        """The index and its checkpoint, whose experts are weighed; UsageError if there is nothing to weigh."""
        from moeir.retrieval.searcher import open_index

        searcher = open_index(self.index, model=self.model, device=self.device, dtype=self.dtype, verified=True)
        where = f"--index {searcher.label}"
        if searcher.checkpoint is None:
            raise UsageError(f"{where}: has no checkpoint that could hold weights; --run finds those of runs")
        if len(searcher.engines) < 2:
            raise UsageError(f"{where}: has one expert, {next(iter(searcher.engines))}: nothing to calibrate")
        if searcher.default_fusion != "came-sum":
            raise UsageError(f"{where}: its experts are trained as one score, which sets their weights: nothing to calibrate")
        return searcher, searcher.checkpoint

    def summary(self, counts: Facts) -> str:
        return f"weights {format_weights(counts['weights'])}, from {format_count(counts['queries'], 'query')}"

    def next_command(self) -> str:
        if self.run:
            runs = " ".join(f"--run {shlex.quote(name)}=TEST-RUN" for name in short_run_names(self.run))
            return f"fuse {runs} --learned OUTPUT --output fused.trec"
        indexes = " ".join(f"--index {shlex.quote(str(path))}" for path in self.index)
        return f"search {indexes} --model OUTPUT --queries QUERIES@test --output runs"

    def work(self) -> Counts:
        from moeir.fusion import linear_weights
        from moeir.records import qrels

        grades = qrels.read_qrels(self.qrels)
        if self.index:
            return self._weigh_experts(grades)
        runs = read_runs(self.run)
        log_guessed_depths(run_paths(self.run), list(runs.values()), None, "runs of moeir search know theirs")
        facts = self._fit_weights(runs, grades)
        method = linear_weights.format_method(facts["weights"].values())
        files.write_fusion(files.SavedFusion(method, tuple(runs), {"by": "moeir calibrate", **facts}), self.output)
        return {"method": method, **facts}

    def _weigh_experts(self, grades: "Qrels") -> Counts:
        """Write the checkpoint with the weights of its experts."""
        from moeir.architectures.checkpoint import write_calibrated_copy
        from moeir.records import texts
        from moeir.retrieval.latency import limit_threads

        assert self.queries is not None
        with limit_threads(self.threads):
            searcher, checkpoint = self._open_index()
            own_weights = checkpoint.calibration = dict(checkpoint.architecture.fusion_weights)
            judged = {text.id: text.content for text in texts.read_texts(self.queries) if text.id in grades}
            if not judged:
                raise DataError(f"{self.queries}: none of its queries is judged in {self.qrels}; do the ids agree?")
            experts, contents = list(searcher.engines), list(judged.values())
            runs = searcher.search_runs(list(judged), contents, self.depth, experts, "came-sum", batch_size=self.batch_size)
        facts = self._fit_weights({name: runs[name] for name in experts}, grades)
        kinds = checkpoint.architecture.representation_kinds
        all_weights = {name: own_weights.get(name, 1.0) * facts["weights"].get(name, 1.0) for name in kinds}
        manifest = manifests.read_manifest(Path(checkpoint))
        write_calibrated_copy(Path(checkpoint), manifest["files"], self.output, all_weights)
        digests = manifests.checkpoint_digests(manifest)
        return {**facts, "uncalibrated": digests.get("uncalibrated", digests["digest"])}

    def _fit_weights(self, runs: "Mapping[str, Run]", all_grades: "Qrels") -> dict[str, Any]:
        """The weight of each run (1 if they are not accepted), and how they were fitted and tested.

        Means are of the measure: of each list, of their sum, and of the weighted sum of held-out queries, where each query has the weights
        fitted without its fold; a query that no weight is fitted on has those of all. The weights are accepted if this sum is
        significantly better than the one without weights (paired t-test) on FEWEST_QUERIES or more.
        """
        from moeir.evaluation import measures, significance
        from moeir.fusion import linear_weights

        grades = {query: own for query, own in all_grades.items() if any(query in run.query_rows for run in runs.values())}
        measure, all_runs = measures.parse_measure(self.measure), list(runs.values())
        with prefix_errors_with(self.qrels):
            examples = linear_weights.build_examples(all_runs, grades, linear_weights.FIT_DEPTH)
        fitted = dict(zip(runs, linear_weights.fit_weights(examples), strict=True))
        plain = self._evaluate_sum(all_runs, grades, [1.0] * len(runs))
        weighted = self._evaluate_sum(all_runs, grades, list(fitted.values()))
        for others, own in linear_weights.split_folds(examples):
            own_grades = {query: grades[query] for query in own.queries}
            weighted |= self._evaluate_sum(all_runs, own_grades, linear_weights.fit_weights(others))
        values = {name: measures.evaluate_run(run, grades, [measure])[str(measure)] for name, run in runs.items()}
        means = {name: statistics.fmean(by_query.values()) for name, by_query in values.items()}
        sums = {"sum": statistics.fmean(plain.values()), "weighted sum": statistics.fmean(weighted.values())}
        p = significance.paired_t_test(weighted, plain)
        is_testable = len(examples) >= FEWEST_QUERIES
        accepted = is_testable and sums["weighted sum"] > sums["sum"] and p < SIGNIFICANT
        for line in tables.format_table(["list", self.measure], [list(row) for row in (*means.items(), *sums.items())]).splitlines():
            log.info("%s", line)
        result = f"{sums['weighted sum']:.4f} on held-out queries, {sums['sum']:.4f} without, p {significance.format_p(p)}"
        few = f"weights of {format_count(len(examples), 'query')} cannot be tested on others, expected {FEWEST_QUERIES} or more"
        words = f"weights {format_weights(fitted)}: {result}" if is_testable else few
        outcome = "applied" if accepted else "not applied: all weights are 1"
        log.log(logging.INFO if accepted else logging.WARNING, "%s; %s", words, outcome)
        advice = "; moeir search --expert {} searches it alone" if self.index else ""
        warn_of_better_part(self.measure, values, "the fused run", weighted if accepted else plain, advice)
        facts = {"queries": len(examples), "weights": fitted if accepted else dict.fromkeys(runs, 1.0), "measure": self.measure}
        return {**facts, "accepted": accepted, "fitted": fitted, "means": means, **sums, "p": p}

    def _evaluate_sum(self, runs: "Sequence[Run]", grades: "Qrels", weights: "Sequence[float]") -> dict[str, float]:
        """The measure of each judged query in the fusion of weighted scores, as `moeir search` and `moeir fuse --learned` fuse."""
        from moeir.evaluation import measures
        from moeir.fusion import formulas, linear_weights

        measure = measures.parse_measure(self.measure)
        merge = variants.bind_variant("fusion", linear_weights.format_method(weights))
        return measures.evaluate_run(formulas.fuse_runs(runs, merge, self.depth), grades, [measure])[str(measure)]


def format_weights(weights: Mapping[str, Any]) -> str:
    """Weights as words.

    >>> format_weights({"lexical": 0.5, "global": 2.0})
    'lexical 0.5, global 2'
    """
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
