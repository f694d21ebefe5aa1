"""`moeir export`: encodings as documents for a serving engine, with its schema and a script that loads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.console import format_count
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import Counts, Facts, Stage

if TYPE_CHECKING:
    from moeir.export_targets.base import ExportedDocument, ExportSchema


@dataclass(frozen=True, kw_only=True)
class Export(Stage):
    """Export encodings to an engine that serves all experts (qdrant, milvus): documents, schema, loader."""

    to: str = option("Engine: qdrant or milvus, with options.", package="export_targets")
    encodings: tuple[Path, ...] = input_field(
        "encodings", "Output folder of moeir encode, whole or in shards; repeat the flag for several."
    )
    corpus: Path | None = input_field("texts", "The corpus that was encoded, to export titles and texts, too.", None)
    model: Path | None = input_field("checkpoint", "The checkpoint, if it has moved; its tokenizer has the terms of sparse experts.", None)
    output: Path = output_field("export", "Folder to write.")

    def makes_folder(self) -> bool:
        return True

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['documents'], 'document')}, {', '.join(counts['experts'])}"

    def prepare(self) -> None:
        variants.bind_variant("export_targets", self.to)(self._read_collection())

    def work(self) -> Counts:
        from moeir.console import progress

        collection = self._read_collection()
        target = variants.bind_variant("export_targets", self.to)(collection)
        count = target.write(progress(self._read_documents(collection), "exporting"), self.output)
        return {"documents": count, "experts": dict(collection.kinds)}

    @property
    def _shard_folders(self) -> list[Path]:
        """The folders of all encodings; sharded ones as the folders of their shards."""
        from moeir.artifacts import shards

        return [shard for folder in self.encodings for shard in shards.shard_folders(folder)]

    def _read_collection(self) -> "ExportSchema":
        from moeir.artifacts import manifests
        from moeir.backbones.tokenizer import TextTokenizer
        from moeir.export_targets.base import ExportSchema
        from moeir.representations.base import representation_class

        shard_counts = [manifests.read_counts(folder) for folder in self._shard_folders]
        for folder, counts in zip(self._shard_folders, shard_counts, strict=True):
            if counts["checkpoint"]["digest"] != shard_counts[0]["checkpoint"]["digest"]:
                raise ArtifactError(f"{folder}: made with another checkpoint than {self.encodings[0]}; encode all shards with one")
        first, kinds, widths = self._shard_folders[0], dict[str, str](), dict[str, int]()
        for name, kind in shard_counts[0]["experts"].items():
            if (exported_as := representation_class(kind).exported_as) is None:
                raise UsageError(f"--encodings {self.encodings[0]}: {name} is {kind}, which no engine but moeir's serves")
            kinds[name], width = exported_as, representation_class(kind).open(first / name).vector_width()
            widths |= {} if width is None else {name: width}
        self._check_disjoint()
        recorded, terms = shard_counts[0]["checkpoint"], list[str]()
        if "sparse" in kinds.values():
            tokenizer = TextTokenizer(manifests.find_checkpoint(first, recorded, self.model))
            terms = [tokenizer.id_to_token(number) for number in range(tokenizer.vocabulary_size)]
        return ExportSchema(kinds, widths, terms)

    def _check_disjoint(self) -> None:
        """ArtifactError if two of the encodings have a document of the same id: an engine would find it twice, or once of two."""
        from moeir.representations.encodings import read_ids

        ids = set[str]()
        for folder in self._shard_folders if len(self.encodings) > 1 else ():
            own = read_ids(folder)
            if twice := ids.intersection(own):
                raise ArtifactError(f"--encodings {folder}: has document {min(twice)!r}, as those before it have; name each once")
            ids.update(own)

    def _read_documents(self, collection: "ExportSchema") -> Iterator["ExportedDocument"]:
        """Every document, read from memory maps, with the text of its row in the corpus."""
        from moeir.export_targets.base import ExportedDocument
        from moeir.records.texts import Text, read_texts
        from moeir.representations.encodings import open_shard

        texts, number = None if self.corpus is None else read_texts(self.corpus, keep_empty=True), 0
        for folder in self._shard_folders:
            ids, representations = open_shard(folder)
            for row, document_id in enumerate(ids):
                text = Text(document_id, "") if texts is None else next(texts, None)
                if text is None or text.id != document_id:
                    description = "the end" if text is None else repr(text.id)
                    problem = f"has {description} where the encodings have {document_id!r}"
                    raise DataError(f"{self.corpus}: {problem}; name the corpus that was encoded, in its order")
                vectors: dict[str, dict[str, Any]] = {"dense": {}, "sparse": {}, "multivector": {}}
                for name, kind in collection.kinds.items():
                    vectors[kind][name] = representations[name].export_row(row)
                yield ExportedDocument(number, text, **vectors)
                number += 1
