"""`moeir analyze`: overlap, wins and competition of runs, router usage, projection of vectors."""

import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir.artifacts import atomic_write
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import argument, input_field, list_settings, option, output_field
from moeir.stages.analysis_inputs import TextEncoder
from moeir.stages.base import DTYPE, MAX_SEED, STREAM, Counts, Facts, Stage
from moeir.stages.run_arguments import (
    check_matplotlib,
    check_table_suffix,
    choose_form,
    name_source,
    read_query_texts,
    read_runs,
)

if TYPE_CHECKING:
    from moeir.analysis.result import AnalysisResult
    from moeir.records.qrels import Qrels

SIDES = (("query", "queries"), ("document", "corpus"))
TEXTS_AND_MODEL = ("model", "corpus", "queries", "max_tokens", "dtype", "device")
ANALYSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # the flags that each analysis reads, and those of them that it needs
    "overlap": (("run", "overlap"), ()),
    "usage": (TEXTS_AND_MODEL, ("model",)),
    "wins": (("run", "qrels", "measure", "queries", "list_queries"), ("run", "qrels")),
    "competition": (("run", "after", "qrels", "measure", "seed"), ("run", "after", "qrels")),
    "projection": ((*TEXTS_AND_MODEL, "expert", "projection", "dimensions", "sample", "seed"), ("model",)),
}
READERS = {flag: tuple(name for name, (flags, _) in ANALYSES.items() if flag in flags) for flag in ("corpus", "queries")}
FORMS = ("auto", "table", "tsv", "jsonl")
PLOT_SUFFIXES = (".svg", ".png")
log = logging.getLogger(__name__)
MAX_TEXT = 80  # characters of a text in a table


@dataclass(frozen=True, kw_only=True)
class Analyze(Stage):
    """Analyze experts: overlap and wins of runs, and whether to compete; router usage and projection of a model's vectors. --output x.tsv
    writes a table, x.svg or x.png a plot."""

    analysis: str | None = argument(
        f"{', '.join(list(ANALYSES)[:-1])} or {list(ANALYSES)[-1]} [default: inferred from the flags].", None, words=tuple(ANALYSES)
    )
    run: tuple[Path, ...] = input_field(
        "run",
        "overlap, wins: a run; competition: an expert's before it learned without competition; repeat the flag; NAME=PATH names it.",
        (),
        aliases=("--runs",),
    )
    after: tuple[Path, ...] = input_field("run", "competition: the run of each expert after that, by the same names.", ())
    overlap: str = option("overlap: rbo:persistence=0.9 or overlap:depth=100.", "rbo", package="analysis.overlap")
    model: Path | None = input_field("checkpoint", "usage, projection: checkpoint.", None, aliases=("--encoder",))
    corpus: Path | None = input_field("texts", "Documents.", None, only_with=READERS["corpus"])
    queries: Path | None = input_field(
        "texts",
        "Queries. wins --list: to show their texts.",
        None,
        aliases=("--topics",),
        only_with=("list_queries", *(name for name in READERS["queries"] if name != "wins")),
    )
    qrels: Path | None = input_field(
        "qrels",
        "Relevance judgements.",
        None,
        only_with=("wins", "competition"),
    )
    measure: str = option(
        "wins: measure by which a run is best on a query; competition: of what is gained.", "nDCG@10", aliases=("--metric", "-m")
    )
    list_queries: bool = option("wins: list each query with its winner and values, largest difference first.", False, aliases=("--list",))
    projection: str = option("projection: tsne:perplexity=30 or pca.", "tsne", package="analysis.projection")
    dimensions: int = option("projection: number of dimensions, 2 or 3.", 2, choices=(2, 3))
    sample: int = option("projection: maximum number of queries and of documents, sampled at random.", 2000, minimum=1, maximum=100_000)
    expert: str | None = option("projection: the dense expert [default: the only one].", None)
    seed: int = option("projection, competition: seed of the sampling and of t-SNE.", 42, minimum=0, maximum=MAX_SEED)
    max_tokens: int = option("Maximum tokens per batch; lower it if memory runs out.", 16384, minimum=1, affects_result=False)
    dtype: str = option(**DTYPE)
    device: str = option("auto, cpu, cuda or cuda:N.", "auto", affects_result=False)
    form: str = option(
        "table, tsv, jsonl, or auto: a table on stdout, else by the suffix of --output.",
        "auto",
        choices=FORMS,
        aliases=("--format",),
        group="Output",
    )
    output: Path = output_field("analysis", "Output file: .svg or .png for a plot, .tsv or .jsonl for a table; - is stdout.", STREAM)

    def check(self) -> None:
        name = self._analysis_name()
        self._check_flags(name)
        if name in ("overlap", "wins", "competition") and len(self.run) < 2:
            raise UsageError(f"analyze: expected two runs or more, found {len(self.run)}; repeat --run")
        if name == "projection" and importlib.util.find_spec("sklearn") is None:
            raise UsageError("analyze projection: needs the package scikit-learn; pip install 'moeir[report]'")
        if not self._plot_format():
            check_table_suffix(self.output, plots=True)
        elif name == "competition" or self.list_queries:
            problem = f"analyze {name}{' --list' * self.list_queries} has no plot"
            raise UsageError(f"--output {self.output}: {problem}; expected a name that ends in .tsv or .jsonl")
        elif self.form != "auto":
            raise UsageError(f"--form {self.form}: {self.output} is a plot")
        else:
            check_matplotlib(self.output)

    def _plot_format(self) -> str | None:
        """The format of the plot, if --output is one."""
        suffix = atomic_write.final_path(self.output).suffix
        return suffix.removeprefix(".") if suffix in PLOT_SUFFIXES else None

    def _analysis_name(self) -> str:
        """The analysis that was named, or the one the flags belong to."""
        if self.analysis is not None:
            if self.analysis not in ANALYSES:
                raise UsageError(f"analyze {self.analysis}: expected one of {', '.join(ANALYSES)}")
            return self.analysis
        return "overlap" if self.run or not self.model else "usage"

    def _check_flags(self, name: str) -> None:
        """UsageError for a missing flag, or one that this analysis does not read."""
        for setting in list_settings(type(self)):
            analyses = [analysis for analysis, (flags, _) in ANALYSES.items() if setting.name in flags]
            if getattr(self, setting.name) != setting.default and analyses and name not in analyses:
                raise UsageError(f"analyze {name}: does not read {setting.flag}; it belongs to analyze {' or '.join(analyses)}")
        for flag in ANALYSES[name][1]:
            if getattr(self, flag) in (None, ()):
                raise UsageError(f"analyze {name}: needs --{flag}")
        if name in ("usage", "projection") and self.corpus is None and self.queries is None:
            raise UsageError(f"analyze {name}: needs --corpus, --queries or both")
        if name == "wins" and self.queries is not None and not self.list_queries:
            raise UsageError("analyze wins: --queries shows texts, which need --list; evaluate --group-by FIELD compares groups of queries")

    def summary(self, counts: Facts) -> str:
        return f"{self._analysis_name()}, {format_count(counts['rows'], 'row')}"

    def work(self) -> Counts:
        from moeir.evaluation import tables
        from moeir.records import lines

        result: AnalysisResult = getattr(self, f"_analyze_{self._analysis_name()}")()
        if repeated := next((name for name in result.columns if result.columns.count(name) > 1), None):
            raise UsageError(f"--run: the table would have two columns called {repeated!r}; name the run (or column) otherwise")
        if form := self._plot_format():
            from moeir.reporting import plots

            assert result.plot is not None
            plots.draw_plot(result.plot, self.output, form)
        elif (form := choose_form(self.form, self.output, "table")) == "table":
            rows = [[shorten_cell(cell) for cell in row] for row in result.rows]
            table = tables.format_table(result.table_header or result.columns, rows)
            lines.write_lines([table, *(("", *result.notes) if result.notes else ())], self.output)
            return {"rows": len(result.rows)}
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
        with name_source(self.qrels):
            values = {name: measures.evaluate_run(run, grades, [measure])[str(measure)] for name, run in read_runs(self.run).items()}
        if not self.list_queries:
            return wins.analyze_wins(values, self.measure)
        texts = None if self.queries is None else read_query_texts(self.queries, grades, f"{self.qrels} judges", keep_empty=True)
        return wins.list_wins(values, texts)

    def _analyze_competition(self) -> "AnalysisResult":
        from moeir.analysis.competition import analyze_competition

        return analyze_competition(read_runs(self.run), read_runs(self.after), self._read_qrels(), self.measure, seed=self.seed)

    def _analyze_usage(self) -> "AnalysisResult":
        from moeir.analysis.router_usage import analyze_usage

        encoder = self._open_encoder()
        return analyze_usage({side: encoder.count_usage(path, side) for side, path in self._text_files()})

    def _analyze_projection(self) -> "AnalysisResult":
        import numpy as np

        from moeir.analysis.projection import analyze_projection
        from moeir.formats.subsets import sample_items
        from moeir.records.texts import read_texts

        encoder = self._open_encoder()
        expert, names, groups, vectors = encoder.select_dense_expert(self.expert), list[tuple[str, str]](), list[str](), []
        for side, path in self._text_files():
            texts = sample_items(read_texts(path), self.sample, self.seed)
            side_vectors, choices = encoder.encode_dense([text.content for text in texts], side, expert)
            vectors.append(side_vectors)
            names += [(side, text.id) for text in texts]
            groups += [choice or side for choice in choices]
        return analyze_projection(names, groups, np.concatenate(vectors), self.projection, self.dimensions, self.seed)

    def _read_qrels(self) -> "Qrels":
        from moeir.records import qrels

        assert self.qrels is not None
        return qrels.read_qrels(self.qrels)

    def _open_encoder(self) -> TextEncoder:
        assert self.model is not None
        return TextEncoder.open(self.model, self.device, self.dtype, self.max_tokens)

    def _text_files(self) -> list[tuple[str, Path]]:
        """The sides whose texts are given, with their files."""
        paths = [(side, getattr(self, name)) for side, name in SIDES]
        return [(side, path) for side, path in paths if path is not None]


def shorten_cell(cell: object) -> object:
    """A cell of a text table: long texts are cut, as the table's other columns would leave the screen.

    >>> shorten_cell("a" * 100)[-3:], shorten_cell(2)
    ('aa…', 2)
    """
    return cell[: MAX_TEXT - 1] + "…" if isinstance(cell, str) and len(cell) > MAX_TEXT else cell
