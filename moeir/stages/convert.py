"""`moeir convert`: data files between the formats of tools, and checkpoints into the layouts of other libraries, without loss."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import variants
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import ANYTHING, MAX_SEED, STREAM, Counts, Facts, Stage, is_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moeir.formats.base import Conversion, Format

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Convert(Stage):
    """Convert data or a checkpoint to the format of another tool, whole, divided into splits or cut into passages. What the format cannot
    hold is an error, unless --lossy drops it."""

    default_split: ClassVar[str] = ""
    input: Path = input_field(ANYTHING, "File or folder to convert.")
    to: str | None = option("Format to write, with options [default if --input is divided or cut: its own].", None, package="formats")
    source_format: str | None = option(
        "Format of --input [default: detected from its first lines].", None, package="formats", aliases=("--from",)
    )
    corpus: Path | None = input_field("texts", "Documents, if --input has only their ids and --to needs their texts.", None)
    queries: Path | None = input_field(
        "texts", "Queries, if --input has only their ids and --to needs their texts.", None, aliases=("--topics",)
    )
    split: tuple[str, ...] = option(
        "NAME=SHARE, e.g. dev=0.1,test=0.2: divide the queries of a collection's split train (or its only one); queries with equal texts "
        "stay together; the rest stays in the split.",
        (),
        group="Splits",
    )
    seed: int = option("Seed of the splits.", 42, minimum=0, maximum=MAX_SEED, group="Splits")
    passages: int | None = option(
        "Cut documents at sentences into passages ID#0, ID#1, … of at most N tokens, title included.", None, minimum=1, group="Passages"
    )
    stride: int | None = option(
        "Tokens of text from one full passage to the next [default: no overlap].", None, minimum=1, needs=("passages",), group="Passages"
    )
    model: Path | None = input_field(
        "checkpoint", "Checkpoint that is to encode the passages: tokens are as it reads them [default: words].", None, needs=("passages",)
    )
    lossy: bool = option("Drop what --to cannot hold, and log it.", False)
    output: Path = output_field("converted", "File or folder to write; - is stdout.", STREAM)

    def check(self) -> None:
        if is_stream(self.input) and self.source_format is None:
            raise UsageError(f"--input {self.input}: a pipe can be read once; give its format with --from")
        if self.to is None and self.passages is None and not self.split:
            raise UsageError("convert needs --to, or --split or --passages")
        if self.passages is not None and (self.stride or 0) > self.passages:
            raise UsageError(f"--stride {self.stride}: text between passages of {self.passages} would be lost; expected at most --passages")
        if self.split:
            from moeir.formats.subsets import parse_shares

            parse_shares(self.split)

    def makes_folder(self) -> bool:
        return self._load_format(self.to or self._source_format()).is_folder

    def _source_format(self) -> str:
        from moeir.formats.detection import detect_format

        return self.source_format or detect_format(self.input)

    @staticmethod
    def _load_format(spec: str) -> "Format":
        data_format: Format = variants.bind_variant("formats", spec)()
        return data_format

    def summary(self, counts: Facts) -> str:
        return f"{format_count(counts['written'], 'record')}, from {counts['from']} to {counts['to']}"

    def prepare(self) -> "tuple[str, str, Format, Format]":
        """The formats to read and to write; UsageError if they hold different things."""
        spec = self._source_format()
        to = self.to or spec
        reader, writer = self._load_format(spec), self._load_format(to)
        if reader.kind != writer.kind:
            kind, names = reader.kind, [variant.name for variant in variants.list_variants("formats")]
            description = f"{self.input} is {spec}, {kind if kind.endswith('s') else f'a {kind}'}"
            compatible = ", ".join(name for name in names if self._load_format(name).kind == kind)
            parts = "; a collection is a folder of corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv" if writer.kind == "collection" else ""
            raise UsageError(f"--to {to}: {description}, which becomes {compatible}{parts}")
        return spec, to, reader, writer

    def work(self) -> Counts:
        from moeir.console import progress
        from moeir.formats.base import Conversion
        from moeir.records import texts

        spec, to, reader, writer = self.prepare()
        corpus, queries = (None if path is None else texts.read_texts_by_id(path, keep_empty=True) for path in (self.corpus, self.queries))
        conversion = Conversion(spec, to, corpus, queries, self.lossy)
        items = progress(reader.read(self.input, conversion), "converting")
        record_count = self._write(self._divide(items, reader.kind) if self.split else items, writer, conversion)
        for loss, count in conversion.dropped_counts.items():
            log.warning("%s: lost, %s times: %s", self.input, f"{count:,}", loss)
        return {"from": spec, "to": to, "written": record_count, "lost": conversion.dropped_counts}

    def _write(self, items: "Iterator[Any]", writer: "Format", conversion: "Conversion") -> int:
        """Write items, with --passages those of documents, and return the number of records."""
        if self.passages is None:
            return writer.write(items, self.output, conversion)
        from moeir.records.passages import cut_documents

        if writer.kind not in ("texts", "collection"):
            raise UsageError(f"--passages: expected documents or a collection, found {writer.kind}")
        cut = partial(cut_documents, max_tokens=self.passages, stride=self.stride)
        if self.model is not None:
            from moeir.architectures.checkpoint import open_checkpoint

            checkpoint = open_checkpoint(self.model)
            checkpoint.check_is_bi_encoder(self.model)
            reading, special = checkpoint.input_config, checkpoint.tokenizer.special_tokens
            encode = checkpoint.tokenizer.encode_with_offsets
            if self.passages > reading.document_length:
                advice = f"expected at most {reading.document_length}, which is what {self.model} reads of a document"
                raise UsageError(f"--passages {self.passages}: {advice}")
            room = self.passages - special.leading - special.trailing - int(checkpoint.architecture.markers)
            cut = partial(cut, max_tokens=room, find_tokens=lambda texts: [one[1] for one in encode(texts)], prefix=reading.document_prefix)
        passages = cut(items) if writer.kind == "texts" else (replace(item, corpus=cut(item.corpus)) for item in items)
        count = writer.write(passages, self.output, conversion)
        log.info("passages ID#NUMBER: judgements stay those of documents, which search --collapse max gives back")
        return count

    def _divide(self, items: "Iterator[Any]", kind: str) -> "Iterator[Any]":
        """The only item, a collection, with the splits that --split names."""
        from moeir.formats import subsets

        if kind != "collection":
            raise UsageError("--split: is for a folder of documents, queries and judgements")
        collection = subsets.split_collection(next(items), subsets.parse_shares(self.split), self.seed)
        log.info("queries: %s", ", ".join(f"{name} {len(grades):,}" for name, grades in collection.qrels.items()))
        yield collection
