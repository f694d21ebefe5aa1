"""`moeir index`: encodings, or texts for BM25, become an index for each expert."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import ArtifactError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import Counts, Stage

if TYPE_CHECKING:
    from moeir.indexes.base import Index as Engine

ENGINES = {"dense": "flat", "sparse": "inverted", "multivector": "maxsim", "exact-match": "exact-match"}


@dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Build the indexes of every expert from encodings, or a BM25 index from texts."""

    encodings: Path | None = source("encodings", "What encode wrote.", None)
    corpus: Path | None = source("texts", "Documents, for an engine that reads texts (bm25).", None)
    engine: tuple[str, ...] = option("[EXPERT=]SPEC, e.g. bm25:k1=0.9,b=0.4 [default: each representation's exact engine].", ())
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = product("index", "Folder to write.")

    def check(self) -> None:
        if (self.encodings is None) == (self.corpus is None):
            raise UsageError("index: give --encodings, or --corpus with --engine bm25")
        if self.corpus is not None and [spec.split(":")[0] for spec in self.engine] != ["bm25"]:
            raise UsageError("index --corpus: the one engine that reads texts is bm25: add --engine bm25")
        for spec in self.engine:
            variants.resolve("indexes", _split(spec)[1])

    def work(self) -> Counts:
        if self.corpus is not None:
            return self._from_texts(self.corpus)
        assert self.encodings is not None
        return self._from_encodings(self.encodings)

    def _from_texts(self, corpus: Path) -> Counts:
        from moeir import console
        from moeir.records import texts

        index: Engine = variants.bind("indexes", self.engine[0])()
        ids, contents = [], []
        for text in console.progress(texts.read(corpus, keep_empty=self.keep_empty), "reading"):
            ids.append(text.id)
            contents.append(text.content)
        index.add(contents)
        index.save(self.output / "bm25")
        self._write_ids(ids)
        return {"texts": len(ids), "experts": {"bm25": self.engine[0]}}

    def _from_encodings(self, folder: Path) -> Counts:
        from moeir.architectures.base import KINDS
        from moeir.artifacts import manifests
        from moeir.stages.encode import origin

        facts = manifests.read_manifest(folder)["counts"]
        engines = self._engines(facts["experts"])
        for expert, spec in engines.items():
            index: Engine = variants.bind("indexes", spec)()
            if index.kind != (found := facts["experts"][expert]):
                raise UsageError(f"--engine {expert}={spec}: {spec} takes {index.kind} representations, {expert} has {found}")
            index.add(KINDS[index.kind].open(folder / expert))
            index.save(self.output / expert)
        ids = manifests.read_lines(folder / "ids.txt")
        self._write_ids(ids)
        checkpoint = (folder / facts["checkpoint"]["path"]).resolve()
        kept = origin(checkpoint, self.output) if checkpoint.is_dir() else {"checkpoint": {"path": str(checkpoint)}}
        kept["checkpoint"]["digest"] = facts["checkpoint"]["digest"]
        return {"texts": len(ids), "experts": engines, **kept}

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


