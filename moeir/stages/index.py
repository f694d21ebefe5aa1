"""`moeir index`: build an index per expert from encodings, or a BM25 index from texts."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moeir import variants
from moeir.console import format_count
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import Counts, Facts, Stage, checkpoint_reference

if TYPE_CHECKING:
    from moeir.indexes.base import Index as Engine

log = logging.getLogger(__name__)
TEXTS_PER_BATCH = 4096
TEXT_ENGINES = ("bm25", "lucene")


@dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Build an index for every expert from encodings, or a BM25 index from texts."""

    encodings: Path | None = input_field("encodings", "Output folder of moeir encode, whole or in shards.", None)
    corpus: Path | None = input_field("texts", "Documents, for an engine that reads texts (bm25, lucene).", None, unless=("encodings",))
    engine: tuple[str, ...] = option(
        "[EXPERT=]SPEC, e.g. bm25:k1=0.9,b=0.4 or lexical=seismic; repeat the flag; see: moeir variants indexes [default: each "
        "representation's exact engine].",
        (),
    )
    expansion: Path | None = input_field(
        "texts", "With --corpus: output of generate-queries; its queries are appended to their documents.", None
    )
    expansion_queries: int | None = option("With --expansion: use the first N queries of each document [default: all].", None, minimum=1)
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = output_field("index", "Folder to write.")

    def check(self) -> None:
        if (self.encodings is None) == (self.corpus is None):
            raise UsageError("index: give --encodings, or --corpus with --engine bm25")
        for spec in self.engine:
            variants.import_code_of(_split_engine_spec(spec)[1])
            variants.resolve_spec("indexes", _split_engine_spec(spec)[1])
        if self.corpus is not None and (len(self.engine) != 1 or not self._reads_texts()):
            raise UsageError("index --corpus: the engines that read texts are bm25 and lucene, one at a time: add --engine bm25")
        if self.expansion is not None and self.corpus is None:
            raise UsageError("--expansion: goes with --corpus and --engine bm25; encodings are not expanded")
        if self.expansion_queries is not None and self.expansion is None:
            raise UsageError(f"--expansion-queries {self.expansion_queries}: without --expansion")

    @property
    def _text_engine(self) -> str:
        """The name of the engine that reads texts, and of the one expert of its index."""
        return variants.parse_spec(self.engine[0]).name

    def _reads_texts(self) -> bool:
        """Whether the engine reads texts; of own code the class says so."""
        if variants.own_module(self.engine[0]) is None:
            return self._text_engine in TEXT_ENGINES
        own_engine: type[Engine] = variants.bind_variant("indexes", self.engine[0]).func  # type: ignore[assignment]
        return own_engine.kind == "text"

    def summary(self, counts: Facts) -> str:
        engines = ", ".join(name if name == spec else f"{name} ({spec})" for name, spec in counts["experts"].items())
        return f"{format_count(counts['texts'], 'text')}, {engines}"

    def next_command(self) -> list[object]:
        return ["search", "--index", self.output, "--queries", "queries.jsonl", "--output", "runs" if self.corpus is None else "run.trec"]

    def work(self) -> Counts:
        if self.corpus is not None:
            return self._index_texts(self.corpus)
        assert self.encodings is not None
        return self._index_encodings(self.encodings)

    def _index_texts(self, corpus: Path) -> Counts:
        from moeir import console
        from moeir.records import texts

        index: Engine = variants.bind_variant("indexes", self.engine[0])()
        expansions = self._read_expansion()
        ids: list[str] = []
        documents = console.progress(texts.read_texts(corpus, keep_empty=self.keep_empty), "reading")
        for batch in texts.split_chunks(documents, TEXTS_PER_BATCH):
            ids += [text.id for text in batch]
            index.add([f"{text.content} {expansions[text.id]}" if text.id in expansions else text.content for text in batch])
        if self.expansion is not None:
            _check_expansion(self.expansion, ids, expansions)
        index.save(self.output / self._text_engine)
        self._write_ids(ids)
        return {"texts": len(ids), "experts": {self._text_engine: self.engine[0]}}

    def _read_expansion(self) -> dict[str, str]:
        """The queries appended to each document, by id (docT5query, Nogueira and Lin 2019)."""
        from moeir.records import generated_queries

        records = () if self.expansion is None else generated_queries.read_generated_queries(self.expansion)
        return {record.id: " ".join(record.queries[: self.expansion_queries]) for record in records}

    def _index_encodings(self, folder: Path) -> Counts:
        from moeir.artifacts import manifests, shards
        from moeir.artifacts.array_folder import MAKE_AGAIN
        from moeir.representations.encodings import open_expert, read_ids

        shard_folders = shards.shard_folders(folder)
        shard_counts = [manifests.read_manifest(shard)["counts"] for shard in shard_folders]
        facts = shard_counts[0]
        if len(dtypes := sorted({str(counts["dtype"]) for counts in shard_counts})) > 1:
            log.warning("%s: its shards were encoded in %s; encode with --dtype to have one", folder, " and ".join(dtypes))
        engines = self._choose_engines(facts["experts"])
        for expert, spec in engines.items():
            index: Engine = variants.bind_variant("indexes", spec)()
            if index.kind not in (kind := facts["experts"][expert], "any"):
                raise UsageError(f"--engine {expert}={spec}: {spec} takes {index.kind} representations, {expert} has {kind}")
            for shard in shard_folders:
                documents = open_expert(shard, expert)
                try:
                    index.add(documents)
                except DataError as problem:
                    raise ArtifactError(f"{shard / expert / documents.value_column}.npy: {problem}; {MAKE_AGAIN}") from None
            index.save(self.output / expert)
        ids = [document_id for shard in shard_folders for document_id in read_ids(shard)]
        self._write_ids(ids)
        checkpoint = (shard_folders[0] / facts["checkpoint"]["path"]).resolve()
        reference = checkpoint_reference(checkpoint, self.output, facts["checkpoint"])
        pruning_entry = {"shortened": facts["shortened"]} if "shortened" in facts else {}
        return {"texts": len(ids), "experts": engines, "dtype": ", ".join(dtypes), **pruning_entry, **reference}

    def _choose_engines(self, kinds: dict[str, str]) -> dict[str, str]:
        """The engine of each expert: the one that --engine names, or the exact one of its representation."""
        from moeir.representations.base import representation_class

        engines = {expert: representation_class(kind).default_engine for expert, kind in kinds.items()}
        names = [_split_engine_spec(spec)[0] for spec in self.engine]
        if twice := next((spec for spec, name in zip(self.engine, names, strict=True) if names.count(name) > 1), None):
            raise UsageError(f"--engine {twice}: its expert has another --engine; an expert has one")
        for spec in self.engine:
            name, engine = _split_engine_spec(spec)
            if name is None and len(kinds) > 1:
                raise UsageError(f"--engine {spec}: name its expert: {'=…, '.join(kinds)}=…")
            if name is not None and name not in kinds:
                raise UsageError(f"--engine {spec}: there is no expert {name!r} in {self.encodings}; it has {', '.join(kinds)}")
            engines[name or next(iter(kinds))] = engine
        return engines

    def _write_ids(self, ids: list[str]) -> None:
        (self.output / "ids.txt").write_text("".join(f"{document_id}\n" for document_id in ids), encoding="utf-8")


def _split_engine_spec(spec: str) -> tuple[str | None, str]:
    """Split `local=maxsim:option=1` into (local, maxsim:option=1); an equals sign after a colon belongs to the options."""
    name, equals, rest = spec.partition("=")
    return (name, rest) if equals and ":" not in name else (None, spec)


def _check_expansion(expansion: Path, ids: list[str], expansions: dict[str, str]) -> None:
    """Warn about documents without queries and queries without a document; DataError if no document has queries."""
    missing = sum(not expansions.get(document_id) for document_id in ids)
    if missing == len(ids):
        raise DataError(f"{expansion}: has queries for none of the {len(ids)} documents; do the ids agree?")
    if missing:
        log.warning("%d of %d documents have no queries in %s; they are indexed as they are", missing, len(ids), expansion)
    if unknown := len(expansions.keys() - set(ids)):
        log.warning("%s: %d documents are not in the corpus; their queries are left out", expansion, unknown)
