"""Encodings on disk, opened: the ids of the texts and each expert's representation of them."""

from dataclasses import dataclass
from pathlib import Path

from moeir.artifacts import manifests, shards
from moeir.representations.base import ByExpert, Representation, representation_class


@dataclass(frozen=True, eq=False, repr=False)
class OpenedEncodings(ByExpert):
    """A mapping of experts to their representations of B texts, whose ids are `ids` [B]; memory-mapped unless there are several shards."""

    path: Path
    ids: list[str]
    representations: dict[str, Representation]

    def __repr__(self) -> str:
        return f"OpenedEncodings({self.path}: {self.summary})"

    def __fspath__(self) -> str:
        return str(self.path)


def open_encodings(path: Path | str) -> OpenedEncodings:
    """Open the output of `moeir encode`, whole or in shards; ArtifactError if a file is missing or damaged."""
    folder = Path(path)
    shards.verify_encodings(folder)
    parts = shards.shard_folders(folder)
    ids = [name for part in parts for name in manifests.read_lines(part / "ids.txt")]
    representations = {}
    for expert, kind in manifests.read_manifest(parts[0])["counts"]["experts"].items():
        opened = [representation_class(kind).open(part / expert) for part in parts]
        representations[expert] = opened[0] if len(opened) == 1 else type(opened[0]).concatenate(opened)
    return OpenedEncodings(folder, ids, representations)
