"""`moeir check`: find faults in data before training, encoding or evaluation."""

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from moeir.errors import DataError, UsageError
from moeir.parsing import dump_json, escape_controls
from moeir.settings import input_field, option
from moeir.stages.base import STREAM, TEXT_KINDS, Stage
from moeir.stages.run_arguments import run_paths

if TYPE_CHECKING:
    from moeir.data_checks.examples import CheckContext
    from moeir.data_checks.findings import Findings

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Check(Stage):
    """Find faults in texts, judgements, examples, runs and encodings, line by line; exit code 3 if there are any."""

    default_split: ClassVar[str] = ""
    corpus: Path | None = input_field("texts", "Documents.", None)
    queries: Path | None = input_field(
        "texts", "Queries; query ids of --qrels, --run and --train are looked up here.", None, aliases=("--topics",)
    )
    qrels: tuple[Path, ...] = input_field("qrels", "Relevance judgements; repeat the flag for several files.", ())
    train: tuple[Path, ...] = input_field("examples", "Training examples; repeat the flag for several files.", ())
    run: tuple[Path, ...] = input_field("run", "Runs; repeat the flag for several.", ())
    dev_queries: Path | None = input_field("texts", "Evaluation queries: --train must not contain any of them.", None, only_with=())
    encodings: Path | None = input_field("encodings", "Output folder of moeir encode.", None)
    keep_empty: bool = option("Accept documents without text.", False)
    allow: tuple[str, ...] = option("Kind of fault to accept, such as query-in-corpus; repeat the flag.", ())
    most: int = option("Maximum lines shown per kind of fault and file; 0 for all.", 5, minimum=0)
    form: str = option("text or json.", "text", choices=("text", "json"), aliases=("--format",))

    def check(self) -> None:
        from moeir.data_checks.findings import FAULT_KINDS
        from moeir.variants import suggest

        for kind in self.allow:
            if kind not in FAULT_KINDS:
                raise UsageError(f"--allow {kind}: there is no such kind of fault{suggest(kind, FAULT_KINDS)}")
        if self.encodings is None and not any(setting.kind in TEXT_KINDS for setting, _ in self.sources()):
            raise UsageError("check needs --corpus, --queries, --qrels, --train, --run or --encodings")

    def work(self) -> None:
        from moeir.data_checks.examples import CheckContext
        from moeir.data_checks.findings import Findings

        findings, context = Findings(self.most, self.allow), CheckContext()
        self._check_files(findings, context)
        if self.encodings is not None:
            self._check_encodings(self.encodings, findings, context)
        self._write_findings(findings)
        if findings.fault_count:
            raise DataError(findings.summary())
        checked = dict.fromkeys(str(path) for _, path in self.sources())
        log.info("no fault found in %s", ", ".join(checked))

    def _check_files(self, findings: "Findings", context: "CheckContext") -> None:
        """Check every file; those whose ids others refer to come first."""
        from moeir.data_checks import examples, qrels, runs, texts
        from moeir.data_checks.findings import FileFindings
        from moeir.formats.training_files import is_own_file, read_training_examples

        queries, documents = texts.SeenTexts(), texts.SeenTexts()
        if self.queries is not None:
            context.queries = queries
            texts.check_texts(FileFindings(findings, self.queries), queries, keep_empty=self.keep_empty)
        if self.dev_queries is not None:
            texts.check_texts(FileFindings(findings, self.dev_queries), context.dev_queries)
        if self.corpus is not None:
            context.documents = documents
            texts.check_texts(FileFindings(findings, self.corpus), documents, queries, keep_empty=self.keep_empty)
        known_ids = [None if seen is None else seen.by_id for seen in (context.queries, context.documents)]
        for path in self.qrels:
            qrels.check_qrels(FileFindings(findings, path, *known_ids))
        for path in self.train:
            foreign = None if is_own_file(path) else read_training_examples(path, provenance=True)
            examples.check_examples(FileFindings(findings, path, *known_ids), context, foreign)
        for path in run_paths(self.run):
            runs.check_run(FileFindings(findings, path, *known_ids))

    def _check_encodings(self, folder: Path, findings: "Findings", context: "CheckContext") -> None:
        from moeir.artifacts import shards
        from moeir.data_checks import texts
        from moeir.representations.encodings import open_shard

        all_ids: list[str] = []
        for shard in shards.shard_folders(folder):
            ids, representations = open_shard(shard)
            all_ids += ids
            for expert, representation in representations.items():
                representation.check_rows(partial(findings.add_row_fault, str(shard / expert), ids))
        documents = None if context.documents is None else context.documents.by_id
        texts.check_encoded_ids(str(folder / "ids.txt"), all_ids, findings, documents)

    def _write_findings(self, findings: "Findings") -> None:
        from moeir.records import lines

        if self.form == "json":
            facts = {"faults": findings.fault_count, "findings": findings.to_records()}
            lines.write_lines([dump_json(facts, indent=2)], STREAM)
        else:
            lines.write_lines(map(escape_controls, findings.text_lines()), STREAM)
