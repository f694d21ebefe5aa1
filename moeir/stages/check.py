"""`moeir check`: find faults in data before training, encoding or evaluation."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import data_sources
from moeir.console import format_count
from moeir.errors import DataError, UsageError
from moeir.parsing import dump_json, escape_controls
from moeir.settings import input_field, option
from moeir.stages.base import STREAM, TEXT_KINDS, Stage, check_output_path, is_stream
from moeir.stages.run_arguments import run_paths

if TYPE_CHECKING:
    from moeir.data_checks.examples import CheckContext
    from moeir.data_checks.findings import Findings

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Check(Stage):
    """Find faults in texts, judgements, examples, runs and encodings, line by line; exit code 3 if there are any. --fix writes
    copies without duplicate lines and with repaired encodings."""

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
    fix: Path | None = option(
        "Folder for copies of the files without duplicate lines, with repaired encodings; only one that check made is replaced.", None
    )

    def check(self) -> None:
        from moeir.data_checks.findings import FAULT_KINDS
        from moeir.variants import suggest

        for kind in self.allow:
            if kind not in FAULT_KINDS:
                raise UsageError(f"--allow {kind}: there is no such kind of fault{suggest(kind, FAULT_KINDS)}")
        if not self._input_files() and self.encodings is None:
            raise UsageError("check needs --corpus, --queries, --qrels, --train, --run or --encodings")
        self._check_fix()

    def _check_fix(self) -> None:
        from moeir.records import remote_rows

        if self.fix is None:
            return
        files = self._input_files()
        names = [path.name for path in files]
        if stream := next((path for path in (*files, self.fix) if is_stream(path)), None):
            raise UsageError(f"--fix: copies keep the names of their files, and {stream} has no name; name a file")
        parts = [path for path in (self.queries, self.dev_queries) if path and data_sources.split_judged(path)[1] is not None]
        is_text = {path: not (path in parts or data_sources.is_remote(path) or remote_rows.is_columnar(path)) for path in (*files, *parts)}
        if other := next((path for path in is_text if not is_text[path]), None):
            raise UsageError(f"--fix: repairs text files, and {other} is not one")
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"--fix {self.fix}: two files are called {duplicate}; repair them separately, into two folders")
        check_output_path(self, "--fix", self.fix)

    def _input_files(self) -> list[Path]:
        return [path for setting, path in self.sources() if setting.kind in TEXT_KINDS]

    def work(self) -> None:
        from moeir.data_checks.examples import CheckContext
        from moeir.data_checks.findings import Findings

        findings, context = Findings(self.most, self.allow, copying=self.fix is not None), CheckContext()
        checked_files, copies = self._check_files(findings, context), ""
        if self.fix is None:
            for _, copied_lines in checked_files:
                for _ in copied_lines:
                    pass
        else:
            self._write_copies(self.fix, checked_files, findings)
            copies = f"; copies without duplicates and wrong encodings are in {self.fix}"
        if self.encodings is not None:
            self._check_encodings(self.encodings, findings, context)
        self._write_findings(findings)
        if findings.fault_count:
            raise DataError(findings.summary() + copies)
        checked = dict.fromkeys(str(path) for _, path in self.sources())
        log.info("no fault found in %s", ", ".join(checked))

    def _check_files(self, findings: "Findings", context: "CheckContext") -> Iterator[tuple[Path, Iterable[str]]]:
        """Check every file and yield the lines of its repaired copy; files whose ids others refer to come first."""
        from moeir.data_checks import examples, qrels, runs, texts
        from moeir.data_checks.findings import FileFindings
        from moeir.formats.training_files import is_own_file, read_training_examples

        queries, documents = texts.SeenTexts(), texts.SeenTexts()
        if self.queries is not None:
            context.queries = queries
            yield self.queries, texts.check_texts(FileFindings(findings, self.queries), queries, keep_empty=self.keep_empty)
        if self.dev_queries is not None:
            yield self.dev_queries, texts.check_texts(FileFindings(findings, self.dev_queries), context.dev_queries)
        if self.corpus is not None:
            context.documents = documents
            yield self.corpus, texts.check_texts(FileFindings(findings, self.corpus), documents, queries, keep_empty=self.keep_empty)
        known_ids = [None if seen is None else seen.by_id for seen in (context.queries, context.documents)]
        yield from ((path, qrels.check_qrels(FileFindings(findings, path, *known_ids))) for path in self.qrels)
        for path in self.train:
            foreign = None if is_own_file(path) else read_training_examples(path, provenance=True)
            yield path, examples.check_examples(FileFindings(findings, path, *known_ids), context, foreign)
        yield from ((path, runs.check_run(FileFindings(findings, path, *known_ids))) for path in run_paths(self.run))

    def _write_copies(self, folder: Path, checked_files: Iterable[tuple[Path, Iterable[str]]], findings: "Findings") -> None:
        """Write repaired copies under the names of the files, atomically."""
        from moeir.artifacts import atomic_write, manifests
        from moeir.records import lines

        digests = [manifests.compute_digest(path) for path in self._input_files()]
        provenance: dict[str, Any] = {"stage": self.name, "settings": {"allow": list(self.allow), "keep-empty": self.keep_empty}}
        provenance["sources"] = {"files": digests}
        is_made = manifests.manifest_path(folder).is_file()
        if is_made and (maker := manifests.read_manifest(folder).get("stage")) != self.name:
            raise UsageError(f"--fix {folder}: exists, made by moeir {maker}; name another folder")
        atomic_write.check_overwrite(folder, provenance, force=is_made, flag="--fix")  # copies of earlier files are replaced
        with atomic_write.atomic_output(folder, "mended", provenance, force=True, folder=True) as (partial_path, counts):
            for path, copied_lines in checked_files:
                name = self._copy_name(path)
                before, copy = findings.fault_count, partial_path / name
                copy.parent.mkdir(exist_ok=True)
                counts[str(name)] = {"lines": lines.write_lines(copied_lines, copy), "faults": findings.fault_count - before}
                log.info("%s: %s", folder / name, format_count(counts[str(name)]["lines"], "line"))

    def _copy_name(self, path: Path) -> Path:
        """The file's name; judgements of a folder in BEIR's layout stay in `qrels`, so that the copies are such a folder."""
        beside_corpus = None if self.corpus is None else self.corpus.parent / "qrels"
        return Path("qrels", path.name) if path in self.qrels and path.parent == beside_corpus else Path(path.name)

    def _check_encodings(self, folder: Path, findings: "Findings", context: "CheckContext") -> None:
        from moeir.artifacts import shards
        from moeir.data_checks import texts
        from moeir.representations.encodings import read_ids

        ids = [name for shard in shards.shard_folders(folder) for name in read_ids(shard)]
        documents = None if context.documents is None else context.documents.by_id
        texts.check_encoded_ids(str(folder / "ids.txt"), ids, findings, documents)

    def _write_findings(self, findings: "Findings") -> None:
        from moeir.records import lines

        if self.form == "json":
            facts = {"faults": findings.fault_count, "findings": findings.to_records()}
            lines.write_lines([dump_json(facts, indent=2)], STREAM)
        else:
            lines.write_lines(map(escape_controls, findings.text_lines()), STREAM)
