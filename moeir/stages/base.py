"""The life cycle shared by all stages: check sources, write to a partial path, work, write the manifest, rename."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import settings
from moeir.artifacts import checksums, making, manifests, shards
from moeir.console import hush, size
from moeir.errors import ArtifactError, DataError, OutOfMemory, UsageError, is_out_of_memory

if TYPE_CHECKING:
    from moeir.learning.distributed import World

STREAM = Path("-")
START, END = "the start", "the end"
TEXT_KINDS = ("texts", "qrels", "run", "examples", "fusion")
HUBS = ("hf:", "irds:")
LESS_MEMORY = {
    "batch_size": "lower --batch-size",
    "max_tokens": "lower --max-tokens",
    "gradient_cache": "set or lower --gradient-cache",
    "recompute": "add --recompute",
}
FOLDER_KINDS = ("checkpoint", "encodings", "index")
FILE_SUFFIXES = (".trec", ".run", ".txt", ".tsv", ".jsonl", ".gz", ".zst")
log = logging.getLogger(__name__)
Counts = Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A pipeline step: its fields are its flags, its docstring is its help, `work` does its work."""

    name: ClassVar[str] = ""

    def check(self) -> None:
        """Validate the settings before anything is read or written."""

    def work(self) -> Counts:
        """Read the sources and write `output`; the returned counts go into the manifest."""
        raise NotImplementedError

    def cost(self) -> list[str]:
        """Lines of `--dry-run` about the expected work."""
        return []

    def world(self) -> "World | Alone":
        """The processes that run the stage together; a stage for a single process refuses others by the lock of its output."""
        return Alone()

    def begin(self, *, force: bool) -> None:
        """Execute the stage after its checks; a stage that gives shards to other processes overrides this."""
        process_group = self.world()
        with process_group.together(), _memory_explained(self):
            if process_group.main:
                _run(self, process_group, force=force)
            else:
                _follow(self, process_group)

    def product(self) -> tuple[Path, str] | None:
        """The output path and its kind."""
        products = [(getattr(self, item.name), item.kind) for item in settings.settings_of(type(self)) if item.role == "product"]
        return products[0] if products else None

    def makes_folder(self) -> bool:
        """Whether the product is a folder."""
        return (product := self.product()) is not None and product[1] in FOLDER_KINDS

    def sources(self) -> Iterator[tuple[settings.Setting, Path]]:
        """Every file or folder that the stage reads, with its setting."""
        for setting in settings.settings_of(type(self)):
            if setting.role == "source" and (value := getattr(self, setting.name)) is not None:
                yield from ((setting, item) for item in (value if setting.repeated else (value,)))


class Alone:
    """A process group of one, with the object exchange of `ProcessGroup`."""

    main, size = True, 1

    def together(self) -> AbstractContextManager[None]:
        """No other process needs to learn of an error."""
        return nullcontext()

    def said(self, message: Any, moment: str) -> list[Any]:
        """The objects of all processes: that of this one."""
        return [message]


@contextmanager
def _memory_explained(stage: Stage) -> Iterator[None]:
    """Explain an out-of-memory error: the device, how much of its memory is in use, and which flags of the stage need less."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        advice = [hint for name, hint in LESS_MEMORY.items() if name in {setting.name for setting in settings.settings_of(type(stage))}]
        if not advice or not is_out_of_memory(problem):
            raise
        from moeir.kernels.memory import describe_shortage

        raise OutOfMemory(f"{describe_shortage(problem)}; {', '.join(advice)}") from problem


def check_word(flag: str, text: str) -> None:
    """UsageError unless `text` is one word, as a column of a run must be."""
    if text.split() != [text]:
        raise UsageError(f"{flag} {text!r}: expected a word without spaces")


def check_depth(depth: int) -> None:
    """UsageError unless `depth` is at least 1 and less than 2**31."""
    if not 1 <= depth < 2**31:
        raise UsageError(f"--depth {depth}: expected at least 1" + (f" and less than {2**31}" if depth > 1 else ""))


def _check_streams(stage: Stage) -> None:
    """UsageError if two sources are standard input, which can be read only once."""
    flags = [setting.flag for setting, path in stage.sources() if path == STREAM]
    if len(flags) > 1:
        raise UsageError(f"{flags[0]} - and {flags[1]} -: standard input can be read once; name a file for one of them")


def _check_there(path: Path, setting: settings.Setting) -> None:
    """DataError or ArtifactError if a file or a checkpoint is missing, before heavy libraries are loaded and processes connect."""
    if path != STREAM and not str(path).startswith(HUBS) and not path.exists():
        if setting.kind in TEXT_KINDS:
            raise DataError(f"{path}: no such file ({setting.flag})")
        if setting.kind == "checkpoint":
            raise ArtifactError(f"{path}: no such checkpoint")


def _check_places(stage: Stage, path: Path) -> None:
    """UsageError if the output would replace a source."""
    for setting, source in stage.sources():
        if source != STREAM and path.resolve() in (source.resolve(), *source.resolve().parents):
            raise UsageError(f"--output {path}: would replace what {setting.flag} reads, {source}; write elsewhere")


def run(stage: Stage, *, force: bool = False, alone: bool = True) -> None:
    """Run a stage unless its output is up to date. Several processes report a missing source only once, after they have connected."""
    stage.check()
    _check_streams(stage)
    if alone:
        for setting, path in stage.sources():
            _check_there(path, setting)
    stage.begin(force=force)


def _run(stage: Stage, process_group: "World | Alone", *, force: bool) -> None:
    product = stage.product()
    streams = [setting.flag for setting, source in stage.sources() if source == STREAM]
    if streams and process_group.size > 1:
        raise UsageError(f"{streams[0]} -: {process_group.size} processes cannot share standard input; name a file")
    provenance = _record(stage)
    if product is None or product[0] == STREAM:
        stage.work()
        return
    path, kind = product
    _check_places(stage, path)
    if path.exists() and not force and not streams and manifests.same(path, provenance):  # the content of a stream is unknown
        making.tidy(path, provenance)
        log.info("%s: already made with these settings and sources; --force makes it again", path)
        process_group.said(None, START)
        return
    making.refuse_overwriting(path, provenance, force=force)
    with making.making(path, kind, provenance, force=force or bool(streams), folder=stage.makes_folder()) as (partial_path, counts):
        process_group.said(str(partial_path), START)
        counts.update(dataclasses.replace(stage, output=partial_path).work() or {})  # type: ignore[call-arg]
        if kind == "checkpoint":
            making.write_text(partial_path / "settings.yaml", settings.render(stage))
    process_group.said(None, END)


def _follow(stage: Stage, process_group: "World | Alone") -> None:
    """Run the stage in a process that is not the main one: the same work, without output files and log lines."""
    hush()
    partial_path = process_group.said(None, START)[0]
    if partial_path is not None:
        dataclasses.replace(stage, output=Path(partial_path)).work()  # type: ignore[call-arg]
        process_group.said(None, END)


def _record(stage: Stage) -> dict[str, Any]:
    sources: dict[str, list[str]] = {}
    for setting, path in stage.sources():
        sources.setdefault(setting.flag.removeprefix("--"), []).append(source_digest(path, setting))
    result_settings = settings.as_dict(stage, results_only=True)
    provenance = {"stage": stage.name, "settings": result_settings, "sources": sources}
    return dict(json.loads(json.dumps(provenance)))


def source_digest(path: Path, setting: settings.Setting) -> str:
    """The digest of one source, after a check that it exists and has the right kind."""
    if path == STREAM:
        return "stdin"
    if setting.kind == "training":
        from moeir.analysis.watching import metrics_of

        return checksums.checksum(metrics_of(path))
    if setting.kind in TEXT_KINDS:
        if str(path).startswith(HUBS):
            return str(path)
        _check_there(path, setting)
        if path.is_dir():
            raise DataError(f"{path}: expected a file for {setting.flag}, found a folder")
        return manifests.digest(path)
    if setting.kind == "weights":
        return _weights_digest(path, setting)
    if setting.kind == "anything":
        return _any_digest(path, setting)
    files = shards.verified(path) if setting.kind == "encodings" else manifests.verify(path, setting.kind)["files"]
    return manifests.digest_of(files)


def _weights_digest(path: Path, setting: settings.Setting) -> str:
    """The digest of a moeir checkpoint or a folder of plain weights; any other name is taken as a hub id."""
    if (path / manifests.MANIFEST).is_file():
        return manifests.digest_of(manifests.verify(path, "checkpoint")["files"])
    if path.is_dir():
        return manifests.digest(path)
    if path.exists() or path.is_absolute() or str(path).startswith(".") or len(path.parts) > 2:
        raise UsageError(f"{path}: expected a folder with config.json and model.safetensors, or a hub id ({setting.flag})")
    return f"hub:{path}"


def _any_digest(path: Path, setting: settings.Setting) -> str:
    """The digest of a file or folder of any kind."""
    if str(path).startswith(("hf:", "irds:")):
        return str(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder ({setting.flag})")
    return manifests.digest(path)


def plan(stage: Stage) -> list[str]:
    """The lines of `--dry-run`: what a run would read, write and spend; settings and sources are checked."""
    stage.check()
    _check_streams(stage)
    _record(stage)
    lines = []
    for setting, path in stage.sources():
        content = "a stream" if path == STREAM else _weight(path)
        lines.append(f"read   {setting.flag} {path} ({content})")
    if (product := stage.product()) is not None:
        path, kind = product
        free = "" if path == STREAM else f", {size(shutil.disk_usage(_existing(path)).free)} free there"
        lines.append(f"write  --output {path} ({kind}{free})")
        if path.exists() and path != STREAM:
            lines.append(f"note   {path} exists" + ("" if manifests.manifest_path(path).is_file() else " and was not made by moeir"))
    return lines + [f"spend  {line}" for line in stage.cost()]


def _weight(path: Path) -> str:
    path = path if path.exists() else making.beside_of(path)  # of a training in progress
    if path.is_dir():
        return size(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    return size(path.stat().st_size) if path.exists() else "not a local file"


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
