"""`moeir push`: a checkpoint, encodings, an index or runs onto the Hugging Face Hub, with a card, and without a path of this machine."""

import hashlib
import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from moeir import data_sources, settings
from moeir.artifacts import manifests, shards
from moeir.console import format_count
from moeir.errors import DataError, UsageError
from moeir.settings import input_field, option
from moeir.stages import STAGES, stage_class
from moeir.stages.base import ANYTHING, FOLDER_KINDS, MAX_SEED, STREAM, Stage, is_stream
from moeir.stages.run_arguments import DEFAULT_MEASURES, name_source, run_paths, short_run_names

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
    machine are replaced."""

    input: Path = input_field(ANYTHING, "Checkpoint, encodings, index, or runs: the file or the folder of a search.")
    repo: str = option("Repository on the Hub, USER/NAME; it is made if it does not exist.")
    private: bool = option("Make the repository private, if it does not exist.", False)
    license: str | None = option("Licence for the card, by its name on the Hub, such as apache-2.0 [default: no licence field].", None)
    corpus: tuple[Path, ...] = input_field(
        "texts", "What an index was made from, or any texts for a checkpoint: 256 are published for pull --verify; repeat the flag.", ()
    )
    seed: int = option("Seed of the draw from --corpus.", 42, minimum=0, maximum=MAX_SEED)
    run: tuple[Path, ...] = input_field(
        "run",
        "Run to measure for the card, if --input is none; repeat the flag; NAME=PATH names it.",
        (),
        aliases=("--runs",),
        needs=("qrels",),
    )
    qrels: Path | None = input_field("qrels", "Judgements of --run, or of the runs of --input.", None, only_with=("run",))
    measure: tuple[str, ...] = option("Measure for the card; repeat the flag.", DEFAULT_MEASURES, aliases=("--metric", "-m"))
    dataset_name: str | None = option("The data set of --qrels, on the card [default: its hf: or irds: name, if it has one].", None)
    model: Path | None = input_field("checkpoint", "The checkpoint of encodings or an index, if it has moved.", None)

    def check(self) -> None:
        if stream := next(filter(is_stream, (self.input, *run_paths(self.run))), None):
            raise UsageError(f"{stream}: is read more than once; name a file or a folder")
        if len(set(short_run_names(self.run))) < len(self.run):
            raise UsageError("--run: two runs have the same name; give each its own: --run NAME=PATH")

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
        (path, manifest), *_ = products.items()
        recorded = manifest["counts"].get("checkpoint")
        is_here = recorded is not None and (self.model is not None or (path / recorded["path"]).is_dir())
        checkpoint = manifests.find_checkpoint(path, recorded, self.model) if is_here else None
        files = self._make_sample(manifest["kind"], checkpoint)
        systems = {} if self.qrels is None else self._measure_runs(manifest)
        commands = [format_command(maker) for maker in ([] if checkpoint is None else [manifests.read_manifest(checkpoint)]) + [manifest]]
        dataset = self.dataset_name or (str(self.qrels) if data_sources.is_remote(str(self.qrels)) else "unnamed judgements")
        card = hub.build_card(products, checkpoint, self.repo, systems, dataset=dataset, license=self.license, commands=commands)
        files[hub.CARD] = card.encode()
        for path, manifest in products.items():
            files |= self._list_files(path, manifest, card.encode())
        address = hub.upload_files(self.repo, files, private=self.private)
        log.info("pushed %s to %s: %s", self.input, self.repo, format_count(len(files), "file"))
        lines.write_lines([address], STREAM)

    def _make_sample(self, kind: str, checkpoint: Path | None) -> dict[str, Path | bytes]:
        """Texts of --corpus and the lists of what the product finds for them, as files by their names on the Hub."""
        from moeir import hub
        from moeir.records import runs, texts

        if not self.corpus:
            return {}
        if kind not in ("checkpoint", "index"):
            raise UsageError(f"--corpus: --input is {kind}, which computes nothing that pull --verify could compare; leave it out")
        with TemporaryDirectory(prefix="moeir-") as temporary:
            folder = Path(temporary)
            texts.write_texts(hub.draw_texts(self.corpus, self.input, kind, self.seed), folder / hub.TEXTS)
            lists = hub.score_sample(self.input, kind, folder / hub.TEXTS, checkpoint)
            lists = {name: run for name, run in lists.items() if len(run.scores)}
            if not lists:
                raise DataError(f"--corpus: no text of it finds a document in {self.input}, so nothing can be verified; leave it out")
            for name, run in lists.items():
                runs.write_run(run, folder / f"{name}.trec")
            return {f"{hub.VERIFICATION}/{file.name}": file.read_bytes() for file in sorted(folder.iterdir())}

    def _measure_runs(self, manifest: Manifest) -> "dict[str, MeasureValues]":
        """The measures of each query, by run: of --run, or of the runs of --input."""
        from moeir.evaluation import measures
        from moeir.records import lines, qrels, runs

        if (manifest["kind"] == "run") == bool(self.run):
            words = "--run: the runs of --input are measured; leave it out" if self.run else "--qrels needs --run: what they judge"
            raise UsageError(words)
        paths = dict(zip(short_run_names(self.run), run_paths(self.run), strict=True))
        if not paths and self.input.is_file():
            paths = {"run": self.input}
        elif not paths:
            files = [self.input / name for name in manifest["files"] if ".trec" in Path(name).suffixes]
            paths = {lines.strip_compression_suffix(file).stem: file for file in files}
        assert self.qrels is not None
        grades, requested = qrels.read_qrels(self.qrels), [measures.parse_measure(name) for name in self.measure]
        with name_source(self.qrels):
            return {name: measures.evaluate_run(runs.read_run(path), grades, requested) for name, path in paths.items()}

    def _list_files(self, path: Path, manifest: Manifest, card: bytes) -> dict[str, Path | bytes]:
        """The files of a product or a shard and its manifest by their names on the Hub, without paths of this machine."""
        placeholders, suffix = find_placeholders(manifest), path.suffix if path.suffix in data_sources.COMPRESSIONS else ""
        files: dict[str, Path | bytes] = {name: path / name for name in manifest["files"]} if path.is_dir() else {f"run.trec{suffix}": path}
        if "README.md" in files:
            files["README.md"] = card
        if "settings.yaml" in files:
            text = (path / "settings.yaml").read_text(encoding="utf-8")
            files["settings.yaml"] = settings.change_yaml(text, lambda values: hide_paths(values, placeholders)).encode()
        entries = dict(zip(files, manifest["files"].values(), strict=True))
        changed = {name: content for name, content in files.items() if isinstance(content, bytes)}
        entries |= {name: {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()} for name, text in changed.items()}
        parts = {name: hide_paths(manifest[name], placeholders) for name in ("settings", "counts")} | {"files": entries}
        published = {name: value for name, value in manifest.items() if name != "hub"} | parts
        files[manifests.MANIFEST] = manifests.serialize_manifest(published).encode()
        return {name if path == self.input else f"{path.name}/{name}": content for name, content in files.items()}


def check_trunk(checkpoint: Path) -> None:
    """UsageError for a checkpoint with adapters whose frozen weights are in a folder, which nobody else has."""
    from moeir.architectures.checkpoint import read_metadata

    trunk = read_metadata(checkpoint).get("trunk")
    if trunk is not None and trunk["revision"] is None:
        raise UsageError(
            f"--input {checkpoint}: its adapters need the weights in {trunk['model']}, which others do not have; train them over a model "
            f"of the Hub, or merge them: moeir convert --input {checkpoint} --to sentence-transformers --output FOLDER"
        )


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


def format_command(manifest: Manifest) -> str:
    """The command that made a product: placeholders for paths, and only the settings that are not the defaults."""
    words, placeholders = ["moeir", str(manifest["stage"])], find_placeholders(manifest)
    for setting in settings.list_settings(stage_class(manifest["stage"])) if manifest["stage"] in STAGES else ():
        name = setting.flag.removeprefix("--")
        value = manifest["settings"].get(name) if setting.role == "option" else manifest["sources"].get(name)
        values: Sequence[Any] = value if isinstance(value, list) else () if value in (None, setting.default) else [value]
        for one in values if tuple(values) != setting.default else ():
            text = hide_paths(str(one).removeprefix("hub:"), placeholders, name)
            words += [f"--no-{name}" if one is False else setting.flag, *([] if isinstance(one, bool) else [text])]
    return shlex.join([*words, "--output", "OUTPUT"])
