"""`moeir encode`: one pass over a corpus, one representation for each expert, continued where it stopped."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.settings import option, product, source
from moeir.stages.base import Counts, Stage

if TYPE_CHECKING:
    from moeir.architectures.checkpoint import OpenCheckpoint
    from moeir.records.texts import Text

CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class Encode(Stage):
    """Encode a corpus with every expert of a checkpoint, in one pass."""

    model: Path = source("checkpoint", "Checkpoint to encode with.", names=("--encoder",))
    corpus: Path = source("texts", "Documents.")
    max_tokens: int = option("Tokens computed at once; lower it if memory runs out.", 16384, affects_result=False)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = product("encodings", "Folder to write.")

    def work(self) -> Counts:
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.precision import autocast, device_for, dtype_for
        from moeir.console import meter
        from moeir.records import texts

        device = device_for(self.device)
        dtype = dtype_for(self.dtype, device)
        checkpoint = open_checkpoint(self.model, device)
        shelf = Shelf(self.output, checkpoint.architecture.kinds)
        documents = texts.read(self.corpus, keep_empty=self.keep_empty)
        with meter("encoding") as counter, autocast(dtype, device):
            for _ in islice(documents, shelf.texts):
                counter.advance()
            for chunk in _chunks(documents):
                shelf.add(chunk, checkpoint, self.max_tokens)
                counter.advance(len(chunk))
        shelf.close()
        return {"texts": shelf.texts, "dtype": str(dtype), "experts": checkpoint.architecture.kinds, **origin(self.model, self.output)}


def origin(model: Path, product: Path) -> dict[str, Any]:
    """Where the checkpoint of an artifact lies, seen from the artifact, and its digest."""
    from moeir.artifacts import manifests

    return {"checkpoint": {"path": os.path.relpath(model.resolve(), product.resolve()), "digest": manifests.digest(model)}}


def _chunks(documents: Iterable["Text"]) -> Iterator[list["Text"]]:
    walked = iter(documents)
    while chunk := list(islice(walked, CHUNK)):
        yield chunk


def _before_the_last(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The last chunk that came to disk is encoded again, so that every writer has seen what it writes."""
    earlier = [entry for entry in entries if entry["texts"] < entries[-1]["texts"]]
    return earlier[-1] if earlier else {"texts": 0, "ids": 0, "experts": {}}


class Shelf:
    """The growing encodings of a corpus: ids and, for each expert, its arrays; a journal says what is whole."""

    def __init__(self, folder: Path, kinds: Iterable[str]) -> None:
        from moeir.artifacts.journals import GrowingLines, Journal
        from moeir.artifacts.making import RESUME
        from moeir.representations.base import Writer

        (folder / RESUME).mkdir(exist_ok=True)
        self._journal = Journal(folder / RESUME / "journal.jsonl")
        marks = _before_the_last(self._journal.entries)
        self.texts: int = marks["texts"]
        self._writers = {name: Writer(folder / name, marks["experts"].get(name)) for name in kinds}
        self._ids = GrowingLines(folder / "ids.txt", marks["ids"])

    def add(self, chunk: list["Text"], checkpoint: "OpenCheckpoint", max_tokens: int) -> None:
        """Encode a chunk and bring it to disk."""
        encoded = checkpoint.encode([text.content for text in chunk], "document", max_tokens=max_tokens)
        for name, writer in self._writers.items():
            writer.append(encoded[name])
        self._ids.append(text.id for text in chunk)
        self.texts += len(chunk)
        marks = {name: writer.flush() for name, writer in self._writers.items()}
        self._journal.write({"texts": self.texts, "ids": self._ids.flush(), "experts": marks})

    def close(self) -> None:
        """Settle the arrays' headers."""
        for writer in self._writers.values():
            writer.close()
        self._ids.close()
        self._journal.close()
