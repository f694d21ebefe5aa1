"""moeir's own checkpoints, the source of other libraries' layouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.artifacts import manifests
from moeir.errors import UsageError
from moeir.formats.base import Conversion, Format


class Checkpoint(Format):
    """A moeir checkpoint, read only; `moeir init` makes one from another library's weights."""

    kind: ClassVar[str] = "checkpoint"
    is_folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[RetrievalModel]:
        manifests.verify_artifact(path, "checkpoint")
        yield open_checkpoint(path)

    def write(self, items: Iterator[RetrievalModel], path: Path, conversion: Conversion) -> int:
        raise UsageError("--to checkpoint: moeir init --model FOLDER --arch … makes a checkpoint from the weights of other libraries")
