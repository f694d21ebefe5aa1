"""The life cycle shared by all stages: check sources, write to a partial path, work, write the manifest, rename."""

import dataclasses
import hashlib
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, count, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeir import data_sources, settings, variants
from moeir.artifacts import atomic_write, identity, manifests, shards
from moeir.artifacts.unfinished import describe_unfinished, read_json
from moeir.console import format_bytes, silence
from moeir.errors import ArtifactError, DataError, MoeirError, OutOfMemory, UsageError, is_out_of_memory
from moeir.parsing import kebab_case
from moeir.settings import option

if TYPE_CHECKING:
    from moeir.distributed import ProcessGroup

STREAM = Path("-")
MAX_SEED = 2**32 - 1  # of random generators
DEPTH: dict[str, Any] = {"minimum": 1, "maximum": 2**31 - 1, "aliases": ("--hits", "--k")}
DTYPE: dict[str, Any] = {  # of every stage that runs a model
    "help": "Precision of matrix products; auto: bfloat16 where the device multiplies it faster, else float32.",
    "default": "auto",
    "choices": ("auto", "float32", "bfloat16"),
}
INFERENCE_DTYPE = DTYPE | {"help": f"{DTYPE['help']} int8: on a CPU, faster and a little coarser.", "choices": (*DTYPE["choices"], "int8")}
DEVICE: dict[str, Any] = {"help": "auto, cpu, cuda or cuda:N.", "default": "auto", "affects_result": False}
THREADS = DEVICE | {"help": "CPU threads [default: torch's].", "default": None, "minimum": 1, "maximum": 4096}
KEEP_EMPTY: dict[str, Any] = {"help": "Accept documents without text.", "default": False}
COLLAPSE_HELP = "Passages ID#NUMBER (convert --passages) count as documents ID, each with the score of its best one."
COLLAPSE: dict[str, Any] = {"help": COLLAPSE_HELP, "default": None, "choices": ("max",)}
START, END = "the start", "the end"
ANYTHING = "anything"  # the kind of a source that may be a file or a folder of any kind
TEXT_KINDS = ("texts", "qrels", "run", "examples", "fusion", "ids")
MEMORY_ADVICE = {
    "batch_size": "lower --batch-size",
    "max_tokens": "lower --max-tokens",
    "gradient_cache": "set or lower --gradient-cache",
    "recompute": "add --recompute",
}
FOLDER_KINDS = ("checkpoint", "encodings", "index")
FILE_SUFFIXES = (".trec", ".run", ".txt", ".tsv", ".jsonl", ".gz", ".zst")
log = logging.getLogger(__name__)
Facts = Mapping[str, Any]  # the counts of a stage that ended
Counts = Facts | None


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A pipeline step: its fields are its flags, its docstring is its help, `work` does its work."""

    name: ClassVar[str] = ""
    default_split: ClassVar[str] = "test"  # of a data set, without --split; "" for all splits
    summarizes_streams: ClassVar[bool] = False  # whether the summary is logged for standard output, too
    prepare_reads_texts: ClassVar[bool] = False  # so that a dry run with a pipe has to do without `prepare`
    code: tuple[str, ...] = option(
        "Python module to import, so that files (a checkpoint, an index) may name its classes and functions; repeat the flag.",
        (),
        affects_result=False,
        group="Every stage",
    )

    data_set: tuple[str, str | None] | None = dataclasses.field(default=None, compare=False)  # --dataset and --split, for the next command

    def __init_subclass__(cls) -> None:
        cls.name = kebab_case(cls.__name__)

    def check(self) -> None:
        """Check settings that depend on one another, before anything is read or written; `check_settings` has checked each by itself."""

    def work(self) -> Counts:
        """Read the sources and write `output`; the returned counts go into the manifest."""
        raise NotImplementedError

    def prepare(self) -> Any:
        """Open and check what `work` reads, which calls this; a dry run ends with it."""

    def estimate(self, prepared: Any) -> list[str]:
        """Lines of `--dry-run` about the expected work; `prepared` is what `prepare` returned."""
        return []

    def summary(self, counts: Facts) -> str | None:
        """The key figure of the product, for the log line at the end; `counts` are those of `work`."""
        return None

    def next_command(self) -> str | None:
        """The command that usually follows, called when the product has its name. OUTPUT stands for that of this stage, CORPUS, QUERIES and
        QRELS for its source, QUERIES@SPLIT for those of its data set (of its own split without SPLIT), and the name after --output for a
        free one."""
        return None

    def find_source(self, part: str, split: str | None) -> str:
        """The source for a part of a data set, or, with a `split` ("": that of this stage), that part of --dataset; else it in capitals."""
        own = getattr(self, part, None) if split is None else None
        own = next(iter(own), None) if isinstance(own, tuple) else own
        if own is None and part == "qrels":
            own = data_sources.find_judgements(getattr(self, "queries", None))
        if own is not None and not is_stream(own) and data_sources.read_memory(own) is None:
            return str(own)
        dataset, own_split = self.data_set or (None, None)
        if dataset is not None:
            named, default = (None, split) if split else (own_split, self.default_split)
            with suppress(MoeirError):
                return data_sources.locate_part(dataset, part, named, default)[0]
        return part.upper()

    def process_group(self) -> "ProcessGroup | SingleProcess":
        """The processes that run the stage together; a stage for a single process refuses others by the lock of its output."""
        return SingleProcess()

    def execute(self, *, force: bool) -> None:
        """Execute the stage after its checks; a stage that gives shards to other processes overrides this."""
        process_group = self.process_group()
        with process_group.error_barrier(), _add_memory_advice(self):
            if process_group.is_main:
                with identity.hold_sources(), _open_outputs(self, process_group, force=force) as (stage, counts):
                    if stage is not None:
                        counts.update(stage.work() or {})
                return
            silence()
            partial_path = process_group.all_gather_object(None, START)[0]
            if partial_path is not None:  # else the product is up to date
                dataclasses.replace(self, output=Path(partial_path)).work()  # type: ignore[call-arg]
                process_group.all_gather_object(None, END)

    def product(self) -> tuple[Path, str] | None:
        """The output path and its kind."""
        products = [(getattr(self, item.name), item.kind) for item in settings.list_settings(type(self)) if item.role == "product"]
        return products[0] if products else None

    def outputs(self) -> dict[str, tuple[Path, str]]:
        """The files and folders that the stage writes, and their kinds, by flag; `work` finds their partial paths in the fields."""
        product = self.product()
        return {} if product is None or product[0] == STREAM else {"--output": product}

    def check_outputs(self, provenance: Mapping[str, Any], *, force: bool) -> None:
        """Refuse to replace what is not this stage's, in places beside its product that are known only while it works."""

    def describe_existing(self, *, is_current: bool) -> str:
        """What --dry-run says of an output that is there."""
        return "is up to date, and stays" if is_current else "exists, and is replaced"

    def find_current(self, provenance: Mapping[str, Any], *, force: bool) -> set[str]:
        """The flags of the outputs that are up to date; UsageError if one of the others may not be replaced."""
        outputs = {flag: path for flag, (path, _) in self.outputs().items()}
        known = {} if force or _find_stream(self) else outputs  # the content of a stream is unknown
        current = {flag for flag, path in known.items() if path.exists() and manifests.is_up_to_date(path, provenance)}
        if current != outputs.keys():
            self.check_outputs(provenance, force=force)
        for flag in outputs.keys() - current:
            atomic_write.check_overwrite(outputs[flag], provenance, force=force, flag=flag)
        return current

    def makes_folder(self) -> bool:
        """Whether the product is a folder."""
        return (product := self.product()) is not None and product[1] in FOLDER_KINDS

    def sources(self) -> Iterator[tuple[settings.Setting, Path]]:
        """Every file or folder that the stage reads, with its setting."""
        for setting in settings.list_settings(type(self)):
            if setting.role == "source" and (value := getattr(self, setting.name)) is not None:
                for item in value if setting.repeated else (value,):
                    path = split_run_name(item)[1] if setting.kind == "run" else item
                    sides = data_sources.split_judged(path) if setting.kind == "texts" else (path,)
                    yield from ((setting, Path(side)) for side in sides if side is not None)


def is_stream(path: Path) -> bool:
    """Whether a path can be read once only, and has no digest: `-`, a pipe, or whatever else is neither a file nor a folder."""
    return path == STREAM or (path.exists() and not path.is_file() and not path.is_dir())


def split_run_name(path: Path) -> tuple[str | None, Path]:
    """The name, without a slash, and the path of a run given as NAME=PATH; no name if it is the path of a file.

    >>> split_run_name(Path("bm25=runs/first.trec")), split_run_name(Path("runs/k1=0.9.trec"))
    (('bm25', PosixPath('runs/first.trec')), (None, PosixPath('runs/k1=0.9.trec')))
    """
    name, equals, rest = str(path).partition("=")
    return (name, Path(rest)) if name and equals and rest and "/" not in name and not path.exists() else (None, path)


class SingleProcess:
    """A process group of one, with the object exchange of `ProcessGroup`."""

    is_main, size = True, 1
    error_barrier = nullcontext  # no other process needs to learn of an error

    def all_gather_object(self, message: Any, moment: str) -> list[Any]:
        """The objects of all processes: that of this one."""
        return [message]


@contextmanager
def _add_memory_advice(stage: Stage) -> Iterator[None]:
    """Explain an out-of-memory error: what was wanted, and which flags of the stage need less."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        advice = [hint for name, hint in MEMORY_ADVICE.items() if name in {setting.name for setting in settings.list_settings(type(stage))}]
        if not advice or not is_out_of_memory(problem):
            raise
        raise OutOfMemory(f"out of memory ({' '.join(str(problem).split())[:200]}); {', '.join(advice)}") from problem


def check_settings(stage: Stage) -> None:
    """UsageError if a setting is outside its limits, settings contradict one another, or two sources are standard input."""
    for module in stage.code:
        variants.import_own_code(module)
    for setting in settings.list_settings(type(stage)):
        value = getattr(stage, setting.name)
        setting.check(value)
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path):
                _check_symlinks(setting.flag, path)
        if setting.package and value is not None:
            variants.import_code_of(value)
            variants.resolve_spec(setting.package, value)
    settings.check_combinations(stage)
    outputs = stage.outputs()
    for flag, (path, _) in outputs.items():
        _check_output_name(flag, path)
        _check_output_path(stage, flag, path)
    stage.check()
    for (flag, (path, _)), (other_flag, (other, _)) in permutations(reversed(outputs.items()), 2):
        if path.resolve().is_relative_to(other.resolve()):
            raise UsageError(f"{flag} {path}: {other_flag} writes there; name another file")
    product = stage.product()
    if product is not None and STREAM in (product[0], product[0].parent) and stage.makes_folder():
        raise UsageError("--output -: the output is a folder; name one")
    flags = [setting.flag for setting, path in stage.sources() if path == STREAM]
    if len(flags) > 1:
        raise UsageError(f"{flags[0]} - and {flags[1]} -: standard input can be read once; name a file for one of them")


def _check_output_name(flag: str, path: Path) -> None:
    """UsageError if nothing can be renamed to the path of an output."""
    if path.name in ("", ".."):
        raise UsageError(f"{flag} {path}: expected the name of a file or a folder to write")
    if flag != "--output" and (path == STREAM or path.is_dir()):
        raise UsageError(f"{flag} {path}: expected a file to write")
    if path.name.endswith(manifests.MANIFEST):
        raise UsageError(f"{flag} {path}: is the name of a manifest; choose another")
    if (size := len(os.fsencode(path.name))) > atomic_write.MAX_NAME_BYTES:
        reason = "files beside it have longer names while it is written"
        raise UsageError(f"{flag} {path}: a name of {size} bytes; expected at most {atomic_write.MAX_NAME_BYTES}, as {reason}")


def _check_symlinks(flag: str, path: Path) -> None:
    """UsageError if symbolic links of a path lead to one another and to no file."""
    try:
        path.resolve()
    except RuntimeError:
        raise UsageError(f"{flag} {path}: symbolic links that lead in a circle; remove them, or name another path") from None


def _check_exists(path: Path, setting: settings.Setting) -> None:
    """DataError or ArtifactError if a file or a checkpoint is missing, before heavy libraries are loaded and processes connect."""
    if path != STREAM and not data_sources.is_remote(path) and data_sources.read_memory(path) is None and not path.exists():
        if setting.kind != "training" and (words := describe_unfinished(path)):
            raise ArtifactError(f"{path}: {words}")
        if setting.kind in (*TEXT_KINDS, ANYTHING):
            raise DataError(f"{path}: no such file{' or folder' if setting.kind == ANYTHING else ''} ({setting.flag})")
        if setting.kind == "checkpoint":
            raise ArtifactError(f"{path}: no such checkpoint")


def _check_output_path(stage: Stage, flag: str, path: Path) -> None:
    """UsageError if an output is a source, inside a source or around one."""
    resolved = path.resolve()
    for source_flag, source in _list_read_paths(stage):
        resolved_source = Path(os.path.realpath(source))
        if resolved_source.is_relative_to(resolved):
            raise UsageError(f"{flag} {path}: would replace what {source_flag} reads, {source}; write elsewhere")
        if not source.is_file() and resolved.is_relative_to(resolved_source):
            raise UsageError(f"{flag} {path}: is inside the folder that {source_flag} reads, {source}; write elsewhere")


def _list_read_paths(stage: Stage) -> Iterator[tuple[str, Path]]:
    """The sources of a stage, by flag, and the checkpoints that indexes and encodings among them refer to."""
    for setting, source in stage.sources():
        if source != STREAM:
            yield setting.flag, source
        for folder in (source, *shards.finished_shards(source).values()) if setting.kind in FOLDER_KINDS else ():
            with suppress(TypeError, KeyError, ValueError):  # no manifest, or one without a checkpoint
                manifest: Any = read_json(folder / manifests.MANIFEST)
                yield setting.flag, Path(os.path.realpath(folder / manifest["counts"]["checkpoint"]["path"]))


def run_stage(stage: Stage, *, force: bool = False, single_process: bool = True) -> None:
    """Run a stage unless its output is up to date. Several processes report a missing source only once, after they have connected."""
    check_settings(stage)
    if single_process:
        for setting, path in stage.sources():
            _check_exists(path, setting)
    stage.execute(force=force)


@contextmanager
def _open_outputs(
    stage: Stage, process_group: "ProcessGroup | SingleProcess", *, force: bool
) -> Iterator[tuple[Stage | None, dict[str, Any]]]:
    """The stage with the partial paths of its outputs, and the counts for their manifests; no stage if all are up to date. The outputs get
    their names when the block has ended."""
    stream = _find_stream(stage)
    if stream is not None and process_group.size > 1:
        raise UsageError(f"{stream[0]} {stream[1]}: {process_group.size} processes cannot share a pipe; name a file")
    provenance, outputs = build_provenance(stage), stage.outputs()
    path, kind = outputs.get("--output", (STREAM, ""))
    current = stage.find_current(provenance, force=force)
    if path != STREAM and current == outputs.keys():
        atomic_write.clean_leftovers(path, provenance)
        log.info("%s: already made with these settings and sources; --force makes it again", path)
        process_group.all_gather_object(None, START)
        yield None, {}
        return
    with ExitStack() as stack:
        fields, counts = dict[str, Any](), dict[str, Any]()
        for flag, (output, output_kind) in reversed(outputs.items()):  # the main one is the first to be finished
            is_folder = flag == "--output" and stage.makes_folder()
            fields[flag.removeprefix("--")], counts = stack.enter_context(
                atomic_write.atomic_output(
                    output, output_kind, provenance, force=force or stream is not None, folder=is_folder, discard=flag in current
                )
            )
        process_group.all_gather_object(str(fields.get("output")), START)
        yield dataclasses.replace(stage, **fields), counts
        identity.confirm_held()
        if kind == "checkpoint":
            atomic_write.write_text_atomically(fields["output"] / "settings.yaml", settings.to_yaml(stage))
    process_group.all_gather_object(None, END)
    if "--output" in current:
        log.info("%s: was already made, and stays; made %s", path, ", ".join(str(outputs[flag][0]) for flag in outputs.keys() - current))
    elif path != STREAM:
        log_product(stage, path, stage.summary(counts))
    elif stage.summarizes_streams and counts and (figure := stage.summary(counts)):
        log.info("%s", figure)


def log_product(stage: Stage, path: Path, figure: str | None) -> None:
    """Log what a stage made, its key figure, and the next command."""
    log.info("made %s%s", path, f": {figure}" if figure else "")
    if words := suggest_next(stage):
        log.info("next: moeir %s", shlex.join(words))


def suggest_next(stage: Stage) -> list[str]:
    """The words of the next command, which reads texts and imports code as the stage did; none if none usually follows."""
    words: list[str] = []
    for word in shlex.split(stage.next_command() or ""):
        part, at, split = word.partition("@")
        if word == "OUTPUT":
            word = str((stage.product() or (STREAM,))[0])
        elif part in ("CORPUS", "QUERIES", "QRELS"):
            word = stage.find_source(part.lower(), split if at else None)
        elif words and words[-1] == "--output":
            path = Path(word)
            others = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
            word = str(next(other for other in chain([path], others) if not os.path.lexists(other)))
        words.append(word)
    if "--corpus" in words and getattr(stage, "keep_empty", False):
        words.append("--keep-empty")
    return [*words, *(word for module in sorted(_find_own_modules(stage)) if words for word in ("--code", module))]


def _find_stream(stage: Stage) -> tuple[str, Path] | None:
    """The flag and path of a source that is a stream."""
    return next(((setting.flag, source) for setting, source in stage.sources() if is_stream(source)), None)


def build_provenance(stage: Stage) -> dict[str, Any]:
    """What a product is made from: the stage, the settings that can change it, and the digests of its sources, which are checked."""
    provenance = {"stage": stage.name, "settings": settings.to_dict(stage, results_only=True), "sources": digest_sources(stage)}
    return dict(json.loads(json.dumps(provenance)))


def digest_sources(stage: Stage) -> dict[str, list[str]]:
    """The digests of the sources by flag, after a check of each, and those of the modules of own code that the settings name."""
    modules = sorted(_find_own_modules(stage))
    digests = {"code": [digest for module in modules for digest in variants.code_digest(module)]} if modules else {}
    for setting, path in stage.sources():
        digests.setdefault(setting.flag.removeprefix("--"), []).append(_digest_source(path, setting))
    for setting in settings.list_settings(type(stage)):
        values = getattr(stage, setting.name) if setting.kind == "run" and setting.repeated else ()
        if any(names := [split_run_name(path)[0] or "" for path in values]):
            digests[f"{setting.flag.removeprefix('--')}-names"] = names
    return digests


def _find_own_modules(stage: Stage) -> set[str]:
    """The modules of own code that the user named, also in `EXPERT=SPEC`."""
    values = [getattr(stage, setting.name) for setting in settings.list_settings(type(stage)) if setting.role == "option"]
    texts = [text for value in values for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)]
    specs = (text.partition("=")[2] if ":" not in text.partition("=")[0] and "=" in text else text for text in texts)
    return {*stage.code, *(module for spec in specs if (module := variants.own_module(spec)) and module in sys.modules)}


def _digest_source(path: Path, setting: settings.Setting) -> str:
    """The digest of one source, after a check that it exists and has the right kind."""
    if is_stream(path):
        return "stdin"
    if (content := data_sources.read_memory(path)) is not None:
        return hashlib.sha256(content).hexdigest()
    if setting.kind == "training":
        from moeir.analysis.training_monitor import find_metrics

        metrics_file = find_metrics(path)
        manifests.verify_file(metrics_file)
        return manifests.compute_sha256(metrics_file)
    if setting.kind in (*TEXT_KINDS, ANYTHING):
        if data_sources.is_remote(path):
            return str(path)
        _check_exists(path, setting)
        identity.hold(path)
        if path.is_dir() and setting.kind not in (ANYTHING, "examples"):
            raise DataError(f"{path}: expected a file for {setting.flag}, found a folder")
        if setting.kind == "fusion":
            manifests.verify_file(path)
        return manifests.compute_digest(path)
    if setting.kind == "weights":
        return _digest_weights(path, setting)
    files = shards.verify_encodings(path) if setting.kind == "encodings" else manifests.verify_artifact(path, setting.kind)["files"]
    return manifests.digest_files(files)


def checkpoint_reference(model: Path, product: Path, digests: Mapping[str, str]) -> dict[str, Any]:
    """The path of a checkpoint, relative to the artifact unless it is missing, and its digests."""
    path = os.path.relpath(model.resolve(), atomic_write.final_path(product).resolve()) if model.is_dir() else str(model.resolve())
    return {"checkpoint": {"path": path, **{name: digest for name, digest in digests.items() if name != "path"}}}


def _digest_weights(path: Path, setting: settings.Setting) -> str:
    """The digest of a moeir checkpoint or a folder of plain weights; any other name is taken as a hub id."""
    if (path / manifests.MANIFEST).is_file():
        return manifests.digest_files(manifests.verify_artifact(path, "checkpoint")["files"])
    if words := describe_unfinished(path):
        raise ArtifactError(f"{path}: {words}")
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        identity.hold(path)
        return manifests.compute_digest(path)
    if path.exists() or path.is_absolute() or str(path).startswith(".") or len(path.parts) > 2:
        raise UsageError(f"{path}: expected a folder with config.json and model.safetensors, a GGUF file, or a hub id ({setting.flag})")
    return f"hub:{path}"


def dry_run(stage: Stage, *, force: bool) -> list[str]:
    """The lines of `--dry-run`: what a run would read, write and spend; settings, sources and outputs are checked as in a run."""
    check_settings(stage)
    provenance, outputs, stream = build_provenance(stage), stage.outputs(), _find_stream(stage)
    current = stage.find_current(provenance, force=force)
    for flag in outputs.keys() - current:
        is_folder = flag == "--output" and stage.makes_folder()
        atomic_write.check_writable(outputs[flag][0], provenance, force=force or stream is not None, folder=is_folder)
    lines = [f"read   {item.flag} {path} ({'a stream' if is_stream(path) else _describe_size(path)})" for item, path in stage.sources()]
    if (product := stage.product()) is not None:
        path, kind = product
        free = "" if path == STREAM else f", {format_bytes(shutil.disk_usage(_find_nearest_folder(path)).free)} free there"
        lines.append(f"write  --output {path} ({kind}{free})")
        if path.exists() and path != STREAM:
            lines.append(f"note   {path} {stage.describe_existing(is_current='--output' in current)}")
    return lines if stream and stage.prepare_reads_texts else lines + [f"spend  {line}" for line in stage.estimate(stage.prepare())]


def _describe_size(path: Path) -> str:
    path = path if path.exists() else atomic_write.partial_path(path)  # of a training in progress
    if path.is_dir():
        return format_bytes(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    return format_bytes(path.stat().st_size) if path.exists() else "not a local file"


def _find_nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
