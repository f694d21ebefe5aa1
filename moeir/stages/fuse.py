"""`moeir fuse`: merge several runs into one; alpha can be tuned on judged queries first, and weights come from a file."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import DEPTH, STREAM, Counts, Facts, Stage
from moeir.stages.run_arguments import (
    MATCHES,
    check_answers,
    check_groups,
    check_judgements,
    check_measures,
    find_search_of_run,
    log_guessed_depths,
    name_runs,
    name_source,
    read_answers,
    read_groups,
    read_run_with_depth,
    run_paths,
    short_run_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ir_measures import Measure

    from moeir.fusion.formulas import FusionFormula
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run

ONE_MODEL_METHOD, OTHER_METHOD = "came-sum", "rrf"  # for runs of one search, and for any others
RAW_SUMS = ("came-sum", "combsum")
MAX_SCALE_RATIO = 10.0
ABLATION_MEASURES = ("nDCG@10", "R@100")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Fuse(Stage):
    """Merge the runs of several experts into one. With --tune, find the best alpha on judged queries, use and log it."""

    default_split: ClassVar[str] = "dev"
    run: tuple[Path, ...] = input_field(
        "run", "One run per expert; repeat the flag; NAME=PATH names it.", least_count=2, aliases=("--runs",)
    )
    method: str | None = option(
        "Fusion method; see: moeir variants fusion. [default: came-sum for the experts' runs of one index, else rrf]", None
    )
    learned: Path | None = input_field("fusion", "Instead of --method: a file written by calibrate --run or --save.", None)
    depth: int = option("Documents kept per query.", 1000, **DEPTH)
    run_depth: int | None = option(
        "Depth K that the runs were searched to: a list with fewer hits is complete, so a document that it lacks has the lowest score, not "
        "the K-th [default: that of the moeir search that wrote a run, else its longest list].",
        None,
        minimum=1,
    )
    tune: str | None = option(
        "Measure to tune --method for, e.g. nDCG@10: alpha by grid search (on ties the smallest).", None
    )
    grid: str | None = option("With --tune: the values of alpha, FIRST:LAST:STEP [default: 0.5:2.0:0.1, of interpolation 0:1:0.05].", None)
    save: Path | None = option("With --tune: file to write the tuned method to, for --learned.", None, group="Output")
    qrels: Path | None = input_field(
        "qrels", "With --tune or --ablation: relevance judgements.", None, only_with=("tune", "ablation"), unless=("answers",)
    )
    answers: Path | None = input_field("texts", "With --tune, instead of --qrels: questions with answers.", None)
    corpus: Path | None = input_field("texts", "With --answers: the documents to search for answers.", None, only_with=("answers",))
    match: str = option("With --answers: string (token match, as in DPR) or regex.", "string", choices=MATCHES)
    group_by: str | None = option("With --tune: maximise the mean over the values of this query field, not over queries.", None)
    queries: Path | None = input_field(
        "texts", "With --group-by: the queries, if --answers lacks the field.", None, aliases=("--topics",), only_with=("group_by",)
    )
    attribution: Path | None = option("File for the contribution of each run to each hit: rank, score, part (TSV).", None, group="Output")
    ablation: Path | None = option(
        "File for the loss in each measure without each run, with confidence intervals and p-values (TSV).", None, group="Output"
    )
    measure: tuple[str, ...] = option("With --ablation: measures; repeat the flag [default: nDCG@10, R@100].", (), aliases=("-m",))
    tag: str = option("Run tag.", "moeir.fused", single_word=True, aliases=("--runtag",), group="Output")
    output: Path = output_field("run", "Output file; - is stdout.", STREAM)

    def check(self) -> None:
        method = self.method or OTHER_METHOD
        if variants.parse_spec(method).name.replace("_", "-") == "exact-sum":
            raise UsageError("--method exact-sum: a run has no scores of documents outside its lists; use moeir search --fuse exact-sum")
        variants.import_code_of(method)
        variant, options = variants.resolve_spec("fusion", method)
        self._check_learned()
        self._check_ablation()
        if self.tune is not None:
            self._check_tuning(variant, options)
        elif any(path is not None for path in (self.answers, self.corpus, self.group_by)) or (self.qrels and not self.ablation):
            raise UsageError("fuse: judgements and answers are for tuning; add --tune MEASURE")
        for flag, value in {"--grid": self.grid, "--save": self.save}.items():
            if value is not None and self.tune is None:
                raise UsageError(f"fuse: {flag} is for tuning; add --tune MEASURE")

    def _check_tuning(self, variant: variants.Variant, options: dict[str, Any]) -> None:
        from moeir.evaluation.measures import parse_measure
        from moeir.fusion.tuning import DEFAULT_GRIDS, parse_grid

        if variant.name not in DEFAULT_GRIDS:
            fits = "; moeir calibrate fits its weights" if variant.name == "linear" else ""
            raise UsageError(f"--tune: {variant.name} has nothing to tune; hybrid and interpolation have alpha{fits}")
        if "alpha" in options:
            raise UsageError(f"--tune: --method {self.method} sets alpha already; leave it out, or leave out --tune")
        parse_measure(str(self.tune))
        check_judgements("fuse --tune", self.qrels, self.answers)
        check_answers("--answers", self.answers, self.corpus, self.match)
        check_groups(self.group_by, self.queries, self.answers)
        parse_grid(self.grid or DEFAULT_GRIDS[variant.name])

    def _check_learned(self) -> None:
        if self.queries is not None and self.tune is None:
            raise UsageError("--queries needs --group-by FIELD, which reads them")
        for flag, is_set in {"--method": self.method is not None, "--tune": self.tune is not None}.items():
            if is_set and self.learned is not None:
                raise UsageError(f"--learned and {flag} exclude one another: the file defines the fusion")

    def _check_ablation(self) -> None:
        if self.ablation is not None and self.qrels is None:
            raise UsageError("--ablation needs --qrels: losses are measured with judgements")
        if self.ablation is None and self.measure:
            raise UsageError("--measure is for --ablation FILE; --tune names its own")
        check_measures(self.measure)
        if self.ablation is not None or self.attribution is not None:
            name_runs(self.run)

    def side_products(self) -> dict[str, tuple[Path, str]]:
        """What --save, --attribution and --ablation name."""
        paths = {"--save": self.save, "--attribution": self.attribution, "--ablation": self.ablation}
        return {flag: (path, "fusion" if flag == "--save" else flag.lstrip("-")) for flag, path in paths.items() if path is not None}

    def execute(self, *, force: bool) -> None:
        """Execute with the method that applies, so that the manifest names it."""
        [stage] = self.parts()
        if stage is not self:
            is_one = stage.method == ONE_MODEL_METHOD
            log.info("--method %s: the runs are %s", stage.method, "those of one index" if is_one else "of different systems")
        super(Fuse, stage).execute(force=force)

    def parts(self) -> "tuple[Fuse]":
        if self.method is not None or self.learned is not None:
            return (self,)
        return (replace(self, method=ONE_MODEL_METHOD if self._have_one_index() else OTHER_METHOD),)

    def estimate(self) -> list[str]:
        if self.learned is not None:
            self._load_learned_fusion()
        return []

    def _have_one_index(self) -> bool:
        """Whether `moeir search` wrote all runs, from one index, with one calibration."""
        searches = [find_search_of_run(path) for path in run_paths(self.run)]
        return None not in searches and len({(search.indexes, search.model) for search in searches if search}) == 1

    def _warn_of_scales(self, expert_runs: "Sequence[Run]", method: str) -> None:
        """Warn if a raw sum is of scores whose standard deviations differ by more than 10 times."""
        if variants.parse_spec(method).name.replace("_", "-") not in RAW_SUMS:
            return
        names = short_run_names(self.run)
        if len(set(names)) < len(names):
            names = list(map(str, self.run))
        spreads = sorted((float(run.scores.std()), name) for run, name in zip(expert_runs, names, strict=True) if len(run.scores))
        if spreads and spreads[-1][0] > MAX_SCALE_RATIO * spreads[0][0] > 0:
            (least, narrow), (most, wide) = spreads[0], spreads[-1]
            log.warning("--method %s: scores of %s have a standard deviation of %.3g, those of %s %.3g, so the sum follows the first; "
                        "rrf or zscore count both alike", method, wide, most, narrow, least)  # fmt: skip

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['queries'], 'query')}, {format_count(counts['hits'], 'hit')}"

    def next_command(self) -> list[object]:
        if self.answers is not None:
            return ["evaluate", "--run", self.output, "--answers", self.answers, "--corpus", self.corpus, "--match", self.match]
        return ["evaluate", "--run", self.output, "--qrels", self.find_source("qrels", self.qrels)]

    def work(self) -> Counts:
        from moeir.fusion import formulas
        from moeir.records import runs

        expert_runs = self._read_runs()
        tuning_counts = {} if self.tune is None else self._tune_method(expert_runs, self.tune)
        method = str(tuning_counts.pop("method", self.method))
        if self.learned is None:
            self._warn_of_scales(expert_runs, method)
        merge = self._load_learned_fusion() if self.learned else variants.bind_variant("fusion", method)
        fused_run = formulas.fuse_runs(expert_runs, merge, self.depth)
        runs.write_run(fused_run, self.output, tag=self.tag)
        self._write_side_outputs(expert_runs, merge, fused_run)
        return {"queries": len(fused_run), "hits": len(fused_run.scores), **tuning_counts}

    def _read_runs(self) -> "list[Run]":
        """The runs, with the depth that each was searched to."""
        expert_runs = [read_run_with_depth(path) for path in run_paths(self.run)]
        if self.run_depth is None:
            log_guessed_depths(run_paths(self.run), expert_runs, self.method, "--run-depth K sets it")
            return expert_runs
        for run, path in zip(expert_runs, run_paths(self.run), strict=True):
            if (longest := replace(run, depth=None).list_depth) > self.run_depth:
                raise UsageError(f"--run-depth {self.run_depth}: {path} has a list of {longest} hits; expected the depth of its search")
        return [replace(run, depth=self.run_depth) for run in expert_runs]

    def _tune_method(self, expert_runs: "Sequence[Run]", measure_name: str) -> dict[str, Any]:
        """The best value, the measure, the score of every value tried, and the method with the best value; --save writes them."""
        from moeir.evaluation import measures, tables
        from moeir.evaluation.result_tables import MACRO
        from moeir.fusion import files, tuning
        from moeir.records import qrels

        measure = measures.parse_measure(measure_name)
        name = str(measure) if self.group_by is None else f"{measure}, {MACRO} by {self.group_by}"
        grades = None if self.qrels is None or self.answers is not None else qrels.read_qrels(self.qrels)
        tuned = tuning.tune_method(str(self.method), self.grid, partial(self._mean_values, expert_runs, grades, measure))
        for line in tables.format_table(["alpha", name], [[step, mean] for step, mean in tuned.means.items()]).splitlines():
            log.info("%s", line)
        log.info("tuned: --method %s", tuned.method)
        if len(tuned.means) > 1 and tuned.alpha == list(tuned.means)[-1] and variants.parse_spec(str(self.method)).name == "hybrid":
            log.info("the best value is the last of the grid; a larger LAST in --grid may be better")
        if self.save is not None:
            provenance = {"by": "moeir fuse --tune", "measure": name, "value": tuned.means[tuned.alpha], "tried": len(tuned.means)}
            files.write_fusion(files.SavedFusion(tuned.method, tuple(short_run_names(self.run)), provenance), self.save)
        return {"alpha": tuned.alpha, "measure": name, "grid": tuned.means, "method": tuned.method}

    def _mean_values(
        self, expert_runs: "Sequence[Run]", grades: "Qrels | None", measure: "Measure", methods: "Sequence[str]"
    ) -> list[float]:
        """The mean of the measure for the runs fused by each method; with --answers all are kept for one pass over the corpus."""
        from moeir.evaluation import answer_match, measures
        from moeir.evaluation.result_tables import MACRO, group_samples
        from moeir.fusion import formulas

        depth = self.depth if self.answers is None else min(self.depth, answer_match.max_cutoff([measure]) or self.depth)
        fused_runs = (formulas.fuse_runs(expert_runs, variants.bind_variant("fusion", method), depth) for method in methods)
        judged: Iterable[tuple[Run, Qrels]]
        if grades is not None:
            judged = ((run, grades) for run in fused_runs)
        else:
            assert self.answers is not None and self.corpus is not None
            all_runs, answers = list(fused_runs), read_answers(self.answers, self.match)
            judged = zip(all_runs, answer_match.qrels_from_answers(all_runs, answers, self.corpus), strict=True)
        groups, means = read_groups(self.group_by, self.queries or self.answers), []
        for run, run_grades in judged:
            with name_source(run_paths(self.run)[0]):
                values = measures.evaluate_run(run, run_grades, [measure])
            with name_source(self.queries or self.answers):
                sample = values if groups is None else group_samples(values, groups, str(self.group_by))[MACRO]
            means.append(measures.aggregate_values(sample)[str(measure)])
        return means

    def _load_learned_fusion(self) -> "FusionFormula":
        """The merge function of the --learned file."""
        from moeir.fusion import files

        assert self.learned is not None
        saved_fusion = files.read_fusion(self.learned)
        saved_fusion.check_runs(self.learned, short_run_names(self.run))
        return variants.bind_variant("fusion", saved_fusion.method)

    def _write_side_outputs(self, expert_runs: "Sequence[Run]", merge: "FusionFormula", fused_run: "Run") -> None:
        """Write the files of --attribution and --ablation."""
        from moeir.analysis import attribution
        from moeir.evaluation import measures, tables
        from moeir.records import lines, qrels

        runs_by_name = dict(zip(name_runs(self.run), expert_runs, strict=True)) if self.attribution or self.ablation else {}
        if self.attribution is not None:
            rows = attribution.hit_rows(runs_by_name, merge, fused_run)
            lines.write_lines(tables.format_lines(attribution.hit_header(list(runs_by_name)), rows, "tsv"), self.attribution)
        if self.ablation is not None and self.qrels is not None:
            requested = [measures.parse_measure(text) for text in self.measure or ABLATION_MEASURES]
            grades = qrels.read_qrels(self.qrels)
            with name_source(run_paths(self.run)[0]):
                header, table_rows = attribution.leave_one_out(runs_by_name, merge, fused_run, self.depth, grades, requested)
            lines.write_lines(tables.format_lines(header, table_rows, "tsv"), self.ablation)
            for line in tables.format_table(header, table_rows).splitlines():
                log.info("%s", line)
