"""`moeir convert`: data files between the formats of tools, and checkpoints into the layouts of other libraries, without loss."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir import variants
from moeir.errors import UsageError
from moeir.settings import option, product, source
from moeir.stages.base import STREAM, Counts, Stage

if TYPE_CHECKING:
    from moeir.formats.base import Format

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Convert(Stage):
    """Convert data or a checkpoint to the format of another tool. What the format cannot hold is an error, unless --lossy drops it."""

    input: Path = source("anything", "File or folder to convert.")
    to: str = option("Format to write, with options; see: moeir variants formats.")
    source_format: str | None = option("Format of --input [default: detected from its first lines].", None, names=("--from",))
    corpus: Path | None = source("texts", "Documents, if --input has only their ids and --to needs their texts.", None)
    queries: Path | None = source("texts", "Queries, if --input has only their ids and --to needs their texts.", None, names=("--topics",))
    model: Path | None = source("checkpoint", "Checkpoint whose tokenizer names the terms of vectors.", None)
    lossy: bool = option("Drop what --to cannot hold, and log it.", False)
    output: Path = product("converted", "File or folder to write; - is stdout.", STREAM)

    def check(self) -> None:
        variants.resolve("formats", self.to)
        if self.source_format is not None:
            variants.resolve("formats", self.source_format)
        if self.input == STREAM and self.source_format is None:
            raise UsageError("--input -: a pipe can be read once; give its format with --from")
        if self.makes_folder() and self.output == STREAM:
            raise UsageError(f"--to {self.to}: is a folder; name one with --output")

    def product(self) -> tuple[Path, str]:
        """The output path; encodings are an artifact that later stages read, all else is for other tools."""
        return self.output, "encodings" if variants.parse(self.to).name == "encodings" else "converted"

    def makes_folder(self) -> bool:
        return bool(self._format(self.to).folder)

    @staticmethod
    def _format(spec: str) -> "Format":
        data_format: Format = variants.bind("formats", spec)()
        return data_format

    def work(self) -> Counts:
        from moeir.formats.base import Conversion
        from moeir.formats.detection import detected
        from moeir.records import texts

        spec = self.source_format or detected(self.input)
        reader, writer = self._format(spec), self._format(self.to)
        if reader.kind != writer.kind:
            description = f"{self.input} is {spec}, {_article(reader.kind)}"
            raise UsageError(f"--to {self.to}: {description}, which becomes {', '.join(self._kin(reader.kind))}")
        corpus, queries = (None if path is None else texts.read_all(path, keep_empty=True) for path in (self.corpus, self.queries))
        conversion = Conversion(spec, self.to, corpus, queries, self.model, self.lossy)
        record_count = writer.write(_counted(reader.read(self.input, conversion)), self.output, conversion)
        for loss, count in conversion.lost.items():
            log.warning("%s: lost, %s times: %s", self.input, f"{count:,}", loss)
        facts = {"from": spec, "to": self.to, "written": record_count, "lost": conversion.lost}
        return facts | (self._encodings(conversion.facts) if conversion.facts else {})

    def _encodings(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The manifest facts of encodings, as encode writes them: path and digest of the checkpoint."""
        assert self.model is not None
        checkpoint_path = os.path.relpath(self.model.resolve(), self.output.resolve())
        return {name: value for name, value in facts.items() if name != "digest"} | {
            "checkpoint": {"path": checkpoint_path, "digest": facts["digest"]}
        }

    def _kin(self, kind: str) -> Iterator[str]:
        return (variant.name for variant in variants.listed("formats") if self._format(variant.name).kind == kind)


def _counted(items: Iterator[Any]) -> Iterator[Any]:
    from moeir.console import progress

    return progress(items, "converting")


def _article(kind: str) -> str:
    return kind if kind.endswith("s") else f"a {kind}"
