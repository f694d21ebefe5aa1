"""`moeir check`: find faults in data before training, encoding or evaluation."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.errors import DataError, UsageError
from moeir.settings import option, source
from moeir.stages.base import STREAM, Counts, Stage

if TYPE_CHECKING:
    from moeir.checking.examples import Around
    from moeir.checking.findings import Findings
    from moeir.checking.lengths import Cut
    from moeir.checking.texts import Known
    from moeir.records.texts import Text

FORMS = ("text", "tsv", "json")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Check(Stage):
    """Find faults in texts, judgements, examples, runs and encodings, line by line; exit code 3 if there are any. --fix repairs copies."""

    corpus: Path | None = source("texts", "Documents.", None)
    queries: Path | None = source(
        "texts", "Queries; query ids of --qrels, --run and --train are looked up here.", None, names=("--topics",)
    )
    qrels: tuple[Path, ...] = source("qrels", "Relevance judgements; repeat the flag for several files.", ())
    train: tuple[Path, ...] = source("examples", "Training examples; repeat the flag for several files.", ())
    run: tuple[Path, ...] = source("run", "Runs; repeat the flag for several.", ())
    dev_queries: Path | None = source("texts", "Evaluation queries: --train must not contain any of them.", None)
    encodings: Path | None = source("encodings", "Output folder of moeir encode.", None)
    model: Path | None = source("weights", "Checkpoint or weights, to count truncated texts with its tokenizer.", None)
    document_length: int | None = option("Maximum tokens of a document [default: the checkpoint's].", None, names=("--passage-max-len",))
    query_length: int | None = option("Maximum tokens of a query [default: the checkpoint's].", None, names=("--query-max-len",))
    keep_empty: bool = option("Accept documents without text.", False)
    allow: tuple[str, ...] = option("Kind of fault to accept, such as query-in-corpus; repeat the flag.", ())
    most: int = option("Maximum lines shown per kind of fault and file; 0 for all.", 5)
    form: str = option("text, tsv or json.", "text", names=("--format",))
    fix: Path | None = option("Folder for repaired copies of the files; an existing folder is replaced only if check made it.", None)

    def check(self) -> None:
        from moeir.checking.kinds import NAMED
        from moeir.variants import near

        if self.form not in FORMS:
            raise UsageError(f"--form {self.form}: expected one of {', '.join(FORMS)}")
        if self.most < 0:
            raise UsageError(f"--most {self.most}: expected at least 0, which shows all")
        for kind in self.allow:
            if kind not in NAMED:
                raise UsageError(f"--allow {kind}: there is no such kind of fault{near(kind, NAMED)}")
        for flag, length in (("document", self.document_length), ("query", self.query_length)):
            if length is not None and length < 3:
                raise UsageError(f"--{flag}-length {length}: expected at least 3")
            if length is not None and self.model is None:
                raise UsageError(f"--{flag}-length: needs --model, for its tokenizer")
        if not self._files() and self.encodings is None:
            raise UsageError("check needs --corpus, --queries, --qrels, --train, --run or --encodings")
        self._check_fix()

    def _check_fix(self) -> None:
        if self.fix is None:
            return
        files = self._files()
        names = [path.name for path in files]
        if STREAM in files or self.fix == STREAM:
            raise UsageError("--fix: copies keep the names of their files, and - has no name; name a file")
        if remote := next((path for path in files if str(path).startswith(("hf:", "irds:"))), None):
            raise UsageError(f"--fix: repairs files, and {remote} is not a file")
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"--fix {self.fix}: two files are called {duplicate}; repair them separately, into two folders")
        for path in (*files, *([self.encodings] if self.encodings else []), *([self.model] if self.model else [])):
            if path.resolve().is_relative_to(self.fix.resolve()):
                raise UsageError(f"--fix {self.fix}: would replace a source, {path}; write elsewhere")

    def _files(self) -> list[Path]:
        texts = (self.corpus, self.queries, self.dev_queries)
        return [*(path for path in texts if path is not None), *self.qrels, *self.train, *self.run]

    def work(self) -> Counts:
        from moeir.checking.examples import Around
        from moeir.checking.findings import Findings

        findings, context = Findings(self.most, self.allow), Around()
        checked_files = self._walks(findings, context)
        if self.fix is None:
            for _, repaired_lines in checked_files:
                for _ in repaired_lines:
                    pass
        else:
            self._mend(self.fix, checked_files, findings)
        if self.encodings is not None:
            self._encodings(self.encodings, findings, context)
        self._show(findings)
        if findings.faults:
            raise DataError(findings.summary() + ("" if self.fix is None else f"; repaired copies are in {self.fix}"))
        log.info("no fault found in %s", ", ".join(map(str, [*self._files(), *([self.encodings] if self.encodings else [])])))
        return None

    def _walks(self, findings: "Findings", context: "Around") -> Iterator[tuple[Path, Iterable[str]]]:
        """Check every file and yield the lines of its repaired copy; files whose ids others refer to come first."""
        from moeir.checking import examples, qrels, runs, texts

        seen_documents, seen_queries, fingerprints = texts.Known(), texts.Known(), dict[str, int]()
        if self.queries is not None:
            context.queries, context.signs = seen_queries.ids, fingerprints
            yield self.queries, self._texts(self.queries, "query", findings, seen_queries, fingerprints)
            seen_documents.queries = {fingerprint: query for query, fingerprint in fingerprints.items()}
        if self.dev_queries is not None:
            yield self.dev_queries, texts.walk(self.dev_queries, findings, context.held)
        if self.corpus is not None:
            context.documents = seen_documents.ids
            yield self.corpus, self._texts(self.corpus, "document", findings, seen_documents, {})
        known_ids = (context.queries, context.documents)
        yield from ((path, qrels.walk(path, findings, *known_ids)) for path in self.qrels)
        yield from ((path, examples.walk(path, findings, context)) for path in self.train)
        yield from ((path, runs.Walk(path, findings, *known_ids).lines()) for path in self.run)

    def _texts(self, path: Path, side: str, findings: "Findings", seen_texts: "Known", fingerprints: dict[str, int]) -> Iterator[str]:
        from moeir.checking import texts

        truncation = self._cut(path, side)

        def on_text(name: str, line: int | None, text: "Text") -> None:
            if side == "query":
                fingerprints[text.id] = seen_texts.sign(text.content)
            if truncation is not None:
                truncation.add(line, text.content)

        yield from texts.walk(path, findings, seen_texts, on_text, keep_empty=self.keep_empty)
        if truncation is not None:
            truncation.say(findings)

    def _cut(self, path: Path, side: str) -> "Cut | None":
        """The truncation counter of a side, if --model is given."""
        if self.model is None:
            return None
        from moeir import variants
        from moeir.architectures.base import ReadingRules
        from moeir.architectures.checkpoint import facts_of, is_checkpoint
        from moeir.backbones.checkpoints import files
        from moeir.backbones.tokenizer import TextReader
        from moeir.checking.lengths import Cut
        from moeir.records import lines

        folder, input_config, markers = files.located(self.model), ReadingRules(), 0
        max_length = self.document_length if side == "document" else self.query_length
        if is_checkpoint(folder):
            metadata = facts_of(folder)
            input_config = ReadingRules.from_dict(metadata["reading"], str(folder))
            markers = int(variants.resolve("architectures", metadata["architecture"])[1].get("markers", False))
            max_length = max_length or input_config.length(side)
        if max_length is None:
            raise UsageError(f"--model {self.model}: plain weights have no maximum length; add --{side}-length")
        tokenizer = TextReader(folder)
        return Cut(
            lines.label(path), max_length, lambda texts: [len(ids) + markers for ids in tokenizer.ids(input_config.prefixed(texts, side))]
        )

    def _mend(self, folder: Path, checked_files: Iterable[tuple[Path, Iterable[str]]], findings: "Findings") -> None:
        """Write repaired copies under the names of the files, atomically."""
        from moeir.artifacts import making, manifests
        from moeir.records import lines, runs

        fault_settings = {"allow": list(self.allow), "keep-empty": self.keep_empty}
        provenance = {
            "stage": self.name,
            "settings": fault_settings,
            "sources": {"files": [manifests.digest(path) for path in self._files()]},
        }
        making.refuse_overwriting(folder, provenance, force=manifests.manifest_path(folder).is_file())
        with making.making(folder, "mended", provenance, force=True, folder=True) as (partial_path, counts):
            for path, repaired_lines in checked_files:
                before = findings.faults
                copy = partial_path / path.name
                with lines.writer(copy) as output:
                    line_count = 0
                    for line in repaired_lines:
                        output.write(line + "\n")
                        line_count += 1
                if path in self.run and line_count:
                    runs.write(runs.read(copy), copy)  # sorted by score, with matching ranks
                counts[path.name] = {"lines": line_count, "faults": findings.faults - before}
                log.info(
                    "%s: %s lines, %s faults repaired or dropped", folder / path.name, f"{line_count:,}", f"{findings.faults - before:,}"
                )

    def _encodings(self, folder: Path, findings: "Findings", context: "Around") -> None:
        from moeir.architectures.base import KINDS
        from moeir.artifacts import manifests, shards
        from moeir.checking import vectors

        all_ids: list[str] = []
        for shard in shards.parts(folder):
            ids = manifests.read_lines(shard / "ids.txt")
            all_ids += ids
            for expert, kind in manifests.read_manifest(shard)["counts"]["experts"].items():
                representation: Any = KINDS[kind].open(shard / expert)
                checker = vectors.Checked(str(shard / expert), ids, findings)
                if kind == "dense":
                    checker.dense(representation.vectors.numpy())
                elif kind == "sparse":
                    checker.sparse(
                        representation.terms.numpy(),
                        representation.weights.numpy(),
                        representation.starts.numpy(),
                        representation.vocabulary,
                    )
                elif kind == "multivector":
                    checker.multivector(representation.vectors.numpy(), representation.starts.numpy())
        documents = context.documents
        vectors.check_ids(str(folder / "ids.txt"), all_ids, findings, None if documents is None else set(documents))

    def _show(self, findings: "Findings") -> None:
        if self.form == "json":
            facts = {"faults": findings.faults, "findings": findings.records()}
            sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        elif self.form == "tsv":
            sys.stdout.writelines("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in findings.rows())
        else:
            sys.stdout.writelines(f"{line}\n" for line in findings.text())
