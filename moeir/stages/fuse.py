"""`moeir fuse`: merge several runs into one, by a formula or by weights that `moeir calibrate` wrote."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.console import format_count
from moeir.errors import DataError, UsageError
from moeir.fusion import files
from moeir.settings import input_field, option, output_field
from moeir.stages.base import COLLAPSE, DEPTH, STREAM, Counts, Facts, Stage
from moeir.stages.run_arguments import (
    find_search_of_run,
    log_guessed_depths,
    read_run_with_depth,
    run_paths,
    short_run_names,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moeir.fusion.formulas import FusionFormula
    from moeir.records.runs import Run

ONE_MODEL_METHOD, OTHER_METHOD = "came-sum", "rrf"  # for runs of one search, and for any others
RAW_SUMS = ("came-sum", "combsum")
MAX_SCALE_RATIO = 10.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Merge the runs of several experts, or of any systems, into one."""

    run: tuple[Path, ...] = input_field(
        "run", "One run per expert; repeat the flag; NAME=PATH names it.", least_count=2, aliases=("--runs",)
    )
    method: str | None = option(
        "Fusion method; see: moeir variants fusion. [default: came-sum for the experts' runs of one index, else rrf]", None
    )
    learned: Path | None = input_field("fusion", "Instead of --method: a file written by calibrate --run.", None, excludes=("method",))
    depth: int = option("Documents kept per query.", 1000, **DEPTH)
    run_depth: int | None = option(
        "Depth K that the runs were searched to: a list with fewer hits is complete, so a document that it lacks has the lowest score, not "
        "the K-th [default: that of the moeir search that wrote a run, else its longest list].",
        None,
        minimum=1,
    )
    collapse: str | None = option(**COLLAPSE)
    tag: str = option("Run tag.", "moeir.fused", single_word=True, aliases=("--runtag",), group="Output")
    output: Path = output_field("run", "Output file; - is stdout.", STREAM)

    def check(self) -> None:
        method = self.method or OTHER_METHOD
        variants.import_code_of(method)
        if variants.resolve_spec("fusion", method)[0].name == "exact-sum":
            raise UsageError("--method exact-sum: a run has no scores of documents outside its lists; use moeir search --fuse exact-sum")

    def prepare(self) -> "tuple[FusionFormula, str]":
        """The function that merges the lists of a query, and its spec."""
        method = self.method
        if self.learned is not None:
            saved_fusion = files.read_fusion(self.learned)
            saved_fusion.check_runs(self.learned, short_run_names(self.run))
            method = saved_fusion.method
        elif method is None:
            is_one = self._have_one_index()
            method = ONE_MODEL_METHOD if is_one else OTHER_METHOD
            log.info("--method %s: the runs are %s", method, "those of one index" if is_one else "of different systems")
        return variants.bind_variant("fusion", method), method

    def _have_one_index(self) -> bool:
        """Whether `moeir search` wrote all runs, from one index, with one calibration."""
        searches = [find_search_of_run(path) for path in run_paths(self.run)]
        return None not in searches and len({search[:2] for search in searches if search}) == 1

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['queries'], 'query')}, {format_count(counts['hits'], 'hit')}"

    def next_command(self) -> str:
        return "evaluate --run OUTPUT --qrels QRELS"

    def work(self) -> Counts:
        from moeir.fusion import formulas
        from moeir.records import runs

        merge, method = self.prepare()
        expert_runs = self._read_runs(method)
        fused_run = formulas.fuse_runs(expert_runs, merge, self.depth)
        runs.write_run(fused_run, self.output, tag=self.tag)
        return {"method": method, "queries": len(fused_run), "hits": len(fused_run.scores)}

    def _read_runs(self, method: str) -> "list[Run]":
        """The runs, with the depth that each was searched to."""
        from moeir.records.passages import collapse_run

        paths = run_paths(self.run)
        expert_runs = [read_run_with_depth(path) for path in paths]
        if self.run_depth is None:
            log_guessed_depths(paths, expert_runs, method, "--run-depth K sets it")
        else:
            for run, path in zip(expert_runs, paths, strict=True):
                if (longest := run.max_list_length) > self.run_depth:
                    raise UsageError(f"--run-depth {self.run_depth}: {path} has a list of {longest} hits; expected the depth of its search")
            expert_runs = [replace(run, depth=self.run_depth) for run in expert_runs]
        if self.collapse is not None:
            expert_runs = [collapse_run(run, str(path)) for run, path in zip(expert_runs, paths, strict=True)]
        self._check_collections(expert_runs)
        self._warn_of_scales(expert_runs, method)
        return expert_runs

    def _check_collections(self, expert_runs: "Sequence[Run]") -> None:
        """DataError for runs that are not of one query set, and for passages beside documents."""
        from moeir.records.passages import find_passage_of

        paths, (first, *others) = run_paths(self.run), expert_runs
        numbers = {all("#" in name for name in run.document_ids): number for number, run in enumerate(expert_runs) if len(run.scores)}
        if len(numbers) == 2:
            passages, documents = numbers[True], numbers[False]
            if passage := find_passage_of(expert_runs[passages].document_ids, set(expert_runs[documents].document_ids)):
                reason = f"{paths[passages]} has passages such as {passage!r}, {paths[documents]} documents"
                raise DataError(f"{reason}; add --collapse max")
        for run, path in zip(others, paths[1:], strict=True):
            if len(run) and len(first) and first.query_rows.keys().isdisjoint(run.queries):
                reason = f"has no query of {paths[0]} (it has {run.queries[0]!r}, that {first.queries[0]!r})"
                raise DataError(f"{path}: {reason}; expected runs of one query set")

    def _warn_of_scales(self, expert_runs: "Sequence[Run]", method: str) -> None:
        """Warn if a raw sum is of scores whose standard deviations differ by more than 10 times."""
        if variants.parse_spec(method).name.replace("_", "-") not in RAW_SUMS:
            return
        spreads = sorted((float(run.scores.std()), str(path)) for run, path in zip(expert_runs, self.run) if len(run.scores))
        if spreads and spreads[-1][0] > MAX_SCALE_RATIO * spreads[0][0] > 0:
            (least, narrow), (most, wide) = spreads[0], spreads[-1]
            log.warning("--method %s: scores of %s have a standard deviation of %.3g, those of %s %.3g, so the sum follows the first; "
                        "rrf or zscore count both alike", method, wide, most, narrow, least)  # fmt: skip
