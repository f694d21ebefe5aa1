"""`moeir pull`: a product from the Hugging Face Hub, under its name when every checksum agrees."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import atomic_write, manifests, shards
from moeir.console import format_count
from moeir.errors import ArtifactError, UsageError
from moeir.settings import input_field, option, output_field
from moeir.stages.base import Stage, checkpoint_reference

if TYPE_CHECKING:
    from moeir.hub import Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pull(Stage):
    """Download what moeir push has uploaded, and verify every checksum. The same command continues an interrupted download."""

    repo: str = option("Repository on the Hub, USER/NAME.")
    revision: str | None = option("Branch, tag or commit [default: the main branch].", None)
    model: Path | None = input_field("checkpoint", "The checkpoint of encodings or an index, which later stages then find.", None)
    output: Path = output_field("pulled", "Folder to write.")

    def product(self) -> tuple[Path, str]:
        """The output, with its kind when it is there."""
        with suppress(ArtifactError):  # it is not there, or damaged, and --force replaces it
            return self.output, str(manifests.read_manifest(next(iter(shards.finished_shards(self.output).values()), self.output))["kind"])
        return self.output, "pulled"

    def find_current(self, provenance: Mapping[str, Any], *, force: bool) -> set[str]:
        if not shards.finished_shards(self.output):
            atomic_write.check_overwrite(self.output, {}, force=True)  # of what no pull has made
        return set() if force else set(self.outputs())  # which shards there are, and what has made them, only the Hub says

    def describe_existing(self, *, is_current: bool) -> str:
        return "exists; only the Hub knows whether it is up to date" if is_current else super().describe_existing(is_current=False)

    def makes_folder(self) -> bool:
        return True

    def execute(self, *, force: bool) -> None:
        """Download the product, or shard by shard."""
        from moeir import hub

        snapshot = hub.find_snapshot(self.repo, self.revision)
        products = snapshot.read_manifests()
        if other := {path.name for path in shards.finished_shards(self.output).values()} - products.keys():
            raise UsageError(f"--output {self.output}: has {min(other)}, which is no part of {self.repo}; name another folder")
        for name, manifest in products.items():
            self._pull(snapshot, Path(name), manifest, force=force)

    def _pull(self, snapshot: "Snapshot", folder: Path, manifest: dict[str, Any], *, force: bool) -> None:
        path, files, recorded, reference = self.output / folder, manifest["files"], manifest["counts"].get("checkpoint"), {}
        if self.model is not None:
            if recorded is None:
                raise UsageError(f"--model {self.model}: {self.repo} has no checkpoint that it was made with; leave it out")
            reference = checkpoint_reference(manifests.find_checkpoint(path, recorded, self.model), path, recorded)
        record = {name: manifest[name] for name in ("stage", "settings", "sources")} | {"hub": f"{self.repo}@{snapshot.commit}"}
        if not force and manifests.is_up_to_date(path, record):
            manifests.verify_artifact(path, manifest["kind"])
            atomic_write.clean_leftovers(path, record)
            log.info("%s: already pulled, %s; --force downloads it again", path, record["hub"])
            return
        atomic_write.check_overwrite(path, record, force=force)
        with atomic_write.atomic_output(path, manifest["kind"], record, force=force, folder=True) as (partial_path, counts):
            downloads = atomic_write.resume_path(partial_path) / "hub"
            snapshot.download({(folder / name).as_posix(): entry["bytes"] for name, entry in files.items()}, downloads)
            if damaged := manifests.first_mismatch({downloads / folder / name: entry for name, entry in files.items()}):
                damaged.unlink()
                problem = f"{damaged.relative_to(downloads)} is not the file of its manifest: damaged on the way, or on the Hub"
                raise ArtifactError(f"{self.repo}: {problem}; run the same command again to download it again")
            for name in files:
                atomic_write.link_file(downloads / folder / name, partial_path / name)
            counts.update(manifest["counts"] | reference)
        log.info("pulled %s: %s of %s, every checksum verified", path, format_count(len(files), "file"), record["hub"])
