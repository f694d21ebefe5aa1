"""`moeir push`: a checkpoint, encodings, an index or runs onto the Hugging Face Hub, with a card, and without a path of this machine."""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

from moeir import data_sources, settings
from moeir.artifacts import manifests, shards
from moeir.console import format_count
from moeir.errors import UsageError
from moeir.settings import input_field, option
from moeir.stages import STAGES, stage_class
from moeir.stages.base import ANYTHING, FOLDER_KINDS, STREAM, Stage
from moeir.stages.run_arguments import DEFAULT_MEASURES, check_measures, prefix_errors_with, run_paths, short_run_names

if TYPE_CHECKING:
    from moeir.evaluation.result_tables import MeasureValues

PLACEHOLDERS = {"path": "CHECKPOINT"}  # of what no flag of a path holds
LOCAL_PATH = re.compile(
    r"""(?<![^\s"'`=,:;({|])(?:file:/|~[\w.-]*/|[A-Za-z]:[\\/]+(?=\w)|(?:[\w.-]+/)*\.\./|/(?=[\w.]))[^\s"'`,;)}|]*"""
)  # of no relative name: absolute, of a home, or with ..
log = logging.getLogger(__name__)
Manifest = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Push(Stage):
    """Upload a checkpoint, encodings, an index or runs to the Hugging Face Hub in one commit, with a card that fills itself. Paths of this
    machine are replaced. What an earlier push has put there and the card are replaced; other files stay."""

    input: Path = input_field(ANYTHING, "Checkpoint, encodings, index, or runs: the file or the folder of a search.")
    repo: str = option("Repository on the Hub, USER/NAME; it is made if it does not exist.")
    private: bool = option("Make the repository private, if it does not exist.", False)
    license: str | None = option("Licence for the card, by its name on the Hub, such as apache-2.0 [default: no licence field].", None)
    run: tuple[Path, ...] = input_field(
        "run",
        "Run to measure for the card [default: those of --input]; repeat the flag; NAME=PATH names it.",
        (),
        aliases=("--runs",),
        needs=("qrels",),
    )
    qrels: Path | None = input_field("qrels", "Judgements of the runs.", None)
    measure: tuple[str, ...] = option(
        "Measure for the card; repeat the flag.", DEFAULT_MEASURES, aliases=("--metric", "-m"), needs=("qrels",)
    )
    dataset_name: str | None = option(
        "The data set of --qrels, on the card [default: its hf: or irds: name, if it has one].", None, needs=("qrels",)
    )

    def check(self) -> None:
        if len(set(short_run_names(self.run))) < len(self.run):
            raise UsageError("--run: two runs have the same name; give each its own: --run NAME=PATH")
        check_measures(self.measure)

    def work(self) -> None:
        from moeir import hub
        from moeir.records import lines

        products = {path: manifests.read_manifest(path) for path in shards.shard_folders(self.input)}
        for path, manifest in products.items():
            if manifest["kind"] not in (*FOLDER_KINDS, "run"):
                raise UsageError(f"--input {path}: expected a checkpoint, encodings, an index or runs, found {manifest['kind']}")
            if path.is_dir():
                manifests.verify_artifact(path, manifest["kind"])
            else:
                manifests.verify_file(path)
            if manifest["kind"] == "checkpoint":
                check_trunk(path)
        systems = {} if self.qrels is None else self._measure_runs(self.qrels, next(iter(products.values())))
        dataset = self.dataset_name or (str(self.qrels) if data_sources.is_remote(str(self.qrels)) else "unnamed judgements")
        card = hub.build_card(products, self.repo, systems, dataset, self.license).encode()
        files: dict[str, Path | bytes] = {manifests.CARD: card}
        for path, manifest in products.items():
            folder = "" if path == self.input else f"{path.name}/"
            files |= {f"{folder}{name}": content for name, content in list_published_files(path, manifest, card).items()}
        address = hub.upload_files(self.repo, files, private=self.private)
        log.info("pushed %s to %s: %s", self.input, self.repo, format_count(len(files), "file"))
        lines.write_lines([address], STREAM)

    def _measure_runs(self, qrels_path: Path, manifest: Manifest) -> "dict[str, MeasureValues]":
        """The measures of each query, by run: of --run, or of the runs of --input."""
        from moeir.evaluation import measures
        from moeir.records import qrels, runs

        own = [self.input / name for name in manifest["files"] if ".trec" in Path(name).suffixes] if self.input.is_dir() else []
        judged = self.run or (own if manifest["kind"] == "run" else [])
        paths = dict(zip(short_run_names(judged), run_paths(judged), strict=True)) or ({"run": self.input} if self.input.is_file() else {})
        if not paths:
            raise UsageError("--qrels needs --run: what they judge")
        grades, requested = qrels.read_qrels(qrels_path), [measures.parse_measure(name) for name in self.measure]
        with prefix_errors_with(qrels_path):
            return {name: measures.evaluate_run(runs.read_run(path), grades, requested) for name, path in paths.items()}


def check_trunk(checkpoint: Path) -> None:
    """UsageError for a checkpoint with adapters whose frozen weights are in a folder, which nobody else has."""
    from moeir.architectures.checkpoint import read_metadata

    trunk = read_metadata(checkpoint).get("trunk")
    if trunk is not None and trunk["revision"] is None:
        raise UsageError(
            f"--input {checkpoint}: its adapters need the weights in {trunk['model']}, which others do not have; train them over a model "
            f"of the Hub, or merge them: moeir convert --input {checkpoint} --to sentence-transformers --output FOLDER"
        )


def list_published_files(path: Path, manifest: Manifest, card: bytes) -> dict[str, Path | bytes]:
    """The files of a product or a shard and its manifest by their names on the Hub, without paths of this machine."""
    placeholders, suffix = find_placeholders(manifest), path.suffix if path.suffix in data_sources.COMPRESSIONS else ""
    files: dict[str, Path | bytes] = {name: path / name for name in manifest["files"]} if path.is_dir() else {f"run.trec{suffix}": path}
    changed = {"README.md": card} if "README.md" in files else {}
    if "settings.yaml" in files:
        text = (path / "settings.yaml").read_text(encoding="utf-8")
        changed["settings.yaml"] = settings.change_yaml(text, lambda values: hide_paths(values, placeholders)).encode()
    entries = dict(zip(files, manifest["files"].values(), strict=True))
    entries |= {name: {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()} for name, text in changed.items()}
    published = {name: value for name, value in manifest.items() if name != "hub"} | {"files": entries}
    published |= {name: hide_paths(manifest[name], placeholders) for name in ("settings", "counts")}
    return files | changed | {manifests.MANIFEST: manifests.serialize_manifest(published).encode()}


def find_placeholders(manifest: Manifest) -> dict[str, str]:
    """What stands for a path in the settings and counts of a manifest, by key; names on the Hub and of data sets stand for themselves."""
    known = settings.list_settings(stage_class(manifest["stage"])) if manifest["stage"] in STAGES else ()
    flags = [setting.flag.removeprefix("--") for setting in known if "Path" in setting.annotation]
    sources = [source for values in manifest["sources"].values() for source in values]
    names = {source.removeprefix("hub:") for source in sources if source.startswith("hub:") or data_sources.is_remote(source)}
    return {flag: flag.upper() for flag in flags} | PLACEHOLDERS | {name: name for name in names}


def hide_paths(value: Any, placeholders: Mapping[str, str], key: str = "") -> Any:
    """Settings or counts with a placeholder for each path, and the last part of each that stands inside another value.

    >>> hide_paths({"checkpoint": {"path": "../came"}, "depth": 10}, PLACEHOLDERS)
    {'checkpoint': {'path': 'CHECKPOINT'}, 'depth': 10}
    >>> hide_paths({"arch": "dense:file=/home/anna/w.npy,depth=3"}, PLACEHOLDERS)
    {'arch': 'dense:file=w.npy,depth=3'}
    """
    if isinstance(value, Mapping):
        return {name: hide_paths(item, placeholders, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide_paths(item, placeholders, key) for item in value]
    if isinstance(value, str) and key not in placeholders:
        return LOCAL_PATH.sub(lambda path: PureWindowsPath(path[0]).name.strip(".~") or "PATH", value)
    return placeholders.get(value, placeholders[key]) if isinstance(value, str) else value
