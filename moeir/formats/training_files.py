"""Training examples in any format that `convert` reads, as `--train` takes them."""

import logging
from collections.abc import Iterator
from pathlib import Path

from moeir import variants
from moeir.errors import DataError
from moeir.formats.base import Conversion, Format
from moeir.formats.detection import detect_examples, detect_format
from moeir.records import examples, remote_rows
from moeir.records.examples import Example

OWN_FORMATS = ("examples", "tevatron", "tevatron-ids", "dpr")  # which `read_examples` reads
log = logging.getLogger(__name__)


def read_training_examples(path: Path, *, provenance: bool = False) -> Iterator[Example]:
    """The examples of a file, `hf:NAME` or a folder, in the format of its first lines; of a pipe those of OWN_FORMATS.

    A text without an id gets its digest as id, and lines of the same query are merged. Fields that training has no use for are dropped;
    what else is left out is logged.
    """
    name = _detect(path)
    if name in OWN_FORMATS:
        yield from examples.read_examples(path, provenance=provenance)
        return
    reader: Format | None = None if name is None else variants.bind_variant("formats", name)()
    if name is None or reader is None or reader.kind != "examples":
        problem = "format not recognised" if name is None else f"is {name}, not training examples"
        advice = f"moeir convert --input {path} --from FORMAT --to examples reads a format by its name (moeir variants formats)"
        raise DataError(f"{path}: {problem}; {advice}")
    conversion, is_empty = Conversion(name, "examples", lossy=True), True
    for example in reader.read(path, conversion):
        is_empty = False
        yield example
    if is_empty:
        raise DataError(f"{path}: holds no example")
    for loss, times in conversion.dropped_counts.items():
        if not loss.startswith("field "):
            log.warning("%s: read as %s, which leaves out, %s times: %s", path, name, f"{times:,}", loss)


def is_own_file(path: Path) -> bool:
    """Whether a source is text in one of OWN_FORMATS."""
    return _detect(path) in OWN_FORMATS and not remote_rows.is_columnar(path)


def _detect(path: Path) -> str | None:
    if str(path) == "-" or (path.exists() and not path.is_file() and not path.is_dir()):  # a pipe, which can be read once
        return "examples"
    return detect_format(path) if path.is_dir() else detect_examples(path)
