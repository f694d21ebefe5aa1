"""`moeir index`: build an index per expert from encodings, or a BM25 index from texts; add documents to an index, and delete some."""

import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import console, variants
from moeir.artifacts import manifests, shards
from moeir.artifacts.atomic_write import LINKED
from moeir.console import format_count
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import Setting, input_field, option, output_field
from moeir.stages.base import Counts, Facts, Stage, checkpoint_reference

if TYPE_CHECKING:
    from moeir.indexes.base import Index as Engine
    from moeir.indexes.segments import IndexFolder

log = logging.getLogger(__name__)
TEXTS_PER_BATCH = 4096
STORED = ".stored"  # within the output: the folder of documents that are read from the engine of an expert and written again


@dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Build an index for every expert from encodings, or a BM25 index from texts; with --index, add documents to it or delete some."""

    prepare_reads_texts = True
    encodings: Path | None = input_field("encodings", "Output folder of moeir encode, whole or in shards.", None, excludes=("index",))
    corpus: Path | None = input_field(
        "texts", "Documents, for an engine that reads texts (bm25, lucene).", None, excludes=("encodings", "index")
    )
    index: Path | None = input_field(
        "index", "An index to update, which stays as it is: --output is the index with --add, --delete or --compact.", None
    )
    add: Path | None = input_field(
        "texts", "With --index: documents to add: output of moeir encode with the same checkpoint; for bm25, texts.", None, needs=("index",)
    )
    delete: Path | None = input_field(
        "ids", "With --index: ids of documents to delete, one a line, before --add: what is in both is replaced.", None, needs=("index",)
    )
    compact: bool = option("With --index: write the files of a new index of its documents, not segments.", False, needs=("index",))
    engine: tuple[str, ...] = option(
        "[EXPERT=]SPEC, e.g. bm25:k1=0.9,b=0.4 or global=faiss; repeat the flag; see: moeir variants indexes [default: each "
        "representation's exact engine].",
        (),
        excludes=("index",),
    )
    expansion: Path | None = input_field(
        "texts",
        "With --corpus: output of generate-queries; its queries are appended to their documents.",
        None,
        needs=("corpus or add",),
    )
    expansion_queries: int | None = option(
        "With --expansion: use the first N queries of each document [default: all].", None, minimum=1, needs=("expansion",)
    )
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = output_field("index", "Folder to write.")

    def check(self) -> None:
        for spec in self.engine:
            variants.import_code_of(_split_engine_spec(spec)[1])
            variants.resolve_spec("indexes", _split_engine_spec(spec)[1])
        if self.encodings is None and self.corpus is None and self.index is None:
            raise UsageError("index: give --encodings, or --corpus with --engine bm25")
        if self.corpus is not None and (len(self.engine) != 1 or not self._reads_texts()):
            raise UsageError("index --corpus: the engines that read texts are bm25 and lucene, one at a time: add --engine bm25")
        if self.index is not None and self.add is None and self.delete is None and not self.compact:
            raise UsageError(f"--index {self.index}: expected --add, --delete or --compact")
        if self.expansion is not None and self.add is not None and self.add.is_dir():
            raise UsageError("--expansion: goes with texts; encodings are not expanded")

    def sources(self) -> Iterator[tuple[Setting, Path]]:
        for setting, path in super().sources():
            yield (replace(setting, kind="encodings") if setting.name == "add" and path.is_dir() else setting), path

    def _reads_texts(self) -> bool:
        engine: type[Engine] = variants.bind_variant("indexes", self.engine[0]).func  # type: ignore[assignment]
        return engine.kind == "text"

    def summary(self, counts: Facts) -> str:
        engines = ", ".join(name if name == spec else f"{name} ({spec})" for name, spec in counts["experts"].items())
        parts = f"; {format_count(counts['segments'], 'segment')}, {counts['deleted']} deleted rows" if "segments" in counts else ""
        return f"{format_count(counts['texts'], 'text')}, {engines}{parts}"

    def next_command(self) -> str:
        is_text = self.corpus is not None if self.index is None else "checkpoint" not in manifests.read_manifest(self.index)["counts"]
        collapse = "--collapse max " if self._has_passages() else ""
        return f"search --index OUTPUT --queries QUERIES@test {collapse}--output {'run.trec' if is_text else 'runs'}"

    def _has_passages(self) -> bool:
        """Whether the ids are those of passages, `ID#NUMBER`, by the first of them."""
        if (file := next(self.output.rglob("ids.txt"), None)) is None:
            return False
        with file.open(encoding="utf-8") as ids:
            return re.search(r"#\d+$", ids.readline().strip()) is not None

    def prepare(self) -> None:
        if self.encodings is not None:
            self._choose_engines(manifests.read_counts(shards.shard_folders(self.encodings)[0])["experts"])
        if self.index is not None:
            self._plan_update(self.index, manifests.read_counts(self.index))

    def work(self) -> Counts:
        if self.encodings is not None:
            return self._index_encodings(self.encodings)
        if self.index is None:
            return self._index_texts(variants.parse_spec(self.engine[0]).name, self.engine[0], self.corpus)
        facts = manifests.read_counts(self.index)
        remaining = self._plan_update(self.index, facts)
        counts = {name: value for name, value in facts.items() if name not in ("segments", "deleted")}
        if "checkpoint" in facts:
            return counts | self._update_experts(self.index, facts, remaining)
        [(expert, spec)] = remaining.engines.items()
        return counts | self._index_texts(expert, spec, self.add, remaining)

    def _index_texts(self, expert: str, spec: str, corpus: Path | None, remaining: "IndexFolder | None" = None) -> dict[str, Any]:
        """Index texts, after the documents that remain of an index, from the counts of terms that it stores."""
        index: Engine = variants.bind_variant("indexes", spec)()
        for documents in () if remaining is None else remaining.documents(expert, self.output / STORED):
            index.add(documents)
        ids = [] if corpus is None else self._add_texts(index, corpus)
        if remaining is not None:
            self._check_new(ids, remaining)
            ids = [*remaining.ids, *ids]
        index.save(self.output / expert)
        _write_ids(ids, self.output)
        return {"texts": len(ids), "experts": {expert: spec}}

    def _add_texts(self, index: "Engine", corpus: Path) -> list[str]:
        """Add texts to an index, each with its queries of --expansion (docT5query, Nogueira and Lin 2019); returns their ids."""
        from moeir.records import generated_queries, texts

        records = () if self.expansion is None else generated_queries.read_generated_queries(self.expansion)
        expansions = {record.id: " ".join(record.queries[: self.expansion_queries]) for record in records}
        ids: list[str] = []
        documents = console.progress(texts.read_texts(corpus, keep_empty=self.keep_empty), "reading")
        for batch in texts.split_chunks(documents, TEXTS_PER_BATCH):
            ids += [text.id for text in batch]
            index.add([f"{text.content} {expansions[text.id]}" if text.id in expansions else text.content for text in batch])
        if self.expansion is not None:
            _check_expansion(self.expansion, ids, expansions)
        return ids

    def _index_encodings(self, folder: Path) -> Counts:
        from moeir.representations.encodings import read_ids

        shard_folders = shards.shard_folders(folder)
        shard_counts = [manifests.read_counts(shard) for shard in shard_folders]
        facts = shard_counts[0]
        dtype = _join_dtypes(f"{folder}: its shards", shard_counts)
        engines = self._choose_engines(facts["experts"])
        self._write_engines(engines, shard_folders, self.output)
        ids = [document_id for shard in shard_folders for document_id in read_ids(shard)]
        _write_ids(ids, self.output)
        checkpoint = (shard_folders[0] / facts["checkpoint"]["path"]).resolve()
        reference = checkpoint_reference(checkpoint, self.output, facts["checkpoint"])
        pruning_entry = {"shortened": facts["shortened"]} if "shortened" in facts else {}
        return {"texts": len(ids), "experts": engines, "dtype": dtype, **pruning_entry, **reference}

    def _write_engines(
        self, engines: Mapping[str, str], shard_folders: Sequence[Path], target: Path, remaining: "IndexFolder | None" = None
    ) -> None:
        """Index the encodings of every expert, after the documents that remain of an index."""
        for expert, spec in engines.items():
            index: Engine = variants.bind_variant("indexes", spec)()
            for documents in () if remaining is None else remaining.documents(expert, self.output / STORED):
                index.add(documents)
            _add_encodings(index, shard_folders, expert)
            index.save(target / expert)
            shutil.rmtree(self.output / STORED, ignore_errors=True)

    def _plan_update(self, path: Path, facts: Mapping[str, Any]) -> "IndexFolder":
        """The index without the documents of --delete; an error if those of --add do not fit it."""
        from moeir.indexes.segments import IndexFolder, check_ids
        from moeir.records import lines, texts

        folder = remaining = IndexFolder.read(path, facts)
        folder.check_updates()
        if self.delete is not None:
            ids, source = texts.read_id_list(self.delete), lines.source_name(self.delete)
            check_ids(source, ids, set(folder.ids), str(path), may_be_new=self.add is not None)
            remaining = folder.delete(ids)
            if not len(remaining.rows) and self.add is None:
                raise DataError(f"{source}: has all {len(folder.ids)} documents of {path}; expected one that remains, or --add")
        is_text = "checkpoint" not in facts
        if self.add is not None and is_text == self.add.is_dir():
            expected = "texts" if is_text else "the output folder of moeir encode"
            raise UsageError(f"--add {self.add}: expected {expected}, as {path} has {', '.join(facts['experts'])}")
        if self.add is not None and not is_text:
            self._check_alike(path, facts, manifests.read_counts(shards.shard_folders(self.add)[0]))
        return remaining

    def _update_experts(self, path: Path, facts: Mapping[str, Any], remaining: "IndexFolder") -> dict[str, Any]:
        """Add a segment to the segments of an index, or write it anew; returns what changes in its counts."""
        from moeir.representations.encodings import read_ids

        shard_folders = [] if self.add is None else shards.shard_folders(self.add)
        shard_counts = [manifests.read_counts(shard) for shard in shard_folders]
        ids = [document_id for shard in shard_folders for document_id in read_ids(shard)]
        self._check_new(ids, remaining)
        checkpoint = (path / facts["checkpoint"]["path"]).resolve()
        changes = {"texts": len(remaining.rows) + len(ids), **checkpoint_reference(checkpoint, self.output, facts["checkpoint"])}
        changes["dtype"] = _join_dtypes(f"{path} and {self.add}: their documents", [facts, *shard_counts])
        target, segments = self.output, len(remaining.segments)
        is_new = self.compact or not remaining.takes_segments
        if not is_new:
            target = self.output / f"segment-{segments}"
            changes |= {"segments": segments + bool(ids), "deleted": remaining.write_deleted(self.output)}
            changes[LINKED] = remaining.link_segments(self.output, manifests.read_manifest(path)["files"])
        if not is_new and not ids:
            return changes
        self._write_engines(remaining.engines, shard_folders, target, remaining if is_new else None)
        _write_ids([*remaining.ids, *ids] if is_new else ids, target)
        return changes

    def _check_alike(self, path: Path, facts: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """ArtifactError unless the encodings of --add were made as those of the index, `facts`."""
        if added["checkpoint"]["digest"] != facts["checkpoint"]["digest"]:
            raise ArtifactError(f"{self.add}: made with another checkpoint than {path}; encode all documents with one")
        if added["experts"].keys() != facts["experts"].keys():
            raise ArtifactError(f"{self.add}: has {', '.join(added['experts'])}; {path} has {', '.join(facts['experts'])}")
        expected, actual = (
            " ".join(f"--{name.replace('_', '-')} {value}" for name, value in one.get("shortened", {}).items()) or "no option"
            for one in (facts, added)
        )
        if expected != actual:
            how = f"expected {expected}, found {actual}; encode them again"
            raise ArtifactError(f"{self.add}: its documents were not shortened as those of {path}: {how}")

    def _check_new(self, ids: Sequence[str], remaining: "IndexFolder") -> None:
        """DataError if a document to be added is in the index."""
        if known := set(remaining.ids).intersection(ids):
            advice = "to replace documents, name them with --delete, too"
            raise DataError(f"{self.add}: document {min(known)!r} is in {remaining.path} already; {advice}")

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
        for expert, engine in engines.items():
            takes = variants.bind_variant("indexes", engine)().kind
            if takes not in (kind := kinds[expert], "any"):
                raise UsageError(f"--engine {expert}={engine}: {engine} takes {takes} representations, {expert} has {kind}")
        return engines


def _write_ids(ids: Sequence[str], folder: Path) -> None:
    (folder / "ids.txt").write_text("".join(f"{document_id}\n" for document_id in ids), encoding="utf-8")


def _add_encodings(index: "Engine", shard_folders: Sequence[Path], expert: str) -> None:
    """Add the documents of an expert; ArtifactError for those that its engine does not take."""
    from moeir.artifacts.array_folder import MAKE_AGAIN
    from moeir.representations.encodings import open_expert

    for shard in shard_folders:
        documents = open_expert(shard, expert)
        try:
            index.add(documents)
        except DataError as problem:
            raise ArtifactError(f"{shard / expert / documents.value_column}.npy: {problem}; {MAKE_AGAIN}") from None


def _join_dtypes(subject: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """The precisions in which documents were encoded; several are warned of."""
    dtypes = sorted({dtype for counts in parts for dtype in str(counts["dtype"]).split(", ")})
    if len(dtypes) > 1:
        log.warning("%s were encoded in %s; encode with --dtype to have one", subject, " and ".join(dtypes))
    return ", ".join(dtypes)


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
