"""Repositories of the Hugging Face Hub: upload in one commit, download, and the card.

A repository has the files and manifests of one product as they are on disk, and the card README.md.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    hf_hub_download,
)
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils.logging import set_verbosity_error
from yaml import YAMLError

from moeir.artifacts import manifests, shards
from moeir.artifacts.manifests import CARD, MANIFEST
from moeir.console import progress
from moeir.errors import ArtifactError, MoeirError, UsageError
from moeir.evaluation import significance
from moeir.evaluation.result_tables import ALL_QUERIES, Comparison, MeasureValues, to_table

GIT_FILE = ".gitattributes"  # of every repository; the Hub writes it
CARD_HEADING = "## This repository"
MAX_MANIFEST_BYTES = 2**28


class Snapshot(NamedTuple):
    """One commit of a repository, and its files: their bytes by name, 0 if the Hub names no size."""

    repository: str
    commit: str
    files: Mapping[str, int]

    def download(self, limits: Mapping[str, int], folder: Path) -> None:
        """Download files of at most so many bytes into a folder, under their names, but for those of this commit that it has."""
        for name, limit in progress(list(limits.items()), "downloading files"):
            if (size := self.files.get(name, 0)) > limit:
                raise ArtifactError(f"{self.repository}: {name} has {size:,} bytes, expected at most {limit:,}; push it again")
            with describe_hub_errors(self.repository):
                hf_hub_download(self.repository, name, revision=self.commit, local_dir=folder)

    def read_manifests(self) -> dict[str, dict[str, Any]]:
        """The manifest of the product by its folder in the repository, `.`, or those of its shards."""
        folders = sorted(str(Path(name).parent) for name in self.files if Path(name).name == MANIFEST)
        folders = ["."] if "." in folders else [name for name in folders if shards.FOLDER_PATTERN.fullmatch(name)]
        advice = "expected a repository that moeir push made"
        if not folders:
            raise ArtifactError(f"{self.repository}: has no {MANIFEST}; {advice}")
        if folders != ["."] and set(folders) != {shards.Shard(number, len(folders)).folder_name for number in range(len(folders))}:
            problem = f"has {len(folders)} shards, such as {folders[0]}, expected one whole set"
            raise ArtifactError(f"{self.repository}: {problem}; push the folder of all shards again")
        loaded: dict[str, dict[str, Any]] = {}
        with TemporaryDirectory(prefix="moeir-") as temporary, suppress(ArtifactError):
            self.download({(Path(name) / MANIFEST).as_posix(): MAX_MANIFEST_BYTES for name in folders}, Path(temporary))
            safe = (name for name in folders if manifests.list_files(Path(temporary, name, MANIFEST)) is not None)  # all inside its folder
            loaded |= {name: manifests.read_manifest(Path(temporary, name)) for name in safe}
        if loaded.keys() != set(folders):
            raise ArtifactError(f"{self.repository}: has a {MANIFEST} that is damaged, or not made by moeir; {advice}")
        for name, manifest in loaded.items():
            manifests.check_format(Path(self.repository, name), manifest)
        return loaded


def find_snapshot(repository: str, revision: str | None = None) -> Snapshot:
    """The commit of a branch, tag or commit name, by default of the main branch."""
    with describe_hub_errors(repository):
        info = HfApi().repo_info(repository, revision=revision, files_metadata=True)
    return Snapshot(repository, str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()})


def upload_files(repository: str, files: Mapping[str, Path | bytes], *, private: bool) -> str:
    """Make these files the content of a repository, in one commit -> its address; what no push has put there stays, but for the card.

    Large files that an interrupted upload has brought to the Hub are not sent again.
    """
    with describe_hub_errors(repository):
        HfApi().create_repo(repository, private=private or None, exist_ok=True)
    before, earlier = find_snapshot(repository), set[str]()
    if before.files.keys() - {GIT_FILE, CARD}:
        try:
            for folder, manifest in before.read_manifests().items():
                earlier |= {(Path(folder) / name).as_posix() for name in (*manifest["files"], MANIFEST)}
        except ArtifactError:
            problem = "has files, and moeir push did not make them"
            raise UsageError(f"--repo {repository}: {problem}; name another repository, or delete them there") from None
    added = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
    deleted = [CommitOperationDelete(name) for name in sorted((before.files.keys() & earlier) - files.keys())]
    with describe_hub_errors(repository):
        commit = HfApi().create_commit(repository, [*added, *deleted], commit_message="moeir push", parent_commit=before.commit)
    return str(commit.commit_url)


@contextmanager
def describe_hub_errors(repository: str) -> Iterator[None]:
    """One line and an exit code for an error of the Hub or of the network, without lines of the client; errors of the disk pass."""
    disable_progress_bars()
    set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (HTTPError, OSError, ValueError, RuntimeError) as problem:
        cause = next((one for one in (problem, problem.__cause__) if isinstance(one, HTTPError | OfflineModeIsEnabled)), problem)
        if isinstance(cause, OSError) and cause.errno is not None:
            raise
        status, reason = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0, " ".join(str(cause).split())
        if 400 <= status < 500 or (isinstance(cause, ValueError | OfflineModeIsEnabled) and not isinstance(cause, json.JSONDecodeError)):
            raise (ArtifactError if status == 404 else UsageError)(f"{repository}: not accepted: {reason}") from None
        reason = reason or type(cause).__name__
        raise MoeirError(f"{repository}: the Hub or the connection failed ({reason}); run the same command again to continue") from None


def build_card(
    products: Mapping[Path, Mapping[str, Any]], repository: str, systems: Mapping[str, MeasureValues], dataset: str, license: str | None
) -> str:
    """README.md: metadata with tags, licence and measures with their intervals; what made the product, and how to download it.

    A checkpoint has a card, which is extended. `systems` are the measures of runs on the judgements called `dataset`. Nothing stands for a
    licence that is not given.
    """
    (product, manifest), *_ = products.items()
    kind, name = manifest["kind"], repository.rpartition("/")[2]
    metadata = ModelCardData(library_name="moeir", tags=["moeir", "retrieval", kind])
    card = _load_card(product / CARD) if (product / CARD).is_file() else ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n# {name}\n")
    card.data.license = license or card.data.license
    task = "text-ranking" if card.data.get("pipeline_tag") == "text-ranking" else "information-retrieval"
    results = [one for one in card.data.eval_results or () if one.dataset_name != dataset]
    for run, measure, values in ((run, *entry) for run, by_measure in systems.items() for entry in by_measure.items()):
        interval = [round(bound, 6) for bound in significance.confidence_interval(list(values.values()))]
        facts, mean = {"run": run, "queries": len(values), "interval_95": interval}, round(fmean(values.values()), 6)
        dataset_type = "-".join(re.findall(r"[^\W_]+", dataset.lower()))  # the client joins results of one type under the first's name
        results.append(EvalResult(task, dataset_type, dataset, measure.lower(), mean, metric_name=measure, metric_args=facts))
    card.data.eval_results, card.data.model_name = results or None, card.data.model_name or name
    sections = [card.text.partition(CARD_HEADING)[0].strip(), CARD_HEADING]
    texts = sum(part["counts"].get("texts", 0) for part in products.values())
    origin = f"{kind}, made by `moeir {manifest['stage']}` with the settings in `{MANIFEST}`"
    sections.append(f"Kind: {origin}{f'; {texts:,} documents' if texts else ''}.")
    if systems:
        labelled, comparison = {run: {ALL_QUERIES: values} for run, values in systems.items()}, Comparison("none", intervals=True)
        sections += [f"Measures on {dataset}, with 95 % intervals:", to_table(labelled, "markdown", comparison)]
    card.text = "\n".join(["", "\n\n".join([*sections, f"    moeir pull --repo {repository} --output {name}"]), ""])
    return str(card)


def _load_card(path: Path) -> ModelCard:
    try:
        return ModelCard.load(path)
    except (ValueError, TypeError, YAMLError) as problem:  # its owner may have edited it
        raise ArtifactError(f"{path}: not a card of the Hub: {' '.join(str(problem).split())}; repair it") from None
