"""`moeir index`: encodings, or texts for BM25, become an index for each expert."""

import logging
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import Counts, Stage

if TYPE_CHECKING:
    from moeir.indexes.base import Index as Engine

log = logging.getLogger(__name__)
TEXTS_AT_ONCE = 4096
TEXT_ENGINES = ("bm25", "lucene")
ENGINES = {"dense": "flat", "sparse": "inverted", "multivector": "maxsim", "exact-match": "exact-match"}


@dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Build the indexes of every expert from encodings, or a BM25 index from texts."""

    encodings: Path | None = source("encodings", "What encode wrote, at once or in shards.", None)
    corpus: Path | None = source("texts", "Documents, for an engine that reads texts (bm25, lucene).", None)
    engine: tuple[str, ...] = option("[EXPERT=]SPEC, e.g. bm25:k1=0.9,b=0.4 [default: each representation's exact engine].", ())
    expansion: Path | None = source("texts", "With --corpus: generate-queries' file; a document is followed by its queries.", None)
    expansion_queries: int | None = option("With --expansion: the first N queries of each document [default: all].", None)
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = product("index", "Folder to write.")

    def check(self) -> None:
        if (self.encodings is None) == (self.corpus is None):
            raise UsageError("index: give --encodings, or --corpus with --engine bm25")
        if self.corpus is not None and (len(self.engine) != 1 or self._text_engine not in TEXT_ENGINES):
            raise UsageError("index --corpus: the engines that read texts are bm25 and lucene, one at a time: add --engine bm25")
        for spec in self.engine:
            variants.resolve("indexes", _split(spec)[1])
        if self.expansion is not None and self.corpus is None:
            raise UsageError("--expansion: goes with --corpus and --engine bm25; encodings are not expanded")
        if self.expansion_queries is not None and (self.expansion is None or self.expansion_queries < 1):
            found = "without --expansion" if self.expansion is None else "expected at least 1"
            raise UsageError(f"--expansion-queries {self.expansion_queries}: {found}")

    @property
    def _text_engine(self) -> str:
        """The name of the engine that reads texts, and of the one expert of its index."""
        return variants.parse(self.engine[0]).name

    def work(self) -> Counts:
        if self.corpus is not None:
            return self._from_texts(self.corpus)
        assert self.encodings is not None
        return self._from_encodings(self.encodings)

    def _from_texts(self, corpus: Path) -> Counts:
        from moeir import console
        from moeir.records import texts

        index: Engine = variants.bind("indexes", self.engine[0])()
        added = self._expansion()
        ids: list[str] = []
        walked = iter(console.progress(texts.read(corpus, keep_empty=self.keep_empty), "reading"))
        while read := list(islice(walked, TEXTS_AT_ONCE)):
            ids += [text.id for text in read]
            index.add([f"{text.content} {added[text.id]}" if text.id in added else text.content for text in read])
        if self.expansion is not None:
            _check_expansion(self.expansion, ids, added)
        index.save(self.output / self._text_engine)
        self._write_ids(ids)
        return {"texts": len(ids), "experts": {self._text_engine: self.engine[0]}}

    def _expansion(self) -> dict[str, str]:
        """What is added to each document, by id: its queries (docT5query, Nogueira and Lin 2019)."""
        from moeir.records import generated

        records = () if self.expansion is None else generated.read(self.expansion)
        return {record.id: " ".join(record.queries[: self.expansion_queries]) for record in records}

    def _from_encodings(self, folder: Path) -> Counts:
        from moeir.architectures.base import KINDS
        from moeir.artifacts import manifests, shards
        from moeir.stages.encode import origin

        parts = shards.parts(folder)
        said = [manifests.read_manifest(part)["counts"] for part in parts]
        facts = said[0]
        if len(halves := sorted({str(one["dtype"]) for one in said})) > 1:
            log.warning("%s: its shards were encoded in %s; encode with --dtype to have one", folder, " and ".join(halves))
        engines = self._engines(facts["experts"])
        for expert, spec in engines.items():
            index: Engine = variants.bind("indexes", spec)()
            if index.kind != (found := facts["experts"][expert]):
                raise UsageError(f"--engine {expert}={spec}: {spec} takes {index.kind} representations, {expert} has {found}")
            for part in parts:
                index.add(KINDS[index.kind].open(part / expert))
            index.save(self.output / expert)
        ids = [one for part in parts for one in manifests.read_lines(part / "ids.txt")]
        self._write_ids(ids)
        checkpoint = (parts[0] / facts["checkpoint"]["path"]).resolve()
        kept = origin(checkpoint, self.output) if checkpoint.is_dir() else {"checkpoint": {"path": str(checkpoint)}}
        kept["checkpoint"]["digest"] = facts["checkpoint"]["digest"]
        short = {"shortened": facts["shortened"]} if "shortened" in facts else {}
        return {"texts": len(ids), "experts": engines, **short, **kept}

    def _engines(self, kinds: dict[str, str]) -> dict[str, str]:
        """The engine of each expert: its own, the one said for all of its kind, or the exact one."""
        chosen = {}
        for expert, kind in kinds.items():
            if kind not in ENGINES:
                raise ArtifactError(f"{self.encodings}: {expert} is {kind}; this version of moeir indexes {', '.join(ENGINES)}")
            chosen[expert] = ENGINES[kind]
        for spec in self.engine:
            name, engine = _split(spec)
            if name is None and len(kinds) > 1:
                raise UsageError(f"--engine {spec}: say for which expert: {'=…, '.join(kinds)}=…")
            if name is not None and name not in kinds:
                raise UsageError(f"--engine {spec}: there is no expert {name!r} in {self.encodings}; it has {', '.join(kinds)}")
            chosen[name or next(iter(kinds))] = engine
        return chosen

    def _write_ids(self, ids: list[str]) -> None:
        (self.output / "ids.txt").write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")


def _split(spec: str) -> tuple[str | None, str]:
    """`local=maxsim:option=1` is (local, maxsim:option=1); an equals sign behind a colon belongs to the options."""
    name, equals, rest = spec.partition("=")
    return (name, rest) if equals and ":" not in name else (None, spec)


def _check_expansion(expansion: Path, ids: list[str], added: dict[str, str]) -> None:
    """Warn of documents without queries and of queries without a document; DataError if no document has any."""
    missing = sum(not added.get(one) for one in ids)
    if missing == len(ids):
        raise DataError(f"{expansion}: has queries for none of the {len(ids)} documents; do the ids agree?")
    if missing:
        log.warning("%d of %d documents have no queries in %s; they are indexed as they are", missing, len(ids), expansion)
    if strangers := len(added.keys() - set(ids)):
        log.warning("%s: %d documents are not in the corpus; their queries are left out", expansion, strangers)
