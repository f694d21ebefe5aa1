"""Repositories of the Hugging Face Hub: upload in one commit, download, the card, and the sample that `pull --verify` compares.

A repository has the files and manifests of one product as they are on disk, the card README.md, and in `verification/` texts drawn by a
seed with what the product makes of them.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    EvalResult,
    HfApi,
    ModelCard,
    ModelCardData,
    get_session,
    hf_hub_download,
)
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils.logging import set_verbosity_error
from yaml import YAMLError

from moeir.architectures.checkpoint import open_checkpoint, read_metadata
from moeir.artifacts import manifests, shards
from moeir.artifacts.manifests import MANIFEST
from moeir.backbones.device import autocast, select_device, select_dtype
from moeir.console import progress
from moeir.errors import ArtifactError, DataError, MoeirError, UsageError
from moeir.evaluation import significance
from moeir.evaluation.result_tables import ALL_QUERIES, Comparison, MeasureValues, to_table
from moeir.formats.subsets import sample_items
from moeir.indexes.segments import IndexFolder
from moeir.records import runs, texts
from moeir.reranking import candidates, scoring
from moeir.retrieval.searcher import open_index

KINDS = ("checkpoint", "encodings", "index", "run")
CARD, VERIFICATION, TEXTS = "README.md", "verification", "texts.jsonl"
GIT_FILE = ".gitattributes"  # of every repository; the Hub writes it
CARD_HEADING = "## This repository"
COUNTED = {"texts": "documents", "queries": "queries"}  # counts of a manifest, as the card calls them
SAMPLE_SIZE, SEARCH_DEPTH = 256, 10
MAX_BYTES = 2**28  # of a manifest, and of a file of the sample, that are read from a repository
SECONDS_OF_SILENCE = 120.0  # without a byte from the Hub, or a byte that it takes
TOLERANCE = 1e-3  # of a score that is computed again, relative to the largest


class Snapshot(NamedTuple):
    """One commit of a repository, and its files: their bytes by name, 0 if the Hub names no size."""

    repository: str
    commit: str
    files: Mapping[str, int]

    def download(self, limits: Mapping[str, int], folder: Path) -> None:
        """Download files of at most so many bytes into a folder, under their names, but for those of this commit that it has."""
        for name, limit in progress(list(limits.items()), "downloading files"):
            if name not in self.files or ".." in Path(name).parts or Path(name).is_absolute():
                raise ArtifactError(f"{self.repository}: has no {name}; expected a repository that moeir push made")
            if (size := self.files[name]) > limit:
                problem = f"{name} has {size:,} bytes, expected at most {limit:,}"
                raise ArtifactError(f"{self.repository}: {problem}; expected a repository as moeir push makes it")
            with describe_hub_errors(self.repository):
                hf_hub_download(self.repository, name, revision=self.commit, local_dir=folder)

    def read_manifests(self) -> dict[str, dict[str, Any]]:
        """The manifest of the product by its folder in the repository, `.`, or those of its shards."""
        folders = sorted(name for name in {str(Path(name).parent) for name in self.files} if shards.FOLDER_PATTERN.fullmatch(name))
        complete = {shards.Shard(number, len(folders)).folder_name for number in range(len(folders))}
        if complete != set(folders) or (folders and MANIFEST in self.files):
            problem = f"has {len(folders)} shards, such as {folders[0]}, expected one whole set and nothing else"
            raise ArtifactError(f"{self.repository}: {problem}; push the folder of all shards again")
        folders = folders or ["."]
        with self.temporary_folder() as folder:
            self.download({(Path(name) / MANIFEST).as_posix(): MAX_BYTES for name in folders}, folder)
            loaded = {name: manifests.read_manifest(folder / name) for name in folders}
        for name, manifest in loaded.items():
            if manifest["kind"] not in KINDS or not {"stage", "settings", "sources"} <= manifest.keys():
                raise ArtifactError(f"{self.repository}: has no {', '.join(KINDS)}; expected a repository that moeir push made")
            manifests.check_format(Path(self.repository, name), manifest)
            if manifests.diff_records(loaded[folders[0]], manifest) - {"shard"}:
                raise ArtifactError(f"{self.repository}: {name} and {folders[0]} were made with other settings or sources; push one set")
        return loaded

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """A folder for downloads; errors about what is in it name the repository."""
        with TemporaryDirectory(prefix="moeir-") as folder:
            try:
                yield Path(folder)
            except (ArtifactError, DataError) as problem:
                if folder not in str(problem):
                    raise
                reason = str(problem).replace(f"{folder}/", "").partition("; run ")[0]
                raise ArtifactError(f"{self.repository}: {reason}; expected a repository as moeir push makes it") from None


def find_snapshot(repository: str, revision: str | None = None) -> Snapshot:
    """The commit of a branch, tag or commit name, by default of the main branch."""
    with describe_hub_errors(repository):
        info = HfApi().repo_info(repository, revision=revision, timeout=SECONDS_OF_SILENCE, files_metadata=True)
    return Snapshot(repository, str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()})


def upload_files(repository: str, files: Mapping[str, Path | bytes], *, private: bool) -> str:
    """Make these files the content of a repository, in one commit -> its address; files of another tool are not replaced.

    Large files that an interrupted upload has brought to the Hub are not sent again.
    """
    with describe_hub_errors(repository):
        HfApi().create_repo(repository, private=private or None, exist_ok=True)
    before = find_snapshot(repository)
    if before.files.keys() - {GIT_FILE, CARD}:
        try:
            before.read_manifests()
        except ArtifactError:
            problem = "has files, and moeir push did not make them"
            raise UsageError(f"--repo {repository}: {problem}; name another repository, or delete them there") from None
    added = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
    deleted = [CommitOperationDelete(name) for name in sorted(before.files.keys() - files.keys() - {GIT_FILE})]
    with describe_hub_errors(repository):
        commit = HfApi().create_commit(repository, [*added, *deleted], commit_message="moeir push", parent_commit=before.commit)
    return str(commit.commit_url)


@contextmanager
def describe_hub_errors(repository: str) -> Iterator[None]:
    """One line and an exit code for an error of the Hub or of the network, without lines of the client; errors of the disk pass."""
    disable_progress_bars()
    set_verbosity_error()
    if (client := get_session()).timeout.read is None:  # the client's default would wait for a silent Hub without end
        client.timeout = SECONDS_OF_SILENCE
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except UnicodeEncodeError:
        raise UsageError("HF_TOKEN: has a character that no token has; log in again with `hf auth login`") from None
    except (HTTPError, OSError, ValueError, RuntimeError) as problem:
        cause = next((one for one in (problem, problem.__cause__) if isinstance(one, HTTPError | OfflineModeIsEnabled)), problem)
        if isinstance(cause, OSError) and cause.errno is not None:
            raise
        status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0
        reason = " ".join(str(cause).split()) or type(cause).__name__
        if status in (401, 403):
            advice = "check the name, and log in with `hf auth login` or set HF_TOKEN to a token that may do this"
            raise UsageError(f"{repository}: the Hub refuses access ({status}); {advice}") from None
        if status == 404:
            what = "no such repository, revision or file on the Hub (404)"
            raise ArtifactError(f"{repository}: {what}; check --repo and --revision") from None
        if isinstance(cause, ValueError | OfflineModeIsEnabled) and not isinstance(cause, json.JSONDecodeError):
            raise UsageError(f"--repo {repository}: not accepted: {reason}") from None
        raise MoeirError(f"{repository}: the Hub or the connection failed ({reason}); run the same command again to continue") from None


def draw_texts(corpora: Sequence[Path], product: Path, kind: str, seed: int) -> list[texts.Text]:
    """At most SAMPLE_SIZE texts of corpora, for an index of those that it holds; DataError if one of these is in none of the corpora.

    A text that several corpora have is that of the last one, which has replaced the others in an updated index.
    """
    if kind == "checkpoint":
        return sample_items(chain.from_iterable(map(texts.read_texts, corpora)), SAMPLE_SIZE, seed)
    wanted = set(sample_items(IndexFolder.read(product, manifests.read_counts(product)).ids, SAMPLE_SIZE, seed))
    sample = {text.id: text for corpus in corpora for text in texts.read_texts(corpus, keep_empty=True) if text.id in wanted}
    if missing := wanted - sample.keys():
        advice = "name the corpus that it was made from, and those that were added: --corpus FILE FILE"
        raise DataError(f"{', '.join(map(str, corpora))}: no document {min(missing)!r}, which {product} has; {advice}")
    return list(sample.values())


def score_sample(product: Path, kind: str, file: Path, model: Path | None) -> dict[str, runs.Run]:
    """The first SEARCH_DEPTH texts for each text of a file, by expert: of all as encoded by a checkpoint, or as found in an index.

    A cross-encoder scores each text with itself and the next.
    """
    sample = list(islice(texts.read_texts(file, keep_empty=True), SAMPLE_SIZE + 1))
    if len(sample) > SAMPLE_SIZE:
        raise DataError(f"{file}: expected at most {SAMPLE_SIZE} texts")
    names, contents, device = [text.id for text in sample], [text.content for text in sample], select_device("auto")
    if kind == "index":
        searcher = open_index(product, model=model, dtype="float32", verified=True)
        lists, _ = searcher.search_runs(names, contents, SEARCH_DEPTH, list(searcher.engines), searcher.default_fusion)
        return {name: lists[name] for name in searcher.engines}
    precision, checkpoint = select_dtype("float32", device, inference=True), open_checkpoint(product, device)
    if checkpoint.architecture.reads_pairs:
        pairs = runs.Run.from_hits({name: dict.fromkeys((name, other), 1.0) for name, other in zip(names, [*names[1:], names[0]])})
        pairs_to_score, pair_texts = candidates.Candidates.from_run(pairs, 2), candidates.CandidateTexts.from_run(pairs, file, file)
        config = scoring.ScoringConfig(precision, device)
        scores, _ = scoring.score_candidates(product, pairs_to_score, pair_texts, config, lambda count: None)
        return {"relevance": pairs_to_score.apply_scores(scores)}
    checkpoint.pack_for_inference(precision)
    with autocast(precision, device):
        encoded = checkpoint.encode(contents, "document")
    lists = {}
    for name, representation in encoded.items():
        matrix = representation.scores(representation).detach().cpu().numpy()
        query, document = np.nonzero(np.isfinite(matrix))
        lists[name] = runs.Run.from_columns(names, query, names, document, matrix[query, document]).top(SEARCH_DEPTH)
    return lists


def compare_sample(product: Path, kind: str, sample: Path, model: Path | None) -> dict[str, float]:
    """`compute_difference` by expert, of the lists in the folder `sample` and those computed here; ArtifactError above the tolerance."""
    computed, stored = score_sample(product, kind, sample / TEXTS, model), {path.stem: path for path in sorted(sample.glob("*.trec"))}
    if not stored or stored.keys() - computed.keys():
        expected = f"expected lists of {', '.join(computed)}"
        raise ArtifactError(f"{sample}: has lists of {', '.join(stored) or 'no expert'}, {expected}")
    differences = {name: compute_difference(runs.read_run(path), computed[name]) for name, path in stored.items()}
    name, value = max(differences.items(), key=lambda entry: (np.isnan(entry[1]), entry[1]))
    if not value <= TOLERANCE:
        problem = f"the scores of the sample differ from those of the upload by {value:.3g} ({name}), expected at most {TOLERANCE:g}"
        raise ArtifactError(f"{product}: {problem}; its files are those of the Hub: look for another version, device or checkpoint")
    return differences


def compute_difference(stored: runs.Run, computed: runs.Run) -> float:
    """The largest |difference| of the scores at a rank, over the largest |score|; infinite if the lists have other lengths.

    >>> compute_difference(runs.Run.from_hits({"q": {"a": 4.0, "b": 2.0}}), runs.Run.from_hits({"q": {"b": 4.0, "a": 1.0}}))
    0.25
    """
    if stored.queries != [name for name in computed.queries if computed.hits(name)] or len(stored.scores) != len(computed.scores):
        return float("inf")
    largest, difference = float(np.abs(stored.scores).max()), float(np.abs(stored.scores - computed.scores).max())
    return difference / largest if largest else 0.0 if difference == 0 else float("inf")


def _load_card(path: Path) -> ModelCard:
    try:
        return ModelCard.load(path)
    except (ValueError, TypeError, YAMLError) as problem:  # its owner may have edited it
        raise ArtifactError(f"{path}: not a card of the Hub: {' '.join(str(problem).split())}; repair it") from None


def build_card(
    products: Mapping[Path, Mapping[str, Any]], checkpoint: Path | None, repository: str, systems: Mapping[str, MeasureValues], *,
    dataset: str, license: str | None, commands: Sequence[str],
) -> str:  # fmt: skip
    """README.md: metadata with tags, base model, licence and measures with their intervals; sizes, measures and commands.

    A checkpoint has a card, which is extended; `checkpoint` is that of encodings or an index. `systems` are the measures of runs on the
    judgements called `dataset`. Nothing stands for a licence that is not given.
    """
    (product, manifest), *_ = products.items()
    kind, name = manifest["kind"], repository.rpartition("/")[2]
    cards = [_load_card(one / CARD) for one in (product, checkpoint) if one is not None and (one / CARD).is_file()]
    base_model = cards[0].data.base_model if cards else None
    new = ModelCardData(library_name="moeir", tags=["moeir", "retrieval", kind], base_model=base_model)
    card = cards[0] if kind == "checkpoint" else ModelCard(f"---\n{new.to_yaml()}\n---\n\n# {name}\n")
    card.data.license = license or card.data.license
    task = "text-ranking" if card.data.get("pipeline_tag") == "text-ranking" else "information-retrieval"
    results = [one for one in card.data.eval_results or () if one.dataset_name != dataset]
    for run, measure, values in ((run, *entry) for run, by_measure in systems.items() for entry in by_measure.items()):
        interval = [round(bound, 6) for bound in significance.confidence_interval(list(values.values()), is_measure=True)]
        facts, mean = {"run": run, "queries": len(values), "interval_95": interval}, round(fmean(values.values()), 6)
        dataset_type = "-".join(re.findall(r"[^\W_]+", dataset.lower()))  # the client joins results of one type under the first's name
        results.append(EvalResult(task, dataset_type, dataset, measure.lower(), mean, metric_name=measure, metric_args=facts))
    card.data.eval_results, card.data.model_name = results or None, card.data.model_name or name
    counts = {noun: sum(part["counts"].get(key, 0) for part in products.values()) for key, noun in COUNTED.items()}
    counts |= {"parameters": read_metadata(product)["parameters"]} if kind == "checkpoint" else {}
    counts["bytes"] = sum(entry["bytes"] for part in products.values() for entry in part["files"].values())
    sections = [card.text.partition(CARD_HEADING)[0].strip(), CARD_HEADING]
    sections.append(f"Kind: {kind}; {', '.join(f'{count:,} {noun}' for noun, count in counts.items() if count)}.")
    if systems:
        labelled, comparison = {run: {ALL_QUERIES: values} for run, values in systems.items()}, Comparison("none", intervals=True)
        sections += [f"Measures on {dataset}, with 95 % intervals:", to_table(labelled, "markdown", comparison)]
    shown = (f"    {line}" for line in (*commands, f"moeir pull --repo {repository} --output {name}"))
    card.text = "\n".join(["", "\n\n".join([*sections, "Made, and to be had again, by"]), "", *shown, ""])
    return str(card)
