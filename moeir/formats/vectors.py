"""moeir's encodings, one expert at a time; a converted vector, sparse or dense, and the checkpoint that names its terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir.artifacts import manifests
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import ArtifactError


@dataclass(frozen=True)
class Vector:
    """One text's term weights (sparse) or numbers (dense); `contents` is its text where known."""

    id: str
    terms: Mapping[str, float] | None = None
    numbers: Sequence[float] | None = None
    contents: str = ""


def load_terms(folder: Path) -> list[str]:
    """The vocabulary of a checkpoint: terms by number."""
    reader = TextTokenizer(folder)
    return [reader.id_to_token(number) for number in range(reader.vocabulary_size)]


def find_checkpoint(encodings: Path, recorded: Mapping[str, str], model: Path | None) -> Path:
    """The checkpoint of the encodings, at `model` or at the recorded path; ArtifactError if its digest differs."""
    folder = model or (encodings / recorded["path"]).resolve()
    if not folder.is_dir():
        raise ArtifactError(f"{encodings}: the checkpoint it was made with is not at {folder}; name its folder with --model")
    if manifests.digest_files(manifests.verify_artifact(folder, "checkpoint")["files"]) != recorded["digest"]:
        raise ArtifactError(f"{folder}: not the checkpoint {encodings} was made with; name that one with --model")
    return folder
