"""`moeir check`: find faults in data before training, encoding or evaluation."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from moeir.errors import DataError, UsageError
from moeir.parsing import dump_json, escape_controls
from moeir.settings import input_field, option
from moeir.stages.base import KEEP_EMPTY, STREAM, Stage
from moeir.stages.run_arguments import run_paths

if TYPE_CHECKING:
    from moeir.data_checks.findings import Findings

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Check(Stage):
    """Find faults in texts, judgements, examples and runs, line by line; exit code 3 if there are any."""

    default_split: ClassVar[str] = ""
    corpus: Path | None = input_field("texts", "Documents.", None)
    queries: Path | None = input_field(
        "texts", "Queries; query ids of --qrels, --run and --train are looked up here.", None, aliases=("--topics",)
    )
    qrels: tuple[Path, ...] = input_field("qrels", "Relevance judgements; repeat the flag for several files.", ())
    train: tuple[Path, ...] = input_field("examples", "Training examples; repeat the flag for several files.", ())
    run: tuple[Path, ...] = input_field("run", "Runs; repeat the flag for several.", ())
    dev_queries: Path | None = input_field("texts", "Evaluation queries: --train must not contain any of them.", None, only_with=())
    keep_empty: bool = option(**KEEP_EMPTY)
    allow: tuple[str, ...] = option("Kind of fault to accept, such as query-in-corpus; repeat the flag.", ())
    most: int = option("Maximum lines shown per kind of fault and file; 0 for all.", 5, minimum=0)
    form: str = option("Form of the findings.", "text", choices=("text", "json"), aliases=("--format",))

    def check(self) -> None:
        from moeir.data_checks.findings import FAULT_KINDS
        from moeir.parsing import suggest

        for kind in self.allow:
            if kind not in FAULT_KINDS:
                raise UsageError(f"--allow {kind}: there is no such kind of fault{suggest(kind, FAULT_KINDS)}")
        if next(self.sources(), None) is None:
            raise UsageError("check needs --corpus, --queries, --qrels, --train or --run")

    def work(self) -> None:
        from moeir.data_checks.findings import Findings

        findings = Findings(self.most, self.allow)
        self._check_files(findings)
        self._write_findings(findings)
        if findings.fault_count:
            raise DataError(findings.summary())
        checked = dict.fromkeys(str(path) for _, path in self.sources())
        log.info("no fault found in %s", ", ".join(checked))

    def _check_files(self, findings: "Findings") -> None:
        """Check every file; those whose ids others refer to come first."""
        from moeir.data_checks import files
        from moeir.data_checks.findings import FileFindings
        from moeir.formats.training_files import is_own_file, read_training_examples

        queries, dev_queries, documents = files.SeenTexts(), files.SeenTexts(), files.SeenTexts()
        if self.queries is not None:
            files.check_texts(FileFindings(findings, self.queries), queries)
        if self.dev_queries is not None:
            files.check_texts(FileFindings(findings, self.dev_queries), dev_queries)
        if self.corpus is not None:
            files.check_texts(FileFindings(findings, self.corpus), documents, queries, keep_empty=self.keep_empty)
        known = None if self.queries is None else queries.by_id, None if self.corpus is None else documents.by_id
        for path in self.qrels:
            files.check_qrels(FileFindings(findings, path, *known))
        for path in self.train:
            foreign = None if is_own_file(path) else read_training_examples(path, provenance=True)
            files.check_examples(FileFindings(findings, path, *known), dev_queries, foreign)
        for path in run_paths(self.run):
            files.check_run(FileFindings(findings, path, *known))

    def _write_findings(self, findings: "Findings") -> None:
        from moeir.records import lines

        if self.form == "json":
            facts = {"faults": findings.fault_count, "findings": findings.to_records()}
            lines.write_lines([dump_json(facts, indent=2)], STREAM)
        else:
            lines.write_lines(map(escape_controls, findings.text_lines()), STREAM)
