"""Encodings in shards: a folder with one folder per shard, such as `3-of-8`, each an artifact with its own manifest and lock."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from moeir.artifacts import manifests
from moeir.artifacts.unfinished import WorkFolder, describe_unfinished, maker
from moeir.errors import ArtifactError, UsageError

MAX_SHARDS = 10_000
FOLDER_PATTERN = re.compile(r"(0|[1-9][0-9]*)-of-([1-9][0-9]*)")


class Shard(NamedTuple):
    """Shard `number`, counted from 0, of `total`."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse the value of --shard.

        >>> Shard.parse("3/8").folder_name, str(Shard(3, 8))
        ('3-of-8', '3/8')
        """
        match = re.fullmatch("([0-9]{1,6})/([0-9]{1,6})", text)
        if match is None or not int(match[1]) < int(match[2]) <= MAX_SHARDS:
            raise UsageError(f"--shard {text}: expected I/N, the I-th of N parts counted from 0, such as 0/8 … 7/8")
        return cls(int(match[1]), int(match[2]))

    @property
    def folder_name(self) -> str:
        """The name of the shard's folder."""
        return f"{self.number}-of-{self.total}"

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"

    def row_range(self, count: int, block: int) -> tuple[int, int]:
        """The rows of the shard, first and last + 1, among `count` rows: whole blocks, so that batches are the same in any shards.

        >>> [Shard(number, 2).row_range(10, block=4) for number in (0, 1)]
        [(0, 4), (4, 10)]
        """
        blocks = -(-count // block)
        first, last = (min(number * blocks // self.total * block, count) for number in (self.number, self.number + 1))
        return first, last


def finished_shards(folder: Path) -> dict[Shard, Path]:
    """The finished shards in a folder, in order; empty for unsharded encodings."""
    if manifests.manifest_path(folder).is_file() or not folder.is_dir():
        return {}
    matches = ((FOLDER_PATTERN.fullmatch(path.name), path) for path in folder.iterdir() if (path / manifests.MANIFEST).is_file())
    shards = {Shard(int(match[1]), int(match[2])): path for match, path in matches if match}
    if wrong := next((path for shard, path in shards.items() if not shard.number < shard.total <= MAX_SHARDS), None):
        raise ArtifactError(f"{wrong}: expected the name of a shard, I-of-N with I below N, and N at most {MAX_SHARDS:,}; move it away")
    return dict(sorted(shards.items()))


def shard_folders(folder: Path) -> list[Path]:
    """The folders of encodings in corpus order: all shards, or the folder itself; ArtifactError if a shard is missing, or being written."""
    shards = finished_shards(folder)
    unfinished = () if manifests.manifest_path(folder).is_file() else map(WorkFolder.from_any, sorted(folder.glob(".*-of-*.partial")))
    if written := next((work.path for work in unfinished if work.is_locked()), None):
        raise ArtifactError(f"{written}: {describe_unfinished(written)}")
    if not shards:
        return [folder]
    first = next(iter(shards))
    if other := next((shard for shard in shards if shard.total != first.total), None):
        raise ArtifactError(f"{folder}: has shards of two sets, {first.folder_name} and {other.folder_name}; keep only one set")
    manifest = manifests.read_manifest(shards[first])
    if lacking := missing_shards(shards):
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        command = _encode_command(manifest, lacking[0])
        raise ArtifactError(f"{folder}: shard {lacking[0]}{more} is missing or unfinished; {command} makes it")
    for shard, path in shards.items():
        if changed := manifests.diff_records(manifest, manifests.read_manifest(path)) - {"shard"}:
            reason = f"made with other settings or sources ({', '.join(sorted(changed))}) than {shards[first].name}"
            raise ArtifactError(f"{path}: {reason}; {_encode_command(manifest, shard)} --force makes it like that")
    return list(shards.values())


def missing_shards(shards: Mapping[Shard, Path]) -> list[Shard]:
    """The shards that are missing from a set."""
    of = next(iter(shards)).total
    return [shard for number in range(of) if (shard := Shard(number, of)) not in shards]


def verify_encodings(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Verify encodings, sharded or not: their files and checksums; ArtifactError if any is missing or damaged."""
    verified = ((part, manifests.verify_artifact(part, "encodings")["files"]) for part in shard_folders(folder))
    return {str((part / name).relative_to(folder)): facts for part, files in verified for name, facts in files.items()}


def _encode_command(manifest: Mapping[str, Any], shard: Shard) -> str:
    """The command that makes a shard beside one with this manifest."""
    return f"the same moeir {maker(manifest)} command" + ("" if "hub" in manifest else f" with --shard {shard}")
