"""`moeir report`: an HTML page of runs and trainings, query by query, or a training as text, table or plot."""

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import making
from moeir.errors import DataError, UsageError
from moeir.settings import option, product, settings_of, source
from moeir.stages.base import STREAM, Counts, Stage, check_depth
from moeir.stages.evaluate import MEASURES, named_runs

if TYPE_CHECKING:
    from moeir.records.runs import Run
    from moeir.records.texts import Text
    from moeir.report.cases import Cases
    from moeir.report.contents import Contents
    from moeir.report.reasons import Reasons

TEXTS, LISTS, PICTURES, PAGES = ("", ".txt"), (".tsv", ".jsonl"), (".svg", ".png"), (".html", ".htm")
FUSED = "fused"
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Report(Stage):
    """Report on runs and trainings. --output page.html writes one file with measures, comparisons of experts, every query with its lists
    and their explanations, trainings and a map; without --run a training is written as text, table or plot."""

    run: tuple[Path, ...] = source("run", "Page: a run; repeat the flag.", (), names=("--runs",))
    qrels: Path | None = source("qrels", "Page: relevance judgements of the queries that it shows.", None)
    queries: Path | None = source("texts", "Page: query texts.", None, names=("--topics",))
    corpus: Path | None = source("texts", "Page: document texts.", None)
    index: tuple[Path, ...] = source(
        "index", "Page: index whose experts the runs are named after, to explain hits by terms, tokens and parts.", ()
    )
    explain: Path | None = source("texts", "Page: explanations written by search --explain, instead of --index.", None)
    training: tuple[Path, ...] = source("training", "Output folder of finetune or pretrain; repeat the flag to compare several.", ())
    projection: Path | None = source("texts", "Page: a map, as analyze projection writes it.", None)
    measure: tuple[str, ...] = option(
        "Page: nDCG@10, RR@10, …; repeat the flag. Query pages show the first.", MEASURES, names=("--metric", "-m")
    )
    depth: int = option("Page: documents shown of every list.", 10, names=("--hits", "--k"))
    text_length: int = option("Page: maximum characters of a document.", 1200)
    title: str | None = option("Page: title [default: names of the runs and trainings].", None)
    output: Path = product(
        "report", "Output file: .html for a page, .svg or .png for a plot, .tsv or .jsonl for a table, else text.", STREAM
    )

    def check(self) -> None:
        suffixes = (*TEXTS, *LISTS, *PICTURES, *PAGES)
        if self._suffix() not in suffixes:
            raise UsageError(f"--output {self.output}: expected a name that ends with {', '.join(suffixes[1:-1])} or {suffixes[-1]}")
        if self._suffix() in PICTURES and importlib.util.find_spec("matplotlib") is None:
            raise UsageError(f"--output {self.output}: plots need the package matplotlib; pip install 'moeir[report]'")
        if not self.run and not self.training:
            raise UsageError("report: expected --run and --qrels, or --training")
        if self._suffix() not in PAGES:
            page_settings = [setting for setting in settings_of(type(self)) if setting.name not in ("training", "output")]
            if flags := [setting.flag for setting in page_settings if getattr(self, setting.name) != setting.default]:
                raise UsageError(f"{flags[0]}: is for a page; expected --output page.html")
        self._check_runs()

    def _check_runs(self) -> None:
        if self.run and self.qrels is None:
            raise UsageError("report: --run needs --qrels: the judgements that runs are evaluated with")
        for name in ("qrels", "queries", "corpus", "index", "explain"):
            if getattr(self, name) and not self.run:
                raise UsageError(f"report: --{name} needs --run")
        if self.index and self.explain is not None:
            raise UsageError("--index and --explain exclude one another: explanations come from one of them")
        if self.index and self.queries is None:
            raise UsageError("report: --index needs --queries, which its experts score again")
        check_depth(self.depth)
        if self.text_length < 1:
            raise UsageError(f"--text-length {self.text_length}: expected at least 1")

    def _suffix(self) -> str:
        """The suffix of --output; for texts and tables, the one before .gz or .zst."""
        from moeir.records import lines

        path = making.place_of(self.output)
        text_suffix = lines.stem(path).suffix
        return text_suffix if self.output != STREAM and text_suffix not in PICTURES else path.suffix

    def work(self) -> Counts:
        if self._suffix() in PAGES:
            return self._page()
        from moeir.evaluation import tables
        from moeir.records import lines
        from moeir.report import training

        trainings = training.opened(self.training)
        if (suffix := self._suffix()) in PICTURES:
            from moeir.report import pictures

            pictures.drawn(trainings, self.output, suffix.removeprefix("."))
        else:
            with lines.writer(self.output) as output:
                if suffix in TEXTS:
                    output.write(training.text(trainings))
                else:
                    output_lines = tables.in_file(training.NAMES, list(training.rows(trainings)), suffix.removeprefix("."))
                    output.writelines(f"{line}\n" for line in output_lines)
        return {"trainings": len(trainings), "steps": sum(one.watch.step for one in trainings)}

    def _page(self) -> Counts:
        from moeir.records import lines
        from moeir.report import contents, page, training

        trainings = training.opened(self.training) if self.training else []
        title = self.title or ", ".join([*named_runs(self.run), *(one.name for one in trainings)])
        data: dict[str, Any] = {"title": title, "trainings": contents.courses(trainings)}
        if self.projection is not None:
            data["map"] = contents.points(self.projection)
        counts: dict[str, Any] = {"runs": len(self.run), "trainings": len(trainings)}
        parts: Iterator[tuple[str, Any]] = iter(())
        if self.run:
            page_contents, page_data = self._found()
            data |= page_data
            parts = page_contents.parts(self._texts(self.corpus))
            counts |= {
                "queries": len(page_contents.queries),
                "documents": len(page_contents.numbers),
                "explained": page_contents.reasons.documents,
            }
        with lines.writer(self.output) as output:
            output.writelines(page.lines(title, data, parts))
        return counts

    def _found(self) -> "tuple[Contents, dict[str, Any]]":
        """The query pages, and the data about all queries."""
        from moeir.evaluation import measures
        from moeir.records import qrels, runs
        from moeir.report import judged
        from moeir.report.cases import Cases
        from moeir.report.contents import Contents

        assert self.qrels is not None
        grades = qrels.read(self.qrels)
        runs_by_name = {name: runs.read(path) for name, path in named_runs(self.run).items()}
        requested = [measures.parse(text) for text in self.measure]
        try:
            values = judged.values(runs_by_name, grades, requested)
        except DataError as problem:
            raise DataError(f"{self.qrels}: {problem}") from None
        query_texts = {text.id: text for text in self._texts(self.queries) if text.id in grades}
        cases = Cases(runs_by_name, grades, self.depth)
        page_contents = Contents(cases, list(grades), self._reasons(cases, runs_by_name, query_texts), self.text_length)
        return page_contents, page_contents.data(query_texts) | {"judged": judged.table(values, page_contents.queries)}

    def _texts(self, path: Path | None) -> "Iterator[Text]":
        from moeir.records import texts

        return iter(()) if path is None else texts.read(path, keep_empty=True)

    def _reasons(self, cases: "Cases", runs_by_name: "Mapping[str, Run]", query_texts: "Mapping[str, Text]") -> "Reasons":
        """The explanations of a page's documents, from --index or --explain; else none."""
        from moeir.records import lines, texts
        from moeir.report.reasons import Reasons, checked

        if self.index:
            from moeir.stages.explaining import explanations

            return Reasons(explanations(self.index, self.corpus, cases, runs_by_name, query_texts), cases.documents)
        if self.explain is None:
            return Reasons()
        name = lines.label(self.explain)
        with lines.opened(self.explain) as numbered_lines:
            records = (checked(texts.loaded(line, f"{name}:{number}"), f"{name}:{number}") for number, line in numbered_lines if line)
            return Reasons(records, cases.documents)
