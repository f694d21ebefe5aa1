"""`moeir calibrate`: fit a scale for each expert's scores on judged queries, and write a checkpoint that has them."""

import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import DataError, UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import DEPTH, DTYPE, Counts, Facts, Stage, suggest_output
from moeir.stages.run_arguments import name_source

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.fusion.calibration import ScaleFitter
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run
    from moeir.retrieval.searcher import Searcher

SIGNIFICANT = 0.05  # scales are applied if their gain on held-out queries has a lower p
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Calibrate(Stage):
    """Fit a scale for the scores of each expert on judged queries that the experts were not trained on. The output is the index's
    checkpoint with these scales if they win on held-out queries, else with scales of 1; moeir search --model applies them, and the index
    stays as it is."""

    default_split: ClassVar[str] = "dev"
    index: tuple[Path, ...] = input_field(
        "index", "Output folder of moeir index; repeat the flag for parts of a collection, which are searched as one."
    )
    queries: Path = input_field("texts", "Queries that no expert was trained on.", aliases=("--topics",))
    qrels: Path = input_field("qrels", "Relevance judgements of the queries.")
    model: Path | None = input_field("checkpoint", "The checkpoint that the index was made with, if it has moved.", None)
    measure: str = option("Measure of the lists, of their sum and of the scaled sum; it decides whether the scales win.", "nDCG@10")
    depth: int = option("Documents per query and expert.", 1000, **DEPTH)
    batch_size: int = option("Queries encoded and searched together.", 256, minimum=1, affects_result=False)
    threads: int | None = option("CPU threads [default: torch's].", None, minimum=1, maximum=4096, affects_result=False)
    dtype: str = option(**DTYPE)
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    output: Path = output_field("checkpoint", "Folder to write; unchanged files are hard links to those of the checkpoint.")

    def check(self) -> None:
        from moeir.evaluation.measures import parse_measure

        parse_measure(self.measure)

    def estimate(self) -> list[str]:
        _checkpoint_with_experts(self._open_index())
        return []

    def _open_index(self) -> "Searcher":
        from moeir.retrieval.searcher import open_index

        return open_index(self.index, model=self.model, device=self.device, dtype=self.dtype, verified=True)

    def summary(self, counts: Facts) -> str:
        return f"scales {format_scales(counts['scales'])}, from {format_count(counts['queries'], 'query')}"

    def next_command(self) -> list[object]:
        indexes = [word for path in self.index for word in ("--index", path)]
        queries = self.find_source("queries", None, split="test")
        return ["search", *indexes, "--model", self.output, "--queries", queries, "--output", suggest_output("runs")]

    def work(self) -> Counts:
        from moeir.architectures.checkpoint import write_calibrated_copy
        from moeir.architectures.model_card import add_calibration
        from moeir.artifacts import manifests
        from moeir.fusion.calibration import ScaleFitter
        from moeir.records import qrels
        from moeir.retrieval.latency import limit_threads

        with limit_threads(self.threads):
            searcher = self._open_index()
            checkpoint = _checkpoint_with_experts(searcher)
            checkpoint.calibration = {}
            all_grades = qrels.read_qrels(self.qrels)
            runs = self._search_experts(searcher, all_grades)
        grades = {query: all_grades[query] for query in next(iter(runs.values())).queries}
        with name_source(self.qrels):
            fitter = ScaleFitter.from_runs(list(runs.values()), grades)
        fitted = dict(zip(runs, fitter.fit(), strict=True))
        facts = self._test_scales(runs, grades, fitter, fitted)
        scales = fitted if facts["accepted"] else dict.fromkeys(runs, 1.0)
        all_scales = dict.fromkeys(checkpoint.architecture.representation_kinds, 1.0) | scales
        manifest = manifests.read_manifest(Path(checkpoint))
        write_calibrated_copy(Path(checkpoint), manifest["files"], self.output, all_scales)
        add_calibration(self.output, scales, len(fitter.examples))
        digests = manifests.checkpoint_digests(manifest)
        uncalibrated = digests.get("uncalibrated", digests["digest"])
        return {"queries": len(fitter.examples), "scales": scales, "measure": self.measure, **facts, "uncalibrated": uncalibrated}

    def _search_experts(self, searcher: "Searcher", all_grades: "Qrels") -> "dict[str, Run]":
        """The runs of the experts for the judged queries."""
        from moeir.records import texts

        judged = {text.id: text.content for text in texts.read_texts(self.queries) if text.id in all_grades}
        if not judged:
            raise DataError(f"{self.queries}: none of its queries is judged in {self.qrels}; do the ids agree?")
        names, experts = list(judged), list(searcher.engines)
        runs, _ = searcher.search_runs(names, list(judged.values()), self.depth, experts, "came-sum", batch_size=self.batch_size)
        return {name: runs[name] for name in experts}

    def _test_scales(
        self, runs: "Mapping[str, Run]", grades: "Qrels", fitter: "ScaleFitter", fitted: Mapping[str, float]
    ) -> dict[str, Any]:
        """Whether the scales are accepted, and means of the measure: of each list, of their sum, and of the scaled sum of held-out queries.

        Each query's sum has the scales fitted without its fold; a query that no scale is fitted on has those of all. The scales are
        accepted if this is significantly better than the sum without scales (paired t-test).
        """
        from moeir.evaluation import measures, significance, tables

        measure, expert_runs = measures.parse_measure(self.measure), list(runs.values())
        values = {name: measures.evaluate_run(run, grades, [measure])[str(measure)] for name, run in runs.items()}
        before = self._evaluate_sum(expert_runs, grades, [1.0] * len(runs))
        held_out = self._evaluate_sum(expert_runs, grades, list(fitted.values()))
        folds = list(fitter.fit_folds())
        for weights, queries in folds:
            held_out |= self._evaluate_sum(expert_runs, {query: grades[query] for query in queries}, weights)
        rows = {**values, "sum": before, "sum, scaled": held_out}
        means = {name: statistics.fmean(by_query.values()) for name, by_query in rows.items()}
        for line in tables.format_table(["list", self.measure], [list(row) for row in means.items()]).splitlines():
            log.info("%s", line)
        p = significance.paired_t_test(held_out, before)
        accepted = bool(folds) and means["sum, scaled"] > means["sum"] and p < SIGNIFICANT
        tested = f"{means['sum, scaled']:.4f} on held-out queries, {means['sum']:.4f} without, p = {p:.3f}"
        words = f"scales {format_scales(fitted)}: {tested}" if folds else "scales of one query cannot be tested on others"
        log.log(logging.INFO if accepted else logging.WARNING, "%s; %s", words, "applied" if accepted else "not applied: all scales are 1")
        fused, fused_mean = (held_out, means["sum, scaled"]) if accepted else (before, means["sum"])
        best = max(runs, key=means.__getitem__)
        if means[best] > fused_mean:
            p_best = significance.paired_t_test(values[best], fused)
            log.warning("%s alone has %.4f, the fused run %.4f, p = %.3f; moeir search --expert %s searches it alone",
                        best, means[best], fused_mean, p_best, best)  # fmt: skip
        return {"accepted": accepted, "fitted": dict(fitted), "means": means, "p": p}

    def _evaluate_sum(self, runs: "Sequence[Run]", grades: "Qrels", scales: "Sequence[float]") -> dict[str, float]:
        """The measure of each judged query in the fusion of scaled scores, as `moeir search` fuses."""
        from moeir.evaluation import measures
        from moeir.fusion import formulas, tuning

        measure = measures.parse_measure(self.measure)
        merge = variants.bind_variant("fusion", f"linear:weights={tuning.format_weights(scales)}")
        return measures.evaluate_run(formulas.fuse_runs(runs, merge, self.depth), grades, [measure])[str(measure)]


def format_scales(scales: Mapping[str, Any]) -> str:
    """Scales as words.

    >>> format_scales({"lexical": 0.5, "global": 2.0})
    'lexical 0.5, global 2'
    """
    return ", ".join(f"{name} {scale:g}" for name, scale in scales.items())


def _checkpoint_with_experts(searcher: "Searcher") -> "RetrievalModel":
    """The checkpoint of an index whose experts can be scaled; UsageError if there is none."""
    if searcher.checkpoint is None:
        raise UsageError(f"--index {searcher.label}: has no checkpoint that could hold scales; fuse --tune finds weights of runs")
    if len(searcher.engines) < 2:
        raise UsageError(f"--index {searcher.label}: has one expert, {next(iter(searcher.engines))}: nothing to calibrate")
    if searcher.default_fusion != "came-sum":
        raise UsageError(f"--index {searcher.label}: its experts are trained as one score, which sets their scales: nothing to calibrate")
    return searcher.checkpoint
