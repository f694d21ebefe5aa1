"""`moeir pull`: a product from the Hugging Face Hub, under its name when every checksum agrees."""

import logging
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
    """Download what moeir push has uploaded, and verify every checksum; with --verify, compare what the product computes, too. The same
    command continues an interrupted download."""

    repo: str = option("Repository on the Hub, USER/NAME.")
    revision: str | None = option("Branch, tag or commit [default: the main branch].", None)
    verify: bool = option("Compute scores of the sample and measures of the runs again, and compare them with those of the upload.", False)
    model: Path | None = input_field("checkpoint", "The checkpoint of encodings or an index, which later stages then find.", None)
    output: Path = output_field("pulled", "Folder to write; of a single run a file such as run.trec, too.")

    def product(self) -> tuple[Path, str]:
        """The output, with its kind when it is there."""
        paths = [path for path in (*shards.finished_shards(self.output).values(), self.output) if manifests.manifest_path(path).is_file()]
        with suppress(ArtifactError):  # a damaged one, which --force replaces
            return self.output, str(manifests.read_manifest(paths[0])["kind"]) if paths else "pulled"
        return self.output, "pulled"

    def parts(self) -> tuple[()]:
        return ()  # which shards there are, only the Hub says

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
            self._verify(snapshot, next(iter(products.values())))

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
            self._check_pulled(path, manifest["kind"], reference)
            atomic_write.clean_leftovers(path, record)
            log.info("%s: already pulled, %s; --force downloads it again", path, record["hub"])
            return
        atomic_write.check_overwrite(path, record, force=force)
        with atomic_write.atomic_output(path, manifest["kind"], record, force=force, folder=self.makes_folder()) as (partial_path, counts):
            downloads = atomic_write.resume_path(partial_path) / "hub"
            snapshot.download({(folder / name).as_posix(): entry["bytes"] for name, entry in files.items()}, downloads)
            sources = {downloads / folder / name: entry for name, entry in files.items()}
            other_size = (file for file, entry in sources.items() if file.stat().st_size != entry["bytes"])
            if damaged := next(other_size, None) or manifests.first_mismatch(sources):
                damaged.unlink()
                problem = f"{damaged.relative_to(downloads)} is not the file of its manifest: damaged on the way, or on the Hub"
                raise ArtifactError(f"{self.repo}: {problem}; run the same command again to download it again")
            for name, file in zip(files, sources, strict=True):
                atomic_write.link_file(file, partial_path / name if self.makes_folder() else partial_path)
            counts.update(manifest["counts"] | reference)
        log.info("pulled %s: %s of %s, every checksum verified", path, format_count(len(files), "file"), record["hub"])

    def _check_pulled(self, path: Path, kind: str, reference: dict[str, Any]) -> None:
        """Verify every checksum of what is here already, and warn if it names another checkpoint than --model."""
        if path.is_file():
            manifests.verify_file(path)
            return
        named = manifests.verify_artifact(path, kind)["counts"].get("checkpoint", {}).get("path")
        if reference and named != reference["checkpoint"]["path"]:
            words = "is here already and names %s as its checkpoint, not --model %s; --force downloads it again and names that one"
            log.warning(f"%s: {words}", path, named, self.model)

    def _verify(self, snapshot: "Snapshot", manifest: dict[str, Any]) -> None:
        """Compare what the product computes with what it computed where it was uploaded, and log the largest differences."""
        from moeir import hub

        manifest_name = f"{hub.VERIFICATION}/{manifests.MANIFEST}"
        if manifest_name not in snapshot.files:
            raise ArtifactError(f"{self.repo}: has no sample to verify; moeir push publishes one with --corpus or --qrels")
        with snapshot.temporary_folder() as folder:
            sample, words = folder / hub.VERIFICATION, list[str]()
            snapshot.download({manifest_name: hub.MAX_MANIFEST_BYTES}, folder)
            entries = manifests.read_manifest(sample)["files"].items()
            limits = {hub.TEXTS: hub.MAX_SAMPLE_BYTES}
            sizes = {name: min(entry["bytes"], limits.get(name, entry["bytes"])) for name, entry in entries}
            snapshot.download({f"{hub.VERIFICATION}/{name}": size for name, size in sizes.items()}, folder)
            stored = hub.read_measures(manifests.verify_artifact(sample, hub.VERIFICATION))
            if (sample / hub.TEXTS).is_file():
                differences = hub.compare_sample(self.output, sample, self.model)
                by_expert = ", ".join(f"{name} {value:.2g}" for name, value in differences.items())
                count = len((sample / hub.TEXTS).read_text(encoding="utf-8").splitlines())
                words.append(f"{format_count(count, 'text')} again, largest difference of a score over the largest score: {by_expert}")
            if stored:
                paths = hub.list_runs(self.output, manifest["files"]) if manifest["kind"] == "run" else hub.list_runs(sample / hub.RUNS)
                difference = hub.compare_measures(self.output, paths, sample / hub.QRELS, stored)
                words.append(f"{format_count(len(stored), 'run')} scored again, largest difference of a mean: {difference:.2g}")
        if not words:
            raise ArtifactError(f"{self.repo}: has nothing to verify in its sample; moeir push publishes one with --corpus or --qrels")
        log.info("verified %s: %s", self.output, "; ".join(words))
