"""Encodings of documents on disk: opened as a mapping of experts, and written, with static pruning of terms and pooling of token vectors.

The writer is resumable: windows of texts are appended and flushed every few seconds; a kill loses only texts since the last flush.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests, shards
from moeir.artifacts.array_folder import MAKE_AGAIN
from moeir.artifacts.atomic_write import RESUME, make_folder
from moeir.artifacts.identity import read_unchanged
from moeir.artifacts.journals import AppendableText, JsonlJournal
from moeir.errors import ArtifactError, UsageError
from moeir.representations.base import ByExpert, Representation, RepresentationWriter, representation_class

OPTION_EXPERTS = {"terms": "sparse", "least_weight": "sparse", "pool_factor": "multivector"}  # in messages


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


@read_unchanged
def open_encodings(path: Path | str) -> OpenedEncodings:
    """Open the output of `moeir encode`, whole or in shards; ArtifactError if a file is missing or damaged."""
    folder = Path(path)
    shards.verify_encodings(folder)
    parts = [open_shard(part) for part in shards.shard_folders(folder)]
    ids = [name for shard_ids, _ in parts for name in shard_ids]
    representations = {}
    for expert in parts[0][1]:
        opened = [experts[expert] for _, experts in parts]
        representations[expert] = opened[0] if len(opened) == 1 else type(opened[0]).concatenate(opened)
    return OpenedEncodings(folder, ids, representations)


def open_shard(folder: Path) -> tuple[list[str], dict[str, Representation]]:
    """The ids and the representations by expert of encodings that are not sharded, or of one shard; ArtifactError if they disagree."""
    return read_ids(folder), {expert: open_expert(folder, expert) for expert in manifests.read_counts(folder)["experts"]}


def read_ids(folder: Path) -> list[str]:
    """The ids of a shard; ArtifactError if they are not as many as its texts."""
    ids = manifests.read_lines(folder / "ids.txt")
    _check_count(folder / "ids.txt", len(ids), manifests.read_counts(folder)["texts"])
    return ids


def open_expert(folder: Path, expert: str) -> Representation:
    """One expert's representation of the texts of a shard; ArtifactError if it is damaged."""
    counts = manifests.read_counts(folder)
    representation = representation_class(counts["experts"][expert]).open(folder / expert)
    _check_count(folder / expert, len(representation), counts["texts"])
    return representation


def _check_count(path: Path, actual: int, expected: int) -> None:
    if actual != expected:
        raise ArtifactError(f"{path}: damaged: expected {expected} texts by manifest.json, found {actual}; {MAKE_AGAIN}")


@dataclass(frozen=True)
class Pruning:
    """How documents are pruned before they are written; the defaults change nothing. Queries are never pruned."""

    terms: int | None = None
    least_weight: float | None = None
    pool_factor: int = 1

    def check_kinds(self, kinds: dict[str, str]) -> None:
        """UsageError for an option that applies to none of a checkpoint's experts (expert -> kind)."""
        for name, value in self.active_options().items():
            if not any(name in representation_class(kind).pruning_options for kind in kinds.values()):
                available = ", ".join(f"{expert} {kind}" for expert, kind in kinds.items())
                flag = f"--{name.replace('_', '-')} {value:g}"
                raise UsageError(f"{flag}: is for {OPTION_EXPERTS[name]} experts; the checkpoint has {available}")

    def active_options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {name: value for name, value in asdict(self).items() if value != getattr(NO_PRUNING, name)}

    def __call__(self, documents: Representation) -> Representation:
        """Documents of one expert, pruned as their kind allows."""
        return documents.prune(self.active_options())


NO_PRUNING = Pruning()

FLUSH_SECONDS = 5.0  # between two flushes


def _entry_to_resume(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The journal entry before the last: the last window is encoded again, so that every writer has appended at least once."""
    earlier = [entry for entry in entries if entry["texts"] < entries[-1]["texts"]]
    return earlier[-1] if earlier else {"texts": 0, "ids": 0, "experts": {}}


class ResumableEncodingWriter:
    """Appends ids and, for each expert, its arrays; a journal records what is complete on disk."""

    def __init__(self, folder: Path, kinds: Iterable[str], pruning: Pruning) -> None:
        make_folder(folder / RESUME)
        self._pruning, self._last_flush = pruning, time.monotonic()
        self._journal = JsonlJournal(folder / RESUME / "journal.jsonl")
        entry = _entry_to_resume(self._journal.entries)
        self.text_count: int = entry["texts"]
        self.truncation: dict[str, int] = entry.get("truncation", {})  # of the texts so far
        self._writers = {name: RepresentationWriter(folder / name, entry["experts"].get(name)) for name in kinds}
        self._ids = AppendableText(folder / "ids.txt", entry["ids"])

    def add(self, ids: list[str], representations: Mapping[str, Representation], truncation: Mapping[str, int] | None = None) -> None:
        """Append a window; `truncation` counts the truncated texts so far. Flush everything after `FLUSH_SECONDS`."""
        for name, writer in self._writers.items():
            writer.append(self._pruning(representations[name]), lambda text, name=name: f"document {ids[text]!r}: {name}")
        self._ids.append(ids)
        self.text_count += len(ids)
        self.truncation = dict(truncation or {})
        if time.monotonic() - self._last_flush < FLUSH_SECONDS:
            return
        row_counts = {name: writer.flush() for name, writer in self._writers.items()}
        self._journal.write({"texts": self.text_count, "ids": self._ids.flush(), "experts": row_counts, "truncation": self.truncation})
        self._last_flush = time.monotonic()

    def close(self) -> None:
        """Write the arrays' final headers."""
        for writer in self._writers.values():
            writer.close()
        self._ids.close()
        self._journal.close()
