"""`moeir evaluate`: evaluation measures of runs, from judgements or answers."""

import logging
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import COLLAPSE, STREAM, Counts, Facts, Stage, is_stream
from moeir.stages.run_arguments import (
    DEFAULT_MEASURES,
    MATCHES,
    check_measures,
    choose_form,
    find_merged_runs,
    name_runs,
    prefix_errors_with,
    read_answers,
    read_run_with_depth,
    run_paths,
    warn_of_better_part,
)

if TYPE_CHECKING:
    from ir_measures import Measure

    from moeir.evaluation.result_tables import Comparison, LabelledValues
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run

comparison_option = partial(option, group="Comparison of runs")
log = logging.getLogger(__name__)
FORMS = ("auto", "table", "markdown", "latex", "tsv", "jsonl", "json")
TABLE_FORMS = ("table", "markdown", "latex")
FORMS_BY_SUFFIX = {".tex": "latex", ".md": "markdown", ".json": "json"}


@dataclass(frozen=True, kw_only=True)
class Evaluate(Stage):
    """Evaluate runs against judgements or answers, side by side, with p-values against the first. A query missing from a run counts 0."""

    run: tuple[Path, ...] = input_field("run", "A run; repeat the flag to compare runs; NAME=PATH names it.", aliases=("--runs",))
    qrels: Path | None = input_field("qrels", "Relevance judgements in TREC or BEIR format.", None, excludes=("answers",))
    answers: Path | None = input_field(
        "texts", "Instead of --qrels: questions with answers; a document that contains an answer is relevant.", None, needs=("corpus",)
    )
    corpus: Path | None = input_field("texts", "With --answers: the documents to search for answers.", None, needs=("answers",))
    match: str = option(
        "How --answers are found; string: as a sequence of tokens (DPR).", "string", choices=MATCHES, needs=("answers",), group="Inputs"
    )
    collapse: str | None = option(**COLLAPSE, group="Inputs")
    measure: tuple[str, ...] = option(
        "nDCG@10, RR@10, R@100, AP, … or trec_eval's names; repeat the flag "
        "[default: nDCG@10, RR@10, R@100; with --answers Success@20, Success@100].",
        (),
        aliases=("--metric", "-m"),
        group="Measures",
    )
    group_by: str | None = option(
        "Report means per value of this query field, and their mean (macro).", None, needs=("queries or answers",), group="Measures"
    )
    queries: Path | None = input_field(
        "texts", "With --group-by: the queries, if --answers lacks the field.", None, aliases=("--topics",), needs=("group_by",)
    )
    per_query: bool = option("Report the value of every query, too.", False, aliases=("-q",), group="Measures")
    test: str = comparison_option("Test of each run against the first; t is paired.", "t", choices=("t", "randomisation", "none"))
    correction: str = comparison_option(
        "Correction of p-values over all runs and measures.", "holm", choices=("holm", "bonferroni", "none")
    )
    against: tuple[str, ...] = comparison_option(
        "A run of this call, by its name or path: mark what is significantly better than it, instead of p-values against the first; "
        "repeat the flag.",
        (),
    )
    intervals: bool = comparison_option(
        "Report 95 % confidence intervals of the means, too (Student's t of the logit, so within 0 and 1).",
        False,
    )
    compat: str | None = option(
        "Compute measures as another tool; trec_eval without -c, as MTEB.",
        None,
        choices=("trec_eval", "beir"),
        excludes=("answers", "group_by", "collapse"),
        group="Other tools",
    )
    form: str = option("Form of the table; auto: by --output, --per-query.", "auto", choices=FORMS, aliases=("--format",), group="Output")
    output: Path = output_field("evaluation", "Output file; - is stdout.", STREAM)

    def check(self) -> None:
        if self.form in (*TABLE_FORMS, "json") and self.per_query:
            raise UsageError(f"--per-query: {self.form} has no room for queries; add --form tsv or --form jsonl")
        self._comparison().check()
        check_measures(self.measure)
        self._choose_form()
        if self.qrels is None and self.answers is None:
            raise UsageError("evaluate needs --qrels, or --answers and --corpus")
        if self.group_by is not None and self.queries is None and self.answers is not None and is_stream(self.answers):
            raise UsageError(f"--answers {self.answers}: --group-by reads them too, and a pipe can be read once; name a file")

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['runs'], 'run')}, {format_count(counts['queries'], 'query')}"

    def next_command(self) -> str | None:
        if self.qrels is None or any(map(is_stream, (self.qrels, *run_paths(self.run)))):
            return None
        runs = " ".join(f"--run {shlex.quote(str(run))}" for run in self.run)
        return f"report {runs} --qrels QRELS --output report.html"

    def work(self) -> Counts:
        from moeir.evaluation import measures
        from moeir.evaluation.answer_match import DEFAULT_MEASURES as OF_ANSWERS
        from moeir.evaluation.result_tables import ALL_QUERIES, group_samples
        from moeir.records import lines, texts

        requested = [measures.parse_measure(text) for text in self.measure or (DEFAULT_MEASURES if self.answers is None else OF_ANSWERS)]
        fields_file = self.queries or self.answers
        groups = None if self.group_by is None or fields_file is None else texts.read_field(fields_file, self.group_by)
        values: dict[str, LabelledValues] = {}
        notes, queries = [], 0
        for name, path, run, qrels, note in self._runs_with_qrels(requested):
            with prefix_errors_with(path):
                evaluate = measures.evaluate_run if self.compat is None else partial(measures.evaluate_as, self.compat)
                run_values = evaluate(run, qrels, requested)
            with prefix_errors_with(fields_file):
                values[name] = {ALL_QUERIES: run_values} if groups is None else group_samples(run_values, groups, str(self.group_by))
            notes.append(f"{name}: {note}")
            queries = len(qrels)
        lines.write_lines(self._output_lines(values), self.output)
        for text in notes:
            log.info("%s", text)
        for name, parts in find_merged_runs(name_runs(self.run)).items() if groups is None and len(values) > 1 else ():
            samples = {one: values[one][ALL_QUERIES][str(requested[0])] for one in (*parts, name)}
            warn_of_better_part(str(requested[0]), {part: samples[part] for part in parts}, f"{name}, which merges it,", samples[name])
        return {"queries": queries, "runs": len(values)}

    def _runs_with_qrels(self, requested: "list[Measure]") -> "Iterator[tuple[str, Path, Run, Qrels, str]]":
        """The name, path and judgements of every run, and a note on how many queries they cover."""
        from moeir.evaluation import answer_match, measures
        from moeir.records import qrels

        paths = name_runs(self.run)
        all_runs: Iterable[Run] = (read_run_with_depth(path, self.collapse) for path in paths.values())
        judged, others = ("judged queries", "not judged") if self.answers is None else ("questions", "without answers")
        if self.qrels is not None:
            all_qrels: Iterable[Qrels] = repeat(qrels.read_qrels(self.qrels))
        else:
            assert self.answers is not None and self.corpus is not None
            questions, depth = read_answers(self.answers, self.match), answer_match.max_cutoff(requested)
            all_runs = [run if depth is None else run.top(depth) for run in all_runs]
            all_qrels = answer_match.qrels_from_answers(all_runs, questions, self.corpus)
        for (name, path), run, grades in zip(paths.items(), all_runs, all_qrels):
            coverage = measures.compute_coverage(run, grades)
            note = f"{coverage.judged - coverage.missing} of {coverage.judged} {judged}, {coverage.missing} without hits"
            note += f", {coverage.extra} {others}"
            if self.qrels is not None:
                note += f"; {100 * coverage.unjudged_at_depth:.1f} % of the top {coverage.depth} unjudged"
            yield name, path, run, grades, note

    def _comparison(self) -> "Comparison":
        from moeir.evaluation.result_tables import Comparison

        names = {str(path): name for name, path in name_runs(self.run).items()}
        names |= {name: name for name in names.values()}
        if unknown := next((text for text in self.against if text not in names), None):
            raise UsageError(f"--against {unknown}: expected a run of this call: {', '.join(dict.fromkeys(names.values()))}")
        baselines = tuple(dict.fromkeys(names[text] for text in self.against))
        return Comparison(self.test, self.correction, self.intervals, baselines)

    def _choose_form(self) -> str:
        stream_form, forms = ("tsv", {}) if self.per_query else ("table", FORMS_BY_SUFFIX)
        return choose_form(self.form, self.output, stream_form, forms)

    def _output_lines(self, samples_by_run: "dict[str, LabelledValues]") -> Iterator[str]:
        from moeir.evaluation import result_tables

        form = self._choose_form()
        if form in TABLE_FORMS:
            yield result_tables.to_table(samples_by_run, form, self._comparison())
        elif form == "json":
            yield result_tables.to_json(samples_by_run, self._comparison())
        else:
            yield from result_tables.to_lines(samples_by_run, form, per_query=self.per_query)
