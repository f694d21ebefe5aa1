"""`moeir report`: an HTML page of runs and trainings, query by query, or trainings as text."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import atomic_write, manifests
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.fusion import FUSED
from moeir.settings import input_field, list_settings, option, output_field
from moeir.stages.base import DEPTH, STREAM, Counts, Facts, Stage, split_run_name
from moeir.stages.run_arguments import (
    DEFAULT_MEASURES,
    check_measures,
    find_search_of_run,
    name_runs,
    prefix_errors_with,
    read_runs,
)

if TYPE_CHECKING:
    from moeir.records.texts import Text
    from moeir.reporting.explanations import Explanations
    from moeir.reporting.page_data import QueryPages

TEXT_SUFFIXES, PAGE_SUFFIXES = ("", ".txt"), (".html", ".htm")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Report(Stage):
    """Report on runs and trainings. --output page.html writes one file with measures, comparisons of experts, every query with its lists
    and their explanations, and trainings; without it trainings are written as text."""

    run: tuple[Path, ...] = input_field(
        "run", "Page: a run; repeat the flag; NAME=PATH names it.", (), aliases=("--runs",), needs=("qrels",)
    )
    qrels: Path | None = input_field("qrels", "Page: relevance judgements of the queries that it shows.", None, needs=("run",))
    queries: Path | None = input_field("texts", "Page: query texts.", None, aliases=("--topics",), needs=("run",))
    corpus: Path | None = input_field("texts", "Page: document texts.", None, needs=("run",))
    index: tuple[Path, ...] = input_field(
        "index",
        "Page: index that runs were searched with, to explain their hits by terms, tokens and parts.",
        (),
        needs=("run", "queries"),
    )
    model: Path | None = input_field(
        "checkpoint", "Page: with --index, the checkpoint that searched it, as search --model.", None, needs=("index",)
    )
    training: tuple[Path, ...] = input_field("training", "Output folder of finetune or pretrain; repeat the flag to compare several.", ())
    measure: tuple[str, ...] = option(
        "Page: nDCG@10, RR@10, …; repeat the flag. Query pages show the first.", DEFAULT_MEASURES, aliases=("--metric", "-m")
    )
    depth: int = option("Page: documents shown of every list.", 10, **DEPTH)
    text_length: int = option("Page: maximum characters of a document.", 1200, minimum=1)
    title: str | None = option("Page: title [default: names of the runs and trainings].", None)
    output: Path = output_field("report", "Output file: .html for a page, else text.", STREAM)

    def check(self) -> None:
        if self._output_suffix() not in (*TEXT_SUFFIXES, *PAGE_SUFFIXES):
            raise UsageError(f"--output {self.output}: expected a name that ends with .html for a page, or .txt")
        if not self.run and not self.training:
            raise UsageError("report: expected --run and --qrels, or --training")
        if self._output_suffix() not in PAGE_SUFFIXES:
            page_settings = [setting for setting in list_settings(type(self)) if setting.name not in ("training", "output", "code")]
            if flags := [setting.flag for setting in page_settings if getattr(self, setting.name) != setting.default]:
                raise UsageError(f"{flags[0]}: is for a page; expected --output page.html")
        check_measures(self.measure if self.run else ())

    def _output_suffix(self) -> str:
        """The suffix of --output, without .gz or .zst."""
        from moeir.records import lines

        return lines.strip_compression_suffix(atomic_write.final_path(self.output)).suffix

    def summary(self, counts: Facts) -> str:
        nouns = {"queries": "query", "documents": "document", "runs": "run", "trainings": "training", "steps": "step"}
        return ", ".join(format_count(counts[name], noun) for name, noun in nouns.items() if counts.get(name))

    def work(self) -> Counts:
        if self._output_suffix() in PAGE_SUFFIXES:
            return self._write_page()
        from moeir.records import lines
        from moeir.reporting import training_curves

        trainings = training_curves.load_trainings(self.training)
        lines.write_lines([training_curves.format_trainings(trainings)], self.output)
        return {"trainings": len(trainings), "steps": sum(one.monitor.step for one in trainings)}

    def _write_page(self) -> Counts:
        from moeir.records import lines
        from moeir.reporting import html_page, page_data, training_curves

        trainings = training_curves.load_trainings(self.training) if self.training else []
        title = self.title or ", ".join([*name_runs(self.run), *(one.name for one in trainings)])
        data: dict[str, Any] = {"title": title, "trainings": page_data.training_charts(trainings)}
        counts: dict[str, Any] = {"runs": len(self.run), "trainings": len(trainings)}
        parts: Iterator[tuple[str, Any]] = iter(())
        if self.run:
            pages, query_texts, comparison = self._read_query_pages()
            experts = self._find_experts() if self.index else {}
            explanations = self._load_explanations(pages, query_texts, experts)
            data |= pages.overview(query_texts) | {"judged": comparison, "experts": experts}
            parts = pages.iter_chunks(self._read_texts(self.corpus), explanations, self.text_length)
            counts |= {"queries": len(pages.queries), "documents": len(pages.document_numbers), "explained": explanations.document_count}
        with lines.open_writer(self.output) as output:
            output.writelines(html_page.render_page(title, data, parts))
        return counts

    def _read_query_pages(self) -> "tuple[QueryPages, dict[str, Text], dict[str, Any]]":
        """The query pages, the texts of their queries, and the comparison of the runs."""
        from moeir.evaluation import measures
        from moeir.records import qrels
        from moeir.reporting import page_data

        assert self.qrels is not None
        grades = qrels.read_qrels(self.qrels)
        runs_by_name = read_runs(self.run)
        requested = [measures.parse_measure(text) for text in self.measure]
        with prefix_errors_with(self.qrels):
            values = {name: measures.evaluate_run(run, grades, requested) for name, run in runs_by_name.items()}
        pages = page_data.QueryPages(runs_by_name, grades, self.depth)
        query_texts = {text.id: text for text in self._read_texts(self.queries) if text.id in grades}
        return pages, query_texts, page_data.comparison_table(values, pages.queries)

    def _read_texts(self, path: Path | None) -> "Iterator[Text]":
        from moeir.records import texts

        return iter(()) if path is None else texts.read_texts(path, keep_empty=True)

    def _find_experts(self) -> dict[str, str]:
        """The name of the first run of each of the index's experts, and of `fused`, as the manifests of the runs say.

        A run without the manifest of a search belongs to the expert that NAME=PATH names. One that was searched with another calibration
        has other scores than the explanations would have.
        """
        digests = sorted(map(manifests.compute_digest, self.index))
        experts, others = dict[str, str](), list[str]()
        counts = manifests.read_manifest(self.index[0])["counts"]
        known = {*counts["experts"], FUSED}
        default = (counts.get("checkpoint") or {}).get("digest")
        model = default if self.model is None else manifests.compute_digest(self.model)
        for run, (name, path) in zip(self.run, name_runs(self.run).items(), strict=True):
            search = find_search_of_run(path)
            is_same = search is not None and sorted(search.indexes) == digests and (search.model or default) == model
            expert = split_run_name(run)[0] if search is None else search.expert if is_same else None
            if expert in known:
                experts.setdefault(str(expert), name)
            else:
                others.append(name)
        if experts.keys() == {FUSED}:
            log.warning("%s: shown without explanations, which need the runs of its experts: name them with --run", experts.pop(FUSED))
        if others:
            whose = "" if default is None else f" and {self.model or 'its checkpoint'} (--model names a calibrated one)"
            expected = f"not an expert's run that moeir search wrote with {', '.join(map(str, self.index))}{whose}"
            log.info("%s: shown without explanations: %s; --run EXPERT=PATH tells whose run it is", ", ".join(others), expected)
        return experts

    def _load_explanations(self, pages: "QueryPages", query_texts: "Mapping[str, Text]", experts: Mapping[str, str]) -> "Explanations":
        """The explanations of a page's documents, from --index, for the runs of its `experts`; without any, none."""
        from moeir.reporting.explanations import Explanations

        if not experts:
            return Explanations()
        from moeir.retrieval.explain import explain_runs

        runs_by_expert = {expert: pages.runs[name] for expert, name in experts.items()}
        explained = explain_runs(self.index, self.corpus, runs_by_expert, query_texts, pages.shown_documents, model=self.model)
        return Explanations(explained, pages.shown_documents)
