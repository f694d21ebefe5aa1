"""Every stage as a Python function with the names of its flags: `moeir.finetune(model=…, train=…, output=…)`.

A function does exactly what the command does, and returns what was made: a checkpoint opened, an index ready to search, a run. Inputs are
paths, as on the command line, or values: texts, judgements, runs and examples, whose lines stay in memory. Where a command writes to
standard output, the function returns the content instead.
"""

import inspect
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from moeir import data_sources, settings
from moeir.errors import DataError, MoeirError, UsageError
from moeir.parsing import LARGEST_INTEGER, preview, suggest
from moeir.records.examples import Example, example_to_record, read_examples
from moeir.records.generated_queries import read_generated_queries
from moeir.records.lines import STANDARD_OUTPUT, write_lines
from moeir.records.qrels import write_qrels
from moeir.records.runs import Run, read_run, write_run
from moeir.records.texts import Text, parse_id, to_record, write_json_lines
from moeir.stages import STAGES, stage_class
from moeir.stages.base import STREAM, Stage, run_stage

VALUES = {"texts": ".jsonl", "examples": ".jsonl", "qrels": ".tsv", "ids": ".txt"}  # kind of input -> suffix of its file in memory
DATA_FORMS = {"evaluate": "json", "analyze": "jsonl", "info": "json"}  # which these stages print for a function that returns no text


class Evaluation(dict[str, dict[str, float]]):
    """Means by run and measure: `evaluation["bm25"]["nDCG@10"]`.

    `details` has all that `moeir evaluate --form json` writes: intervals and p-values.
    """

    def __init__(self, details: dict[str, Any]) -> None:
        self.details = details
        groups = {name: list(labels.values())[-1] for name, labels in details["runs"].items()}
        super().__init__({name: {measure: entry["mean"] for measure, entry in values.items()} for name, values in groups.items()})

    def __repr__(self) -> str:
        from moeir.evaluation import tables

        return tables.format_table(["run", *next(iter(self.values()))], [[run, *means.values()] for run, means in self.items()])


def stage_function(name: str) -> Callable[..., Any]:
    """The Python function of a stage: its keywords are the stage's flags."""
    stage, python_name = stage_class(name), name.replace("-", "_")
    known = {setting.name: setting for setting in (*settings.list_settings(stage), *settings.list_shorthands(stage))}

    def function(*arguments: Any, force: bool = False, **values: Any) -> Any:
        if unknown := next((key for key in values if key not in known), None):
            raise UsageError(f"moeir.{python_name} has no {unknown!r}{suggest(unknown, known)}")
        return _run_stage(stage, known, signature.bind_partial(*arguments, **values).arguments, force=force)

    parameters = [_make_parameter(setting) for setting in known.values()]
    parameters.append(inspect.Parameter("force", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool))
    signature = inspect.Signature(sorted(parameters, key=lambda one: one.kind))
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = python_name
    function.__module__ = "moeir"
    described = "".join(f"\n    {setting.name}: {setting.help}" for setting in known.values())
    function.__doc__ = (
        f"{inspect.getdoc(stage)}\n\nKeywords, as the flags of `moeir {name}`:{described}\n    force: Replace an existing output."
    )
    return function


def _make_parameter(setting: settings.Setting) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if setting.role == "argument" else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if setting.required and not setting.part else None if setting.required else setting.default
    return inspect.Parameter(setting.name, kind, default=default)


def _run_stage(stage_type: type[Stage], known: Mapping[str, settings.Setting], values: Mapping[str, Any], *, force: bool) -> Any:
    with data_sources.memory_folder() as folder:
        flags = {name: _to_setting(known[name], value, folder) for name, value in values.items() if value is not None}
        to_stream = "output" not in known or str(flags.get("output", known["output"].default)) == str(STREAM)
        as_data = to_stream and stage_type.name in DATA_FORMS and not any(map(flags.get, ("form", "per_query")))
        stage = settings.build_stage(stage_type, flags | ({"form": DATA_FORMS[stage_type.name]} if as_data else {}))
        text = _run_with_output(stage, force=force)
        path, kind = stage.product() or (STREAM, "text")
        if path == STREAM and as_data:
            return _parse_data(stage.name, text)
        if path == STREAM and kind in ("run", "texts", "examples"):
            path = folder / f"output{'.trec' if kind == 'run' else '.jsonl'}"
            write_lines(text.split("\n")[:-1], path)
        return text if path == STREAM else _open_product(path, kind)


def _run_with_output(stage: Stage, *, force: bool) -> str:
    """Run a stage and return what it writes to standard output, which is a note of its error, too."""
    output = io.BytesIO()
    token = STANDARD_OUTPUT.set(output)
    try:
        run_stage(stage, force=force)
    except MoeirError as problem:
        problem.add_note(output.getvalue().decode())
        raise
    finally:
        STANDARD_OUTPUT.reset(token)
    return output.getvalue().decode()


def _parse_data(stage: str, text: str) -> Any:
    """What a stage has written in its form of DATA_FORMS."""
    if stage == "analyze":
        return [json.loads(line) for line in text.split("\n")[:-1]]
    return Evaluation(json.loads(text)) if stage == "evaluate" else json.loads(text)


def _open_product(path: Path, kind: str) -> Any:
    if kind == "checkpoint":
        from moeir.architectures.checkpoint import open_checkpoint

        return open_checkpoint(path)
    if kind == "encodings":
        from moeir.representations.encodings import open_encodings

        return open_encodings(path)
    if kind == "index":
        from moeir.retrieval.searcher import open_index

        return open_index(path, verified=True)
    if kind == "run":
        return {file.stem: _read_run(file) for file in sorted(path.glob("*.trec"))} if path.is_dir() else _read_run(path)
    if kind == "fusion":
        from moeir.fusion.files import read_fusion

        return read_fusion(path)
    if kind in ("texts", "examples"):
        return list(read_generated_queries(path, allow_empty=True) if kind == "texts" else read_examples(path))
    return path


def _read_run(path: Path) -> Run:
    """The run of a stage, which has no line if no query found a document."""
    content = data_sources.read_memory(path)
    return read_run(path) if (path.stat().st_size if content is None else content) else Run.from_hits({})


def _to_setting(setting: settings.Setting, value: Any, folder: Path) -> Any:
    """The value of a setting; of texts, judgements, runs and examples the path of a file in memory."""
    if _is_path(value):
        return os.fspath(value)
    if setting.role != "source" and setting.role != "product":
        return list(value) if setting.repeated and isinstance(value, Iterable) else _check_plain(setting, value)
    if setting.kind == "run" and setting.role == "source":
        return _to_run_paths(setting, value, folder)
    if setting.repeated and isinstance(value, list | tuple) and value and all(map(_is_path, value)):
        return [os.fspath(one) for one in value]
    if setting.kind not in VALUES or setting.role == "product":
        raise UsageError(f"{setting.name}: expected a path, found {type(value).__name__}")
    path = folder / f"{setting.name}{VALUES[setting.kind]}"
    try:
        if setting.kind == "qrels":
            if not isinstance(value, Mapping) or not all(isinstance(grades, Mapping) for grades in value.values()):
                raise UsageError(f"{setting.name}: expected a path or query → document → grade, found {str(value)[:60]}")
            write_qrels(value, path)
        elif setting.kind == "ids":
            if not isinstance(value, Iterable):
                raise UsageError(f"{setting.name}: expected a path or ids, found {type(value).__name__}")
            write_lines((parse_id(_to_python(name), setting.name) for name in value), path)
        else:
            write_json_lines(_iter_records(value, setting), path)
    except TypeError as problem:
        raise UsageError(f"{setting.name}: cannot be written as lines: {problem}") from None
    return path


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _check_plain(setting: settings.Setting, value: Any) -> Any:
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:  # Python refuses to print very large numbers
        raise UsageError(f"{setting.name}: expected a whole number of 64 bits")
    if not isinstance(value, bool | int | float | np.generic):
        raise UsageError(f"{setting.name}: expected one plain value, found {type(value).__name__}")
    return value


def _to_run_paths(setting: settings.Setting, value: Any, folder: Path) -> Any:
    """The paths of runs, NAME=PATH for those of a mapping of names to paths; a run in memory is a file that has its name."""
    named: Mapping[Any, Any] = value if isinstance(value, Mapping) and not _is_hits(value) else {}
    if not isinstance(value, Mapping | Run | Iterable):
        raise UsageError(f"{setting.name}: expected a path, a run or several, found {type(value).__name__}")
    runs: list[Any] = list(named.values()) if named else [value] if isinstance(value, Run | Mapping) else list(value)
    paths: list[str] = []
    for run, name in zip(runs, named or itertools.repeat(None)):
        if named and (not isinstance(name, str) or not name or "/" in name or len(name.encode()) > 200 or ("=" in name and _is_path(run))):
            raise UsageError(f"{setting.name}: the name of a run is a short text without / (and without = for a path), found {name!r}")
        if _is_path(run):
            paths.append(f"{name}={os.fspath(run)}" if named and setting.repeated else os.fspath(run))
        else:
            paths.append(str(_write_run(run, name, folder, setting)))
    if not setting.repeated and len(paths) != 1:
        raise UsageError(f"{setting.name}: expected one run, found {len(paths)}")
    return paths if setting.repeated else paths[0]


def _is_hits(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is one run, query → documents, rather than runs by name."""
    first: Any = next(iter(value.values()), {})
    if isinstance(first, Mapping):
        return not any(isinstance(one, Mapping | list | tuple) for one in first.values())
    return isinstance(first, list | tuple)


def _write_run(run: Any, name: str | None, folder: Path, setting: settings.Setting) -> Path:
    whole = run if isinstance(run, Run) else _run_from_hits(run, f"{setting.name} {name}" if name else setting.name)
    stem, files = (name or whole.tag).replace("/", "_"), data_sources.memory_files(folder / "run") or {}
    names = (f"{stem}.trec" if number == 1 else f"{stem}-{number}.trec" for number in itertools.count(1))
    path = folder / next(free for free in names if free not in files)
    write_run(whole, path)
    return path


def _run_from_hits(hits: Any, where: str) -> Run:
    if not isinstance(hits, Mapping):
        raise UsageError(f"{where}: expected a run or query → document → score, found {type(hits).__name__}")
    lists = {}
    for query, documents in hits.items():
        try:
            pairs = documents.items() if isinstance(documents, Mapping) else documents
            lists[query] = [(document, float(score)) for document, score in pairs]
        except (TypeError, ValueError):
            expected = "document → score, or pairs of them"
            raise UsageError(f"{where}: query {query!r}: expected {expected}, found {str(documents)[:60]}") from None
    try:
        return Run.from_hits(lists)
    except DataError as problem:
        raise DataError(f"{where}: {problem}") from None


def _to_python(value: Any) -> Any:
    """The Python value of a scalar of numpy; any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _iter_records(value: Any, setting: settings.Setting) -> Iterable[Mapping[str, Any]]:
    """The records of texts or examples: an id → text mapping, or records, texts or examples one after the other."""
    expected = "expected paths, records or an id → text mapping"
    if not isinstance(value, Iterable):
        raise UsageError(f"{setting.name}: {expected}, found {type(value).__name__}")
    if isinstance(value, Mapping):
        value = [{**(item if isinstance(item, Mapping) else {"text": item}), "_id": name} for name, item in value.items()]
    for number, item in enumerate(value, 1):
        if not isinstance(item, Text | Example | Mapping):
            raise UsageError(f"{setting.name}: {expected}, found {type(item).__name__}")
        record = to_record(item) if isinstance(item, Text) else example_to_record(item) if isinstance(item, Example) else item
        fields = {name: _to_python(field) for name, field in record.items()}
        for name, field in fields.items():
            if not isinstance(field, str | int | float | list | tuple | dict | None):
                raise UsageError(f"{setting.name}: record {number}: {name} cannot be written as JSON: {preview(field)}")
        yield fields


def __getattr__(name: str) -> Any:
    if name.replace("_", "-") not in STAGES:
        raise AttributeError(f"moeir.functions has no {name!r}")
    return globals().setdefault(name, stage_function(name.replace("_", "-")))
