"""`moeir export`: encodings as documents for a serving engine, with its schema and a script that loads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage

if TYPE_CHECKING:
    from moeir.records.texts import Text
    from moeir.servers.base import Collection, Document


@dataclass(frozen=True, kw_only=True)
class Export(Stage):
    """Export encodings to an engine that serves all experts (qdrant, vespa, opensearch, anserini): documents, schema, loader."""

    to: str = option("Engine: qdrant, vespa, opensearch or anserini, with options; see: moeir variants servers.")
    encodings: tuple[Path, ...] = source("encodings", "Output folder of moeir encode, whole or in shards; repeat the flag for several.")
    corpus: Path | None = source("texts", "The corpus that was encoded, to export titles and texts, too.", None)
    model: Path | None = source("checkpoint", "The checkpoint, if it has moved; its tokenizer has the terms of sparse experts.", None)
    output: Path = product("export", "Folder to write.")

    def check(self) -> None:
        variants.resolve("servers", self.to)
        if self.output == STREAM:
            raise UsageError("--output -: an export is a folder; name one")

    def makes_folder(self) -> bool:
        return True

    def work(self) -> Counts:
        from moeir.console import progress

        collection = self._collection()
        target = variants.bind("servers", self.to)(collection)
        served_experts = [name for name, kind in collection.kinds.items() if kind in target.takes]
        count = target.write(progress(self._documents(served_experts, collection), "exporting"), self.output)
        return {"documents": count, "experts": {name: collection.kinds[name] for name in served_experts}}

    @property
    def _folders(self) -> list[Path]:
        """The folders of all encodings; sharded ones as the folders of their shards."""
        from moeir.artifacts import shards

        return [shard for folder in self.encodings for shard in shards.parts(folder)]

    def _collection(self) -> "Collection":
        from moeir.architectures.base import KINDS
        from moeir.artifacts import manifests
        from moeir.servers.base import SERVED, Collection

        shard_counts = [manifests.read_manifest(folder)["counts"] for folder in self._folders]
        for folder, counts in zip(self._folders, shard_counts, strict=True):
            if counts["checkpoint"]["digest"] != shard_counts[0]["checkpoint"]["digest"]:
                raise ArtifactError(f"{folder}: made with another checkpoint than {self.encodings[0]}; encode all shards with one")
        kinds: dict[str, str] = shard_counts[0]["experts"]
        if unserved := [name for name, kind in kinds.items() if kind not in SERVED]:
            raise UsageError(f"--encodings {self.encodings[0]}: {unserved[0]} is {kinds[unserved[0]]}, which no engine but moeir's serves")
        first, widths = self._folders[0], {}
        for name, kind in kinds.items():
            if kind != "sparse":
                representation: Any = KINDS[kind].open(first / name)
                widths[name] = int(representation.vectors.shape[1])
        folder = self.model or (first / shard_counts[0]["checkpoint"]["path"]).resolve()
        terms = self._terms(folder, shard_counts[0]["checkpoint"]["digest"]) if "sparse" in kinds.values() else []
        return Collection(kinds, widths, terms, str(folder))

    def _terms(self, folder: Path, digest: str) -> list[str]:
        """All terms of the vocabulary, by id."""
        from moeir.artifacts import manifests
        from moeir.backbones.tokenizer import TextReader

        if not folder.is_dir():
            raise ArtifactError(f"{self.encodings[0]}: the checkpoint it was made with is not at {folder}; give its path with --model")
        if manifests.digest_of(manifests.verify(folder, "checkpoint")["files"]) != digest:
            raise ArtifactError(f"{folder}: not the checkpoint {self.encodings[0]} was made with; name that one with --model")
        tokenizer = TextReader(folder)
        return [tokenizer.token(number) for number in range(tokenizer.vocabulary)]

    def _documents(self, experts: list[str], collection: "Collection") -> Iterator["Document"]:
        """Every document, read from memory maps."""
        from moeir.architectures.base import KINDS
        from moeir.artifacts import manifests
        from moeir.servers.base import Document

        texts, number = self._texts(), 0
        for folder in self._folders:
            representations: dict[str, Any] = {name: KINDS[collection.kinds[name]].open(folder / name) for name in experts}
            for row, document_id in enumerate(manifests.read_lines(folder / "ids.txt")):
                vectors: dict[str, dict[str, Any]] = {"dense": {}, "sparse": {}, "multivector": {}}
                for name, representation in representations.items():
                    vectors[collection.kinds[name]][name] = _row(representation, collection.kinds[name], row)
                yield Document(number, _text(texts, document_id, self.corpus), **vectors)
                number += 1

    def _texts(self) -> "Iterator[Text] | None":
        from moeir.records import texts

        return None if self.corpus is None else texts.read(self.corpus, keep_empty=True)


def _row(representation: Any, kind: str, row: int) -> Any:
    """One document of a memory-mapped representation."""
    if kind == "dense":
        return representation.vectors[row].numpy()
    span = slice(int(representation.starts[row]), int(representation.starts[row + 1]))
    if kind == "sparse":
        return representation.terms[span].numpy(), representation.weights[span].numpy()
    return representation.vectors[span].numpy()


def _text(texts: "Iterator[Text] | None", expected_id: str, corpus: Path | None) -> "Text":
    """The next text of the corpus, whose id must be that of the encoded text."""
    from moeir.records.texts import Text

    if texts is None:
        return Text(expected_id, "")
    text = next(texts, None)
    if text is None or text.id != expected_id:
        description = "the end" if text is None else repr(text.id)
        raise DataError(
            f"{corpus}: has {description} where the encodings have {expected_id!r}; name the corpus that was encoded, in its order"
        )
    return text
