"""`moeir convert`: data files between the formats of tools, and checkpoints into the layouts of other libraries, without loss."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import ANYTHING, STREAM, Counts, Facts, Stage, checkpoint_reference

if TYPE_CHECKING:
    from moeir.formats.base import Format

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Convert(Stage):
    """Convert data or a checkpoint to the format of another tool. What the format cannot hold is an error, unless --lossy drops it."""

    default_split: ClassVar[str] = ""
    input: Path = input_field(ANYTHING, "File or folder to convert.")
    to: str = option("Format to write, with options.", room="formats")
    source_format: str | None = option(
        "Format of --input [default: detected from its first lines].", None, room="formats", aliases=("--from",)
    )
    corpus: Path | None = input_field("texts", "Documents, if --input has only their ids and --to needs their texts.", None)
    queries: Path | None = input_field(
        "texts", "Queries, if --input has only their ids and --to needs their texts.", None, aliases=("--topics",)
    )
    model: Path | None = input_field("checkpoint", "With vectors: their checkpoint, whose tokenizer has their terms.", None)
    lossy: bool = option("Drop what --to cannot hold, and log it.", False)
    output: Path = output_field("converted", "File or folder to write; - is stdout.", STREAM)

    def check(self) -> None:
        if self.input == STREAM and self.source_format is None:
            raise UsageError("--input -: a pipe can be read once; give its format with --from")

    def product(self) -> tuple[Path, str]:
        """The output path; encodings are an artifact that later stages read, all else is for other tools."""
        return self.output, "encodings" if variants.parse_spec(self.to).name == "encodings" else "converted"

    def makes_folder(self) -> bool:
        return bool(self._load_format(self.to).is_folder)

    @staticmethod
    def _load_format(spec: str) -> "Format":
        data_format: Format = variants.bind_variant("formats", spec)()
        return data_format

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['written'], 'record')}, from {counts['from']} to {counts['to']}"

    def next_command(self) -> list[object] | None:
        path, kind = self.product()
        return ["index", "--encodings", path, "--output", "idx"] if kind == "encodings" else None

    def work(self) -> Counts:
        from moeir.console import progress
        from moeir.formats.base import Conversion
        from moeir.formats.detection import detect_format
        from moeir.records import texts

        spec = self.source_format or detect_format(self.input)
        reader, writer = self._load_format(spec), self._load_format(self.to)
        if reader.kind != writer.kind:
            kind, names = reader.kind, [variant.name for variant in variants.list_variants("formats")]
            description = f"{self.input} is {spec}, {kind if kind.endswith('s') else f'a {kind}'}"
            compatible = ", ".join(name for name in names if self._load_format(name).kind == kind)
            raise UsageError(f"--to {self.to}: {description}, which becomes {compatible}")
        corpus, queries = (None if path is None else texts.read_texts_by_id(path, keep_empty=True) for path in (self.corpus, self.queries))
        conversion = Conversion(spec, self.to, corpus, queries, self.model, self.lossy, writer.keeps_fields)
        record_count = writer.write(progress(reader.read(self.input, conversion), "converting"), self.output, conversion)
        for loss, count in conversion.dropped_counts.items():
            log.warning("%s: lost, %s times: %s", self.input, f"{count:,}", loss)
        facts = {"from": spec, "to": self.to, "written": record_count, "lost": conversion.dropped_counts}
        if conversion.encodings_manifest and self.model is not None:
            digest = conversion.encodings_manifest.pop("digest")
            facts |= conversion.encodings_manifest | checkpoint_reference(self.model, self.output, digest)
        return facts
