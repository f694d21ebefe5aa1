"""`moeir check`: what is wrong with data before anything is trained, encoded or evaluated with it."""

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
    """Find what is wrong with texts, judgements, examples, runs and encodings, line by line; exit 3 if anything is. --fix mends."""

    corpus: Path | None = source("texts", "Documents.", None)
    queries: Path | None = source("texts", "Queries; those of --qrels, --run and --train are looked up here.", None, names=("--topics",))
    qrels: tuple[Path, ...] = source("qrels", "Judgements; repeat the flag for several.", ())
    train: tuple[Path, ...] = source("examples", "Training examples; repeat the flag for several.", ())
    run: tuple[Path, ...] = source("run", "Ranked lists; repeat the flag for several.", ())
    dev_queries: Path | None = source("texts", "Queries that are evaluated: none of --train may be among them.", None)
    encodings: Path | None = source("encodings", "What encode wrote.", None)
    model: Path | None = source("weights", "Checkpoint or weights whose tokenizer counts what is cut.", None)
    document_length: int | None = option("Tokens kept of a document [default: the checkpoint's].", None, names=("--passage-max-len",))
    query_length: int | None = option("Tokens kept of a query [default: the checkpoint's].", None, names=("--query-max-len",))
    keep_empty: bool = option("Documents without text are no fault.", False)
    allow: tuple[str, ...] = option("A kind that is no fault, such as query-in-corpus; repeat the flag.", ())
    most: int = option("Lines shown of each kind and file, 0 for all.", 5)
    form: str = option("text, tsv or json.", "text", names=("--format",))
    fix: Path | None = option("Folder for mended copies of the files; one that exists is replaced if check made it.", None)

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
                raise UsageError(f"--{flag}-length: needs --model, whose tokenizer counts")
        if not self._files() and self.encodings is None:
            raise UsageError("check needs --corpus, --queries, --qrels, --train, --run or --encodings: what to look at")
        self._check_fix()

    def _check_fix(self) -> None:
        if self.fix is None:
            return
        files = self._files()
        names = [path.name for path in files]
        if STREAM in files or self.fix == STREAM:
            raise UsageError("--fix: writes a folder of files by their names; - has none")
        if odd := next((path for path in files if str(path).startswith(("hf:", "irds:"))), None):
            raise UsageError(f"--fix: mends files, and {odd} is none")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UsageError(f"--fix {self.fix}: two files are called {twice}; mend them one after the other, in two folders")
        for path in (*files, *([self.encodings] if self.encodings else []), *([self.model] if self.model else [])):
            if path.resolve().is_relative_to(self.fix.resolve()):
                raise UsageError(f"--fix {self.fix}: would replace what is read, {path}; write elsewhere")

    def _files(self) -> list[Path]:
        texts = (self.corpus, self.queries, self.dev_queries)
        return [*(path for path in texts if path is not None), *self.qrels, *self.train, *self.run]

    def work(self) -> Counts:
        from moeir.checking.examples import Around
        from moeir.checking.findings import Findings

        findings, around = Findings(self.most, self.allow), Around()
        walks = self._walks(findings, around)
        if self.fix is None:
            for _, walked in walks:
                for _ in walked:
                    pass
        else:
            self._mend(self.fix, walks, findings)
        if self.encodings is not None:
            self._encodings(self.encodings, findings, around)
        self._show(findings)
        if findings.faults:
            raise DataError(findings.summary() + ("" if self.fix is None else f"; mended copies are in {self.fix}"))
        log.info("no fault found in %s", ", ".join(map(str, [*self._files(), *([self.encodings] if self.encodings else [])])))
        return None

    def _walks(self, findings: "Findings", around: "Around") -> Iterator[tuple[Path, Iterable[str]]]:
        """Every file with the lines of its mended copy, in an order in which what is looked up has been read."""
        from moeir.checking import examples, qrels, runs, texts

        corpus, queries, signs = texts.Known(), texts.Known(), dict[str, int]()
        if self.queries is not None:
            around.queries, around.signs = queries.ids, signs
            yield self.queries, self._texts(self.queries, "query", findings, queries, signs)
            corpus.queries = {sign: query for query, sign in signs.items()}
        if self.dev_queries is not None:
            yield self.dev_queries, texts.walk(self.dev_queries, findings, around.held)
        if self.corpus is not None:
            around.documents = corpus.ids
            yield self.corpus, self._texts(self.corpus, "document", findings, corpus, {})
        known = (around.queries, around.documents)
        yield from ((path, qrels.walk(path, findings, *known)) for path in self.qrels)
        yield from ((path, examples.walk(path, findings, around)) for path in self.train)
        yield from ((path, runs.Walk(path, findings, *known).lines()) for path in self.run)

    def _texts(self, path: Path, side: str, findings: "Findings", known: "Known", signs: dict[str, int]) -> Iterator[str]:
        from moeir.checking import texts

        cut = self._cut(path, side)

        def seen(name: str, line: int | None, text: "Text") -> None:
            if side == "query":
                signs[text.id] = known.sign(text.content)
            if cut is not None:
                cut.add(line, text.content)

        yield from texts.walk(path, findings, known, seen, keep_empty=self.keep_empty)
        if cut is not None:
            cut.say(findings)

    def _cut(self, path: Path, side: str) -> "Cut | None":
        """What counts tokens of a side, if a tokenizer is named."""
        if self.model is None:
            return None
        from moeir import variants
        from moeir.architectures.base import ReadingRules
        from moeir.architectures.checkpoint import facts_of, is_checkpoint
        from moeir.backbones.checkpoints import files
        from moeir.backbones.tokenizer import TextReader
        from moeir.checking.lengths import Cut
        from moeir.records import lines

        folder, rules, markers = files.located(self.model), ReadingRules(), 0
        most = self.document_length if side == "document" else self.query_length
        if is_checkpoint(folder):
            facts = facts_of(folder)
            rules = ReadingRules.from_dict(facts["reading"], str(folder))
            markers = int(variants.resolve("architectures", facts["architecture"])[1].get("markers", False))
            most = most or rules.length(side)
        if most is None:
            raise UsageError(f"--model {self.model}: plain weights say no length; add --{side}-length")
        reader = TextReader(folder)
        return Cut(lines.label(path), most, lambda texts: [len(ids) + markers for ids in reader.ids(rules.prefixed(texts, side))])

    def _mend(self, folder: Path, walks: Iterable[tuple[Path, Iterable[str]]], findings: "Findings") -> None:
        """Mended copies under the names of the files, whole or not at all."""
        from moeir.artifacts import making, manifests
        from moeir.records import lines, runs

        kinds = {"allow": list(self.allow), "keep-empty": self.keep_empty}
        record = {"stage": self.name, "settings": kinds, "sources": {"files": [manifests.digest(path) for path in self._files()]}}
        making.refuse_overwriting(folder, record, force=manifests.manifest_path(folder).is_file())
        with making.making(folder, "mended", record, force=True, folder=True) as (beside, counts):
            for path, walked in walks:
                before = findings.faults
                copy = beside / path.name
                with lines.writer(copy) as output:
                    written = 0
                    for line in walked:
                        output.write(line + "\n")
                        written += 1
                if path in self.run and written:
                    runs.write(runs.read(copy), copy)  # by score, with ranks that say so
                counts[path.name] = {"lines": written, "faults": findings.faults - before}
                log.info("%s: %s lines, %s faults mended or left out", folder / path.name, f"{written:,}", f"{findings.faults - before:,}")

    def _encodings(self, folder: Path, findings: "Findings", around: "Around") -> None:
        from moeir.architectures.base import KINDS
        from moeir.artifacts import manifests, shards
        from moeir.checking import vectors

        every: list[str] = []
        for part in shards.parts(folder):
            ids = manifests.read_lines(part / "ids.txt")
            every += ids
            for expert, kind in manifests.read_manifest(part)["counts"]["experts"].items():
                opened: Any = KINDS[kind].open(part / expert)
                checked = vectors.Checked(str(part / expert), ids, findings)
                if kind == "dense":
                    checked.dense(opened.vectors.numpy())
                elif kind == "sparse":
                    checked.sparse(opened.terms.numpy(), opened.weights.numpy(), opened.starts.numpy(), opened.vocabulary)
                elif kind == "multivector":
                    checked.multivector(opened.vectors.numpy(), opened.starts.numpy())
        documents = around.documents
        vectors.check_ids(str(folder / "ids.txt"), every, findings, None if documents is None else set(documents))

    def _show(self, findings: "Findings") -> None:
        if self.form == "json":
            facts = {"faults": findings.faults, "findings": findings.records()}
            sys.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
        elif self.form == "tsv":
            sys.stdout.writelines("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in findings.rows())
        else:
            sys.stdout.writelines(f"{line}\n" for line in findings.text())
