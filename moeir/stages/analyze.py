"""`moeir analyze`: overlap, wins and competition of runs, usage of routers."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.console import format_count, progress
from moeir.errors import UsageError
from moeir.settings import argument, input_field, list_settings, option, output_field
from moeir.stages.base import DEVICE, DTYPE, MAX_SEED, STREAM, Counts, Facts, Stage
from moeir.stages.run_arguments import choose_form, prefix_errors_with, read_runs

if TYPE_CHECKING:
    from moeir.analysis.result import AnalysisResult
    from moeir.analysis.router_usage import RouterUsage
    from moeir.architectures.checkpoint import RetrievalModel
    from moeir.records.qrels import Qrels

SIDES = (("query", "queries"), ("document", "corpus"))
TEXTS_PER_BATCH = 1024
ANALYSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # the flags that each analysis reads, and those of them that it needs
    "overlap": (("run", "overlap"), ()),
    "usage": (("model", "corpus", "queries", "max_tokens", "dtype", "device"), ("model",)),
    "wins": (("run", "qrels", "measure", "list_queries"), ("run", "qrels")),
    "competition": (("run", "after", "qrels", "measure", "seed"), ("run", "after", "qrels")),
}
FORMS = ("auto", "table", "tsv", "jsonl")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Analyze(Stage):
    """Analyze experts: overlap and wins of their runs, whether they should compete, and usage of a model's routers."""

    analysis: str = argument(f"{', '.join(list(ANALYSES)[:-1])} or {list(ANALYSES)[-1]}.", "overlap", words=tuple(ANALYSES))
    run: tuple[Path, ...] = input_field(
        "run",
        "overlap, wins: a run; competition: an expert's before it learned without competition; repeat the flag; NAME=PATH names it.",
        (),
        aliases=("--runs",),
    )
    after: tuple[Path, ...] = input_field("run", "competition: the run of each expert after that, by the same names.", ())
    overlap: str = option("overlap: rbo:persistence=0.9 or overlap:depth=100.", "rbo", package="analysis.overlap")
    model: Path | None = input_field("checkpoint", "usage: checkpoint.", None, aliases=("--encoder",))
    corpus: Path | None = input_field("texts", "usage: documents.", None, only_with=("usage",))
    queries: Path | None = input_field("texts", "usage: queries.", None, aliases=("--topics",), only_with=("usage",))
    qrels: Path | None = input_field("qrels", "wins, competition: relevance judgements.", None, only_with=("wins", "competition"))
    measure: str = option("Measure by which a run wins; competition: of what is gained.", "nDCG@10", aliases=("--metric", "-m"))
    list_queries: bool = option("wins: list each query with its winner and values, largest difference first.", False, aliases=("--list",))
    seed: int = option("competition: seed of the sampling.", 42, minimum=0, maximum=MAX_SEED)
    max_tokens: int = option("usage: maximum tokens per batch; lower it if memory runs out.", 16384, minimum=1, affects_result=False)
    dtype: str = option(**DTYPE)
    device: str = option(**DEVICE)
    form: str = option("Form of the table; auto: by --output.", "auto", choices=FORMS, aliases=("--format",), group="Output")
    output: Path = output_field("analysis", "Output file, .tsv or .jsonl; - is stdout.", STREAM)

    def check(self) -> None:
        if self.analysis not in ANALYSES:
            raise UsageError(f"analyze {self.analysis}: expected one of {', '.join(ANALYSES)}")
        for setting in list_settings(type(self)):
            readers = [analysis for analysis, (flags, _) in ANALYSES.items() if setting.name in flags]
            if getattr(self, setting.name) != setting.default and readers and self.analysis not in readers:
                raise UsageError(f"analyze {self.analysis}: does not read {setting.flag}; it belongs to analyze {' or '.join(readers)}")
        for flag in ANALYSES[self.analysis][1]:
            if getattr(self, flag) in (None, ()):
                raise UsageError(f"analyze {self.analysis}: needs --{flag}")
        if self.analysis == "usage" and self.corpus is None and self.queries is None:
            raise UsageError("analyze usage: needs --corpus, --queries or both")
        if self.analysis != "usage" and len(self.run) < 2:
            raise UsageError(f"analyze: expected two runs or more, found {len(self.run)}; repeat --run")
        choose_form(self.form, self.output, "table")

    def summary(self, counts: Facts) -> str:
        return f"{self.analysis}, {format_count(counts['rows'], 'row')}"

    def work(self) -> Counts:
        from moeir.evaluation import tables
        from moeir.records import lines

        result: AnalysisResult = getattr(self, f"_analyze_{self.analysis}")()
        if repeated := next((name for name in result.columns if result.columns.count(name) > 1), None):
            raise UsageError(f"--run: the table would have two columns called {repeated!r}; name the run (or column) otherwise")
        if (form := choose_form(self.form, self.output, "table")) == "table":
            table = tables.format_table(result.columns, result.rows)
            lines.write_lines([table, *(("", *result.notes) if result.notes else ())], self.output)
        else:
            lines.write_lines(tables.format_lines(result.columns, result.rows, form), self.output)
            for note in result.notes:
                log.info("%s", note)
        return {"rows": len(result.rows)}

    def _analyze_overlap(self) -> "AnalysisResult":
        from moeir.analysis.overlap import analyze_overlap

        return analyze_overlap(read_runs(self.run), self.overlap)

    def _analyze_wins(self) -> "AnalysisResult":
        from moeir.analysis import wins
        from moeir.evaluation import measures

        grades, measure = self._read_qrels(), measures.parse_measure(self.measure)
        with prefix_errors_with(self.qrels):
            values = {name: measures.evaluate_run(run, grades, [measure])[str(measure)] for name, run in read_runs(self.run).items()}
        return wins.list_wins(values) if self.list_queries else wins.analyze_wins(values, self.measure)

    def _analyze_competition(self) -> "AnalysisResult":
        from moeir.analysis.competition import analyze_competition

        return analyze_competition(read_runs(self.run), read_runs(self.after), self._read_qrels(), self.measure, seed=self.seed)

    def _analyze_usage(self) -> "AnalysisResult":
        from moeir.analysis.router_usage import analyze_usage
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.device import autocast, select_device, select_dtype

        assert self.model is not None
        device = select_device(self.device)
        checkpoint = open_checkpoint(self.model, device)
        if not checkpoint.encode(["?"]).routing:
            raise UsageError(f"{self.model}: {variants.parse_spec(checkpoint.spec).name} has no learned router; there is no usage to count")
        paths = [(side, getattr(self, name)) for side, name in SIDES]
        with autocast(select_dtype(self.dtype, device), device):
            return analyze_usage({side: self._count_usage(checkpoint, path, side) for side, path in paths if path is not None})

    def _count_usage(self, checkpoint: "RetrievalModel", path: Path, side: str) -> "dict[str, RouterUsage]":
        """Each router's usage over the texts of a file."""
        from moeir.analysis.router_usage import RouterUsage
        from moeir.records import texts

        usage: dict[str, RouterUsage] = {}
        contents = (text.content for text in progress(texts.read_texts(path, keep_empty=True), "routing"))
        for batch in texts.split_chunks(contents, TEXTS_PER_BATCH):
            for router, output in checkpoint.encode(batch, side, max_tokens=self.max_tokens).routing.items():
                probabilities = output.probabilities.float().cpu().numpy()
                batch_usage = RouterUsage.from_probabilities(probabilities, len(output), output.top_k or 1)
                usage[router] = usage[router] + batch_usage if router in usage else batch_usage
        return usage

    def _read_qrels(self) -> "Qrels":
        from moeir.records import qrels

        assert self.qrels is not None
        return qrels.read_qrels(self.qrels)
