"""`moeir encode`: one pass over a corpus, or a shard of it, one representation for each expert, continued where it stopped.

A corpus is encoded in windows of so many texts; within one, batches are of like length. A shard is a run of whole windows: whether in
shards or at once, killed or not, the same batches are computed. The next windows are read, and the last is written, meanwhile.
"""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import manifests, shards
from moeir.errors import UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage

if TYPE_CHECKING:
    from moeir.architectures.base import Encoded
    from moeir.architectures.checkpoint import OpenCheckpoint
    from moeir.records.texts import Text
    from moeir.representations.shortening import Shortening

CHUNK = 256  # texts of a window
SECONDS = 5.0  # between two times that everything is brought to disk
Read = tuple[list[list[int]], list[int] | None]


@dataclass(frozen=True, kw_only=True)
class Encode(Stage):
    """Encode a corpus with every expert of a checkpoint, in one pass."""

    model: Path = source("checkpoint", "Checkpoint to encode with.", names=("--encoder",))
    corpus: Path = source("texts", "Documents.")
    shard: str | None = option("I/N: the I-th of N parts, counted from 0, into a folder of --output; index takes them all.", None)
    terms: int | None = option("Sparse experts: keep the N heaviest terms of a document [default: all].", None, names=("--top-k",))
    least_weight: float | None = option("Sparse experts: keep terms of at least this weight [default: all].", None, names=("--threshold",))
    pool_factor: int = option("Multivector experts: so many token vectors become one, by likeness.", 1, names=("--token-pooling",))
    max_tokens: int = option("Tokens computed at once; lower it if memory runs out.", 16384, affects_result=False)
    dtype: str = option("auto, float32 or bfloat16.", "auto")
    device: str = option("auto, cpu or cuda.", "auto", affects_result=False)
    keep_empty: bool = option("Accept documents without text.", False)
    output: Path = product("encodings", "Folder to write.")

    def check(self) -> None:
        if self.terms is not None and self.terms < 1:
            raise UsageError(f"--terms {self.terms}: expected at least 1")
        if self.least_weight is not None and not 0 < self.least_weight < float("inf"):
            raise UsageError(f"--least-weight {self.least_weight:g}: expected more than 0")
        if self.pool_factor < 1:
            raise UsageError(f"--pool-factor {self.pool_factor}: expected at least 1 (no pooling)")
        self._check_output()

    def _check_output(self) -> None:
        if self.output == STREAM:
            raise UsageError("--output -: encodings are a folder; name one")
        held = shards.finished(self.output)
        if self.shard is None:
            if held:
                first = next(iter(held)).folder
                raise UsageError(f"--output {self.output}: holds shards, {first} the first; say which with --shard, or write elsewhere")
            return
        shard = shards.Shard.parsed(self.shard)
        if self.corpus == STREAM:
            raise UsageError("--shard: needs a corpus whose texts can be counted before they are read; --corpus - is a pipe")
        if manifests.manifest_path(self.output).is_file():
            raise UsageError(f"--output {self.output}: is whole, not a folder for shards; write elsewhere")
        if other := next((one for one in held if one.of != shard.of), None):
            raise UsageError(f"--shard {shard}: {self.output} holds shards of {other.of}; move those away or write elsewhere")

    def product(self) -> tuple[Path, str]:
        """The folder of all encodings, or that of the shard in it."""
        return (self.output if self.shard is None else self.output / shards.Shard.parsed(self.shard).folder), "encodings"

    def work(self) -> Counts:
        from moeir.architectures.checkpoint import open_checkpoint
        from moeir.backbones.ahead import behind, walked_ahead
        from moeir.backbones.precision import autocast, device_for, dtype_for
        from moeir.console import meter
        from moeir.records import texts
        from moeir.representations.shortening import Shortening

        device = device_for(self.device)
        dtype = dtype_for(self.dtype, device)
        checkpoint = open_checkpoint(self.model, device)
        shortening = Shortening(self.terms, self.least_weight, self.pool_factor)
        shortening.check_kinds(checkpoint.architecture.kinds)
        first, last = self._range()
        shelf = Shelf(self.output, checkpoint.architecture.kinds, shortening)
        documents = islice(texts.read(self.corpus, keep_empty=self.keep_empty), first, last)
        with meter("encoding", None if last is None else last - first) as counter, autocast(dtype, device), behind() as later:
            for _ in islice(documents, shelf.texts):
                counter.advance()
            for window, read in walked_ahead(_read(documents, checkpoint)):
                encoded = checkpoint.encoded(read, "document", max_tokens=self.max_tokens)
                later(partial(shelf.add, [text.id for text in window], encoded))
                del encoded  # memory is for the next
                counter.advance(len(window))
        shelf.close()
        part = {} if self.shard is None else {"corpus": str(self.corpus)}
        kinds, short = checkpoint.architecture.kinds, {"shortened": shortening.facts()} if shortening.facts() else {}
        return {"texts": shelf.texts, "dtype": str(dtype), "experts": kinds, **short, **part, **origin(self.model, self.output)}

    def _range(self) -> tuple[int, int | None]:
        """The texts of the shard, first and behind the last; the whole corpus without one."""
        if self.shard is None:
            return 0, None
        from moeir.records import texts

        shard, count = shards.Shard.parsed(self.shard), sum(1 for _ in texts.read(self.corpus, keep_empty=self.keep_empty))
        windows = -(-count // CHUNK)
        if windows < shard.of:
            found = f"{self.corpus} has {count:,} texts, {windows} windows of {CHUNK:,}"
            raise UsageError(f"--shard {shard}: {found}; expected at most {windows} shards")
        first, last = (min(place * windows // shard.of * CHUNK, count) for place in (shard.number, shard.number + 1))
        return first, last


def origin(model: Path, product: Path) -> dict[str, Any]:
    """Where the checkpoint of an artifact lies, seen from the artifact, and its digest."""
    return {"checkpoint": {"path": os.path.relpath(model.resolve(), product.resolve()), "digest": manifests.digest(model)}}


def _read(documents: Iterable["Text"], checkpoint: "OpenCheckpoint") -> Iterator[tuple[list["Text"], Read]]:
    """Windows of texts, each with its tokens."""
    walked = iter(documents)
    while window := list(islice(walked, CHUNK)):
        yield window, checkpoint.ids([text.content for text in window], "document")


def _before_the_last(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """What came to disk last is encoded again, so that every writer has seen what it writes."""
    earlier = [entry for entry in entries if entry["texts"] < entries[-1]["texts"]]
    return earlier[-1] if earlier else {"texts": 0, "ids": 0, "experts": {}}


class Shelf:
    """The growing encodings of a corpus: ids and, for each expert, its arrays; a journal says what is whole."""

    def __init__(self, folder: Path, kinds: Iterable[str], shortening: "Shortening") -> None:
        from moeir.artifacts.journals import GrowingLines, Journal
        from moeir.artifacts.making import RESUME
        from moeir.representations.base import Writer

        (folder / RESUME).mkdir(exist_ok=True)
        self._shortening, self._kept = shortening, time.monotonic()
        self._journal = Journal(folder / RESUME / "journal.jsonl")
        marks = _before_the_last(self._journal.entries)
        self.texts: int = marks["texts"]
        self._writers = {name: Writer(folder / name, marks["experts"].get(name)) for name in kinds}
        self._ids = GrowingLines(folder / "ids.txt", marks["ids"])

    def add(self, ids: list[str], encoded: "Encoded") -> None:
        """Write a window, and bring what is written to disk if that was not done just before."""
        for name, writer in self._writers.items():
            writer.append(self._shortening(encoded[name]))
        self._ids.append(ids)
        self.texts += len(ids)
        if time.monotonic() - self._kept < SECONDS:
            return
        marks = {name: writer.flush() for name, writer in self._writers.items()}
        self._journal.write({"texts": self.texts, "ids": self._ids.flush(), "experts": marks})
        self._kept = time.monotonic()

    def close(self) -> None:
        """Settle the arrays' headers."""
        for writer in self._writers.values():
            writer.close()
        self._ids.close()
        self._journal.close()
