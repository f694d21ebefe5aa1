"""Every stage as a Python function with the names of its flags: `moeir.finetune(model=…, train=…, output=…)`.

A function does exactly what the command does, and returns what was made: a checkpoint opened, an index ready to search, a run. Inputs are
paths, as on the command line, or what is in memory: texts, judgements, runs and examples. Where a command writes to standard output, the
function returns the content instead.
"""

import contextlib
import inspect
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moeir import settings, variants
from moeir.errors import UsageError
from moeir.records.examples import Example, example_to_record, read_examples
from moeir.records.generated_queries import read_generated_queries
from moeir.records.qrels import write_qrels
from moeir.records.runs import Run, read_run, write_run
from moeir.records.texts import Text, read_json_lines, to_record, write_json_lines
from moeir.stages import STAGES, stage_class
from moeir.stages.base import STREAM, Stage, run_stage

IN_MEMORY = {"texts": "queries.jsonl", "examples": "examples.jsonl", "qrels": "qrels.tsv"}  # kind of input -> file it is written to


class Evaluation(Mapping[str, dict[str, float]]):
    """Means by run and measure: `evaluation["bm25"]["nDCG@10"]`.

    `details` has all that `moeir evaluate --form json` writes: intervals, differences to the first run, effect sizes and p-values.
    """

    def __init__(self, details: dict[str, Any]) -> None:
        self.details = details
        groups = {name: list(labels.values())[-1] for name, labels in details["runs"].items()}
        self._means = {name: {measure: entry["mean"] for measure, entry in values.items()} for name, values in groups.items()}

    def __getitem__(self, run: str) -> dict[str, float]:
        return self._means[run]

    def __iter__(self) -> Iterator[str]:
        return iter(self._means)

    def __len__(self) -> int:
        return len(self._means)

    def __repr__(self) -> str:
        from moeir.evaluation import result_tables, tables

        labels = [list(labels.values())[-1] for labels in self.details["runs"].values()]
        comparison = result_tables.Comparison(self.details["test"], self.details["correction"])
        has_p = len(labels) > 1 and comparison.test != "none"
        header = [column for measure in labels[0] for column in (measure, comparison.p_header)[: 1 + has_p]]
        rows = [[name, *(cell for one in entries.values()
                         for cell in (one["mean"], result_tables.format_p(one["p"]) if "p" in one else "")[: 1 + has_p])]
                for name, entries in zip(self.details["runs"], labels, strict=True)]  # fmt: skip
        return tables.format_table(["run", *header], rows)


def stage_function(name: str) -> Callable[..., Any]:
    """The Python function of a stage: its keywords are the stage's flags."""
    stage, python_name = stage_class(name), name.replace("-", "_")
    stage_settings = (*settings.list_settings(stage), *settings.list_shorthands(stage))

    def function(*arguments: Any, force: bool = False, **values: Any) -> Any:
        names = [setting.name for setting in stage_settings if setting.role == "argument"]
        if len(arguments) > len(names):
            raise TypeError(
                f"moeir.{python_name} takes keywords, the names of the flags; found {len(arguments) - len(names)} values without one"
            )
        known = [setting.name for setting in stage_settings]
        for key in values:
            if key not in known:
                raise UsageError(f"moeir.{python_name} has no {key!r}{variants.suggest(key, known)}")
        return run_function(stage, dict(zip(names, arguments, strict=False)) | values, force=force)

    parameters = [_parameter(setting) for setting in stage_settings]
    parameters.append(inspect.Parameter("force", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool))
    function.__signature__ = inspect.Signature(sorted(parameters, key=lambda one: one.kind))  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = python_name
    function.__module__ = "moeir"
    described = "".join(f"\n    {setting.name}: {setting.help}" for setting in stage_settings)
    function.__doc__ = (
        f"{inspect.getdoc(stage)}\n\nKeywords, as the flags of `moeir {name}`:{described}\n    force: Replace an existing output."
    )
    return function


def _parameter(setting: settings.Setting) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if setting.role == "argument" else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if setting.required and not setting.part else None if setting.required else setting.default
    return inspect.Parameter(setting.name, kind, default=default)


def run_function(stage_type: type[Stage], values: Mapping[str, Any], *, force: bool = False) -> Any:
    """Run a stage with Python values and return what it made."""
    stage_settings = {setting.name: setting for setting in (*settings.list_settings(stage_type), *settings.list_shorthands(stage_type))}
    with tempfile.TemporaryDirectory(prefix="moeir-") as folder:
        given = {name: _to_paths(stage_settings[name], value, Path(folder)) for name, value in values.items()}
        to_stream = "output" in stage_settings and str(given.get("output", stage_settings["output"].default)) == str(STREAM)
        as_data = to_stream and stage_type.name in ("evaluate", "analyze") and not ({"form", "per_query", "explain"} & given.keys())
        if as_data:
            given["form"] = "json" if stage_type.name == "evaluate" else "jsonl"
        if stage_type.name == "info":
            given.setdefault("form", "json")
        if to_stream:
            given["output"] = Path(folder) / f"{stage_settings['output'].kind}{'.trec' if stage_settings['output'].kind == 'run' else ''}"
        stage = settings.build_stage(stage_type, given)
        if "output" not in stage_settings:
            return _run_with_text(stage, parse=given.get("form") == "json" and stage.name == "info")
        run_stage(stage, force=force)
        return _open_product(stage, as_data=as_data, is_temporary=to_stream)


def _run_with_text(stage: Stage, *, parse: bool) -> Any:
    """Run a stage that writes to standard output only, and return the text, or the JSON value that it is."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        run_stage(stage)
    return json.loads(output.getvalue()) if parse else output.getvalue()


def _open_product(stage: Stage, *, as_data: bool, is_temporary: bool) -> Any:
    product = stage.product()
    assert product is not None
    path, kind = product
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
        return {file.stem: read_run(file) for file in sorted(path.glob("*.trec"))} if path.is_dir() else read_run(path)
    if kind == "fusion":
        from moeir.fusion.files import read_fusion

        return read_fusion(path)
    if kind in ("texts", "examples"):
        return list(read_generated_queries(path, allow_empty=True) if kind == "texts" else read_examples(path))
    if as_data and kind == "evaluation":
        return Evaluation(json.loads(path.read_text(encoding="utf-8")))
    if as_data:
        return [record for _, record in read_json_lines(path)]
    return path.read_text(encoding="utf-8") if is_temporary else path


def _to_paths(setting: settings.Setting, value: Any, folder: Path) -> Any:
    """The value of a setting with what is in memory written to files of `folder`."""
    if setting.role != "source" or value is None or _is_path(value):
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if setting.kind == "run":
        named = value if isinstance(value, Mapping) and not _is_hits(value) else {}
        runs = list(named.values()) if named else [value] if isinstance(value, Run | Mapping) else list(value)
        paths = [one if _is_path(one) else _write_run(one, name, folder) for one, name in zip(runs, [*named, *[None] * len(runs)])]
        return paths if setting.repeated else paths[0]
    if isinstance(value, list | tuple) and all(map(_is_path, value)):
        return [str(one) for one in value]
    if setting.kind not in IN_MEMORY:
        raise UsageError(f"{setting.name}: expected a path, found {type(value).__name__}")
    path = _free_path(folder, f"{setting.name}-{IN_MEMORY[setting.kind]}")
    if setting.kind == "qrels":
        write_qrels(value, path)
    else:
        write_json_lines(_records(value, setting), path)
    return path


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike)


def _is_hits(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is one run, query → documents, rather than runs by name."""
    first: Any = next(iter(value.values()), {})
    if isinstance(first, Mapping):
        return not any(isinstance(one, Mapping) for one in first.values())
    return isinstance(first, list | tuple)


def _write_run(run: Run | Mapping[str, Any], name: str | None, folder: Path) -> Path:
    whole = run if isinstance(run, Run) else Run.from_hits(run)
    path = _free_path(folder, re.sub(r"[^-.\w]+", "_", name or whole.tag) + ".trec")
    write_run(whole, path)
    return path


def _free_path(folder: Path, name: str) -> Path:
    stem, _, suffix = name.rpartition(".")
    return next(
        path for number in range(1, 10**6) if not (path := folder / (name if number == 1 else f"{stem}-{number}.{suffix}")).exists()
    )


def _records(value: Any, setting: settings.Setting) -> Iterable[Mapping[str, Any]]:
    """The records of texts or examples: an id → text mapping, or records, texts or examples one after the other."""
    if isinstance(value, Mapping):
        value = [{"_id": name, "text": text} if isinstance(text, str) else {"_id": name, **text} for name, text in value.items()]
    for item in value:
        if not isinstance(item, Text | Example | Mapping):
            raise UsageError(f"{setting.name}: expected paths, records or an id → text mapping, found {type(item).__name__}")
        yield to_record(item) if isinstance(item, Text) else example_to_record(item) if isinstance(item, Example) else item


def __getattr__(name: str) -> Any:
    if name.replace("_", "-") not in STAGES:
        raise AttributeError(f"moeir.functions has no {name!r}")
    return globals().setdefault(name, stage_function(name.replace("_", "-")))
