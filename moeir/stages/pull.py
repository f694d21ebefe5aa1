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
from moeir.stages.base import FILE_SUFFIXES, Stage, checkpoint_reference

if TYPE_CHECKING:
    from moeir.hub import Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pull(Stage):
    """Download what moeir push has uploaded, and verify every checksum; with --verify, compare what a checkpoint or an index computes, too.
    The same command continues an interrupted download."""

    repo: str = option("Repository on the Hub, USER/NAME.")
    revision: str | None = option("Branch, tag or commit [default: the main branch].", None)
    verify: bool = option("Compute the scores of the sample again, and compare them with those of the upload.", False)
    model: Path | None = input_field("checkpoint", "The checkpoint of encodings or an index, which later stages then find.", None)
    output: Path = output_field("pulled", "Folder to write; of a single run a file such as run.trec, too.")

    def product(self) -> tuple[Path, str]:
        """The output, with its kind when it is there."""
        paths = [path for path in (*shards.finished_shards(self.output).values(), self.output) if manifests.manifest_path(path).is_file()]
        with suppress(ArtifactError):  # a damaged one, which --force replaces
            return self.output, str(manifests.read_manifest(paths[0])["kind"]) if paths else "pulled"
        return self.output, "pulled"

    def find_current(self, provenance: Mapping[str, Any], *, force: bool) -> set[str]:
        return set() if force else set(self.outputs())  # which shards there are, and what has made them, only the Hub says

    def makes_folder(self) -> bool:
        return not self.output.name.endswith(FILE_SUFFIXES)

    def execute(self, *, force: bool) -> None:
        """Download the product, or shard by shard, and verify it."""
        from moeir import hub

        snapshot = hub.find_snapshot(self.repo, self.revision)
        products = snapshot.read_manifests()
        if other := {path.name for path in shards.finished_shards(self.output).values()} - products.keys():
            raise UsageError(f"--output {self.output}: has {min(other)}, which is no part of {self.repo}; name another folder")
        for name, manifest in products.items():
            self._pull(snapshot, Path(name), manifest, force=force)
        if self.verify:
            self._verify(snapshot, next(iter(products.values()))["kind"])

    def _pull(self, snapshot: "Snapshot", folder: Path, manifest: dict[str, Any], *, force: bool) -> None:
        path, files, recorded = self.output / folder, manifest["files"], manifest["counts"].get("checkpoint")
        if not self.makes_folder() and (manifest["kind"] != "run" or [Path(name).suffix for name in files] != [path.suffix]):
            raise UsageError(
                f"--output {path}: {self.repo} has {', '.join(sorted(files))}; name a folder, or a file with the suffix of a run"
            )
        reference = {}
        if self.model is not None:
            if recorded is None:
                raise UsageError(f"--model {self.model}: {self.repo} has no checkpoint that it was made with; leave it out")
            reference = checkpoint_reference(manifests.find_checkpoint(path, recorded, self.model), path, recorded)
        record = {name: manifest[name] for name in ("stage", "settings", "sources")} | {"hub": f"{self.repo}@{snapshot.commit}"}
        if path.exists() and not force and manifests.is_up_to_date(path, record):
            if path.is_dir():
                manifests.verify_artifact(path, manifest["kind"])
            atomic_write.clean_leftovers(path, record)
            log.info("%s: already pulled, %s; --force downloads it again", path, record["hub"])
            return
        atomic_write.check_overwrite(path, record, force=force)
        with atomic_write.atomic_output(path, manifest["kind"], record, force=force, folder=self.makes_folder()) as (partial_path, counts):
            downloads = atomic_write.resume_path(partial_path) / "hub"
            snapshot.download({(folder / name).as_posix(): entry["bytes"] for name, entry in files.items()}, downloads)
            sources = {downloads / folder / name: entry for name, entry in files.items()}
            if damaged := [file for file, entry in sources.items() if manifests.first_mismatch({file: entry})]:
                for file in damaged:
                    file.unlink()
                problem = f"{damaged[0].relative_to(downloads)} is not the file of its manifest: damaged on the way, or on the Hub"
                raise ArtifactError(f"{self.repo}: {problem}; run the same command again to download it again")
            for name, file in zip(files, sources, strict=True):
                atomic_write.link_file(file, partial_path / name if self.makes_folder() else partial_path)
            counts.update(manifest["counts"] | reference)
        log.info("pulled %s: %s of %s, every checksum verified", path, format_count(len(files), "file"), record["hub"])

    def _verify(self, snapshot: "Snapshot", kind: str) -> None:
        """Compare what the product computes with what it computed where it was uploaded, and log the largest differences."""
        from moeir import hub

        names = sorted(name for name in snapshot.files if name.startswith(f"{hub.VERIFICATION}/"))
        if not names or kind not in ("checkpoint", "index"):
            raise ArtifactError(f"{self.repo}: has no sample to verify; moeir push publishes one of a checkpoint or an index with --corpus")
        with snapshot.temporary_folder() as folder:
            snapshot.download(dict.fromkeys(names, hub.MAX_BYTES), folder)
            differences = hub.compare_sample(self.output, kind, folder / hub.VERIFICATION, self.model)
        by_expert = ", ".join(f"{name} {value:.2g}" for name, value in differences.items())
        log.info("verified %s: texts scored again, largest difference over the largest score: %s", self.output, by_expert)
