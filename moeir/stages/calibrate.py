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
from moeir.stages.base import DEPTH, DTYPE, Counts, Facts, Stage
from moeir.stages.run_arguments import name_source

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.fusion.calibration import ScaleFitter
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run
    from moeir.retrieval.searcher import Searcher

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Calibrate(Stage):
    """Fit a scale for the scores of each expert on judged queries that the experts were not trained on. The output is the index's
    checkpoint with these scales; moeir search --model applies them, and the index stays as it is."""

    default_split: ClassVar[str] = "dev"
    index: tuple[Path, ...] = input_field(
        "index", "Output folder of moeir index; repeat the flag for parts of a collection, which are searched as one."
    )
    queries: Path = input_field("texts", "Queries that no expert was trained on.", aliases=("--topics",))
    qrels: Path = input_field("qrels", "Relevance judgements of the queries.")
    model: Path | None = input_field("checkpoint", "The checkpoint that the index was made with, if it has moved.", None)
    measure: str = option("Measure of the fused run to log with and without the scales; they do not depend on it.", "nDCG@10")
    depth: int = option("Documents per query and expert.", 1000, **DEPTH)
    batch_size: int = option("Queries encoded and searched together.", 256, minimum=1, affects_result=False)
    threads: int | None = option("CPU threads [default: torch's].", None, minimum=1, affects_result=False)
    dtype: str = option(**DTYPE)
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    output: Path = output_field("checkpoint", "Folder to write; unchanged files are hard links to those of the checkpoint.")

    def check(self) -> None:
        from moeir.evaluation.measures import parse_measure

        parse_measure(self.measure)

    def summary(self, counts: Facts) -> str:
        return f"scales {format_scales(counts['scales'])}, fitted on {format_count(counts['queries'], 'query')}"

    def next_command(self) -> list[object]:
        indexes = [word for path in self.index for word in ("--index", path)]
        return ["search", *indexes, "--model", self.output, "--queries", "queries.jsonl", "--output", "runs"]

    def work(self) -> Counts:
        from moeir.architectures.checkpoint import write_calibrated_copy
        from moeir.architectures.model_card import add_calibration
        from moeir.artifacts import manifests
        from moeir.fusion.calibration import ScaleFitter
        from moeir.records import qrels
        from moeir.retrieval.latency import limit_threads
        from moeir.retrieval.searcher import open_index

        with limit_threads(self.threads):
            searcher = open_index(self.index, model=self.model, device=self.device, dtype=self.dtype, verified=True)
            checkpoint = _checkpoint_with_experts(searcher)
            checkpoint.calibration = {}
            all_grades = qrels.read_qrels(self.qrels)
            runs = self._search_experts(searcher, all_grades)
        expert_runs = list(runs.values())
        grades = {query: all_grades[query] for query in expert_runs[0].queries}
        with name_source(self.qrels):
            fitter = ScaleFitter.from_runs(expert_runs, grades)
        scales = dict(zip(runs, fitter.fit(), strict=True))
        means = self._measure_scales(expert_runs, grades, fitter, list(scales.values()))
        all_scales = dict.fromkeys(checkpoint.architecture.representation_kinds, 1.0) | scales
        manifest = manifests.read_manifest(Path(checkpoint))
        write_calibrated_copy(Path(checkpoint), manifest["files"], self.output, all_scales)
        add_calibration(self.output, scales, len(fitter.examples))
        digests = manifests.checkpoint_digests(manifest)
        uncalibrated = digests.get("uncalibrated", digests["digest"])
        return {"queries": len(fitter.examples), "scales": scales, "measure": self.measure, **means, "uncalibrated": uncalibrated}

    def _search_experts(self, searcher: "Searcher", all_grades: "Qrels") -> "dict[str, Run]":
        """The runs of the experts for the judged queries."""
        from moeir.records import texts

        judged = {text.id: text.content for text in texts.read_texts(self.queries) if text.id in all_grades}
        if not judged:
            raise DataError(f"{self.queries}: none of its queries is judged in {self.qrels}; do the ids agree?")
        names, experts = list(judged), list(searcher.engines)
        runs, _ = searcher.search_runs(names, list(judged.values()), self.depth, experts, "came-sum", batch_size=self.batch_size)
        return {name: runs[name] for name in experts}

    def _measure_scales(
        self, runs: "Sequence[Run]", grades: "Qrels", fitter: "ScaleFitter", scales: "Sequence[float]"
    ) -> dict[str, float | None]:
        """Means of the measure for the fused run: without scales, with those of all queries, and held out, with scales fitted without the
        fold of each query; p of the last against the first. A query that no scale is fitted on counts with the scales of all."""
        from moeir.evaluation import significance

        before, after = (self._evaluate_sum(runs, grades, weights) for weights in ([1.0] * len(runs), scales))
        held_out = dict(after)
        folds = list(fitter.fit_folds())
        for weights, queries in folds:
            held_out |= self._evaluate_sum(runs, {query: grades[query] for query in queries}, weights)
        mean_before, mean_held_out, mean_after = (statistics.fmean(values.values()) for values in (before, held_out, after))
        log.info("%s of the fused run: %.4f without scales, %.4f with those of all queries", self.measure, mean_before, mean_after)
        if not folds:
            log.warning("scales of one query cannot be tested on others; give more queries")
            return {"before": mean_before, "after": mean_after, "held_out": None, "p": None}
        p = significance.paired_t_test(held_out, before)
        log.info("%s held out, with scales of the other %d folds: %.4f, p = %.3f", self.measure, len(folds) - 1, mean_held_out, p)
        if mean_held_out <= mean_before:
            log.warning("the scales do not help on queries that they are not fitted on; the checkpoint without them is as good")
        return {"before": mean_before, "after": mean_after, "held_out": mean_held_out, "p": p}

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
