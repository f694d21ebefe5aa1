"""What a converted vector is, whether of terms or dense, and where the terms get their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir.artifacts import manifests
from moeir.backbones.tokenizer import TextReader
from moeir.errors import ArtifactError


@dataclass(frozen=True)
class Vector:
    """One text's weights of terms, or its numbers; `contents` are its words where they are known."""

    id: str
    terms: Mapping[str, float] | None = None
    numbers: Sequence[float] | None = None
    contents: str = ""


def names_of(folder: Path) -> list[str]:
    """Every term of a checkpoint's vocabulary, by its number."""
    reader = TextReader(folder)
    return [reader.token(number) for number in range(reader.vocabulary)]


def checkpoint_of(encodings: Path, recorded: Mapping[str, str], model: Path | None) -> Path:
    """The checkpoint that encodings were made with, where it lay then or where it is now; ArtifactError if it is another."""
    folder = model or (encodings / recorded["path"]).resolve()
    if not folder.is_dir():
        raise ArtifactError(f"{encodings}: the checkpoint it was made with is not at {folder}; say where it is with --model")
    if manifests.digest_of(manifests.verify(folder, "checkpoint")["files"]) != recorded["digest"]:
        raise ArtifactError(f"{folder}: not the checkpoint {encodings} was made with; name that one with --model")
    return folder
