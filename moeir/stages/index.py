"""`moeir index`: build an index per expert from encodings, or a BM25 index from texts."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from moeir import console, variants
from moeir.artifacts import manifests, shards
from moeir.console import format_count
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import KEEP_EMPTY, Counts, Facts, Stage, checkpoint_reference

if TYPE_CHECKING:
    from moeir.indexes.base import Index as Engine

log = logging.getLogger(__name__)
TEXTS_PER_BATCH = 4096
SelectedShard: TypeAlias = tuple[Path, list[int] | None]  # a shard, and the rows of its documents that are indexed, None for all


@dataclass(frozen=True, kw_only=True)
class Index(Stage):
    """Build an index for every expert from encodings, or a BM25 index from texts."""

    encodings: tuple[Path, ...] = input_field(
        "encodings",
        "Output folder of moeir encode, whole or in shards; repeat the flag for documents that were encoded later.",
        (),
    )
    corpus: Path | None = input_field("texts", "Documents, for an engine that reads texts (bm25, lucene).", None, excludes=("encodings",))
    delete: Path | None = input_field(
        "ids",
        "With --encodings: ids of documents to leave out, one a line; of several encodings, of all but the last, which may replace them.",
        None,
        needs=("encodings",),
    )
    engine: tuple[str, ...] = option(
        "[EXPERT=]SPEC, e.g. bm25:k1=0.9,b=0.4 or global=faiss; repeat the flag; see: moeir variants indexes [default: each "
        "representation's exact engine].",
        (),
    )
    expansion: Path | None = input_field(
        "texts",
        "With --corpus: output of generate-queries; its queries are appended to their documents.",
        None,
        needs=("corpus",),
    )
    keep_empty: bool = option(**KEEP_EMPTY, needs=("corpus",))
    output: Path = output_field("index", "Folder to write.")

    def check(self) -> None:
        for spec in self.engine:
            variants.import_code_of(_split_engine_spec(spec)[1])
            variants.resolve_spec("indexes", _split_engine_spec(spec)[1])
        if not self.encodings and self.corpus is None:
            raise UsageError("index: give --encodings, or --corpus with --engine bm25")
        if self.corpus is not None and (len(self.engine) != 1 or not self._reads_texts()):
            raise UsageError("index --corpus: the engines that read texts are bm25 and lucene, one at a time: add --engine bm25")
        if self.corpus is not None and (expert := _split_engine_spec(self.engine[0])[0]):
            raise UsageError(f"--engine {self.engine[0]}: texts have no expert {expert}; leave {expert}= out")

    def _reads_texts(self) -> bool:
        engine: type[Engine] = variants.bind_variant("indexes", _split_engine_spec(self.engine[0])[1]).func  # type: ignore[assignment]
        return engine.kind == "text"

    def summary(self, counts: Facts) -> str:
        engines = ", ".join(name if name == spec else f"{name} ({spec})" for name, spec in counts["experts"].items())
        return f"{format_count(counts['texts'], 'text')}, {engines}"

    def next_command(self) -> str:
        collapse = "--collapse max " if self._has_passages() else ""
        return f"search --index OUTPUT --queries QUERIES@test {collapse}--output {'runs' if self.encodings else 'run.trec'}"

    def _has_passages(self) -> bool:
        """Whether the ids are those of passages, `ID#NUMBER`, by the first of them."""
        if (file := next(self.output.rglob("ids.txt"), None)) is None:
            return False
        with file.open(encoding="utf-8") as ids:
            return re.search(r"#\d+$", ids.readline().strip()) is not None

    def prepare(self) -> None:
        if self.encodings:
            self._choose_engines(self._check_alike()["experts"])

    def work(self) -> Counts:
        return self._index_encodings() if self.encodings else self._index_texts()

    def _index_texts(self) -> Counts:
        expert, spec = variants.parse_spec(self.engine[0]).name, self.engine[0]
        index: Engine = variants.bind_variant("indexes", spec)()
        ids = self._add_texts(index)
        index.save(self.output / expert)
        _write_ids(ids, self.output)
        return {"texts": len(ids), "experts": {expert: spec}}

    def _add_texts(self, index: "Engine") -> list[str]:
        """Add texts to an index, each with its queries of --expansion (docT5query, Nogueira and Lin 2019); returns their ids."""
        from moeir.records import generated_queries, texts

        assert self.corpus is not None
        records = () if self.expansion is None else generated_queries.read_generated_queries(self.expansion)
        expansions = {record.id: " ".join(record.queries) for record in records}
        ids: list[str] = []
        documents = console.progress(texts.read_texts(self.corpus, keep_empty=self.keep_empty), "reading")
        for batch in texts.split_chunks(documents, TEXTS_PER_BATCH):
            ids += [text.id for text in batch]
            index.add([f"{text.content} {expansions[text.id]}" if text.id in expansions else text.content for text in batch])
        if self.expansion is not None:
            _check_expansion(self.expansion, ids, expansions)
        return ids

    def _index_encodings(self) -> Counts:
        facts = self._check_alike()
        parts, ids = self._select_documents()
        engines = self._choose_engines(facts["experts"])
        for expert, spec in engines.items():
            index: Engine = variants.bind_variant("indexes", spec)()
            _add_encodings(index, parts, expert)
            index.save(self.output / expert)
        _write_ids(ids, self.output)
        dtype = _join_dtypes(", ".join(map(str, self.encodings)), [manifests.read_counts(shard) for shard, _ in parts])
        checkpoint = (parts[0][0] / facts["checkpoint"]["path"]).resolve()
        reference = checkpoint_reference(checkpoint, self.output, facts["checkpoint"])
        pruning_entry = {"shortened": facts["shortened"]} if "shortened" in facts else {}
        return {"texts": len(ids), "experts": engines, "dtype": dtype, **pruning_entry, **reference}

    def _check_alike(self) -> dict[str, Any]:
        """The counts of the first encodings; ArtifactError unless all were made with one checkpoint and shortened alike."""
        first, *others = (manifests.read_counts(shards.shard_folders(folder)[0]) for folder in self.encodings)
        for folder, counts in zip(self.encodings[1:], others, strict=True):
            if counts["checkpoint"]["digest"] != first["checkpoint"]["digest"]:
                raise ArtifactError(f"{folder}: made with another checkpoint than {self.encodings[0]}; encode all documents with one")
            if counts.get("shortened") != first.get("shortened"):
                how = f"expected {first.get('shortened')}, found {counts.get('shortened')}; encode them again"
                raise ArtifactError(f"{folder}: its documents were not shortened as those of {self.encodings[0]}: {how}")
        return first

    def _select_documents(self) -> tuple[list[SelectedShard], list[str]]:
        """The parts of the encodings without what is deleted, and the ids of their documents; DataError if one is in several."""
        from moeir.indexes.subset import check_ids
        from moeir.records import lines, texts
        from moeir.representations.encodings import read_ids

        deleted = frozenset[str]() if self.delete is None else frozenset(texts.read_id_list(self.delete))
        parts, ids, left_out = list[SelectedShard](), list[str](), set[str]()
        for number, folder in enumerate(self.encodings):
            takes_all = not deleted or 0 < number == len(self.encodings) - 1
            earlier = set(ids) if number else frozenset[str]()
            for shard in shards.shard_folders(folder):
                names = read_ids(shard)
                rows = None if takes_all else [row for row, name in enumerate(names) if name not in deleted]
                left_out |= set() if takes_all else deleted.intersection(names)
                own = names if rows is None else [names[row] for row in rows]
                if twice := earlier.intersection(own):
                    advice = "to replace documents, name them with --delete"
                    raise DataError(f"{folder}: document {min(twice)!r} is in the encodings before it, too; {advice}")
                parts.append((shard, rows))
                ids += own
        if self.delete is not None:
            source, label = lines.source_name(self.delete), ", ".join(map(str, self.encodings))
            check_ids(source, sorted(deleted), left_out, label, may_be_new=len(self.encodings) > 1)
            if not ids:
                raise DataError(f"{source}: has all documents of {label}; expected one that remains")
        return parts, ids

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
                raise UsageError(f"--engine {spec}: there is no expert {name!r} in {self.encodings[0]}; it has {', '.join(kinds)}")
            engines[name or next(iter(kinds))] = engine
        for expert, engine in engines.items():
            takes = variants.bind_variant("indexes", engine)().kind
            if takes not in (kind := kinds[expert], "any"):
                raise UsageError(f"--engine {expert}={engine}: {engine} takes {takes} representations, {expert} has {kind}")
        return engines


def _write_ids(ids: Sequence[str], folder: Path) -> None:
    (folder / "ids.txt").write_text("".join(f"{document_id}\n" for document_id in ids), encoding="utf-8")


def _add_encodings(index: "Engine", parts: Sequence[SelectedShard], expert: str) -> None:
    """Add the documents of an expert; ArtifactError for those that its engine does not take."""
    import torch

    from moeir.artifacts.array_folder import MAKE_AGAIN
    from moeir.representations.encodings import open_expert

    for shard, rows in parts:
        documents = open_expert(shard, expert)
        if rows is not None:
            documents = documents.select(torch.tensor(rows, dtype=torch.int64))
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
