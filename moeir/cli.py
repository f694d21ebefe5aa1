"""The `moeir` command: stages as typer commands, errors as one line and an exit code."""

import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import typer

from moeir import __version__, console, settings
from moeir.errors import MoeirError, is_out_of_memory
from moeir.stages import base

STAGES = (
    "init", "generate-queries", "pretrain", "finetune", "mine-negatives", "encode", "index", "search", "learn-fusion", "fuse", "rerank",
    "evaluate", "analyze", "report", "check", "convert", "export", "info", "variants",
)  # fmt: skip
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH"}
log = logging.getLogger(__name__)
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch then uses large pages, which speeds up training


def build_app(stages: Sequence[str] = STAGES) -> typer.Typer:
    """The typer application with a command for each of the stages."""
    app = typer.Typer(
        name="moeir",
        help="Mixture-of-experts retrieval: train, encode, index, search, fuse, evaluate. Each stage reads and writes files.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    app.callback()(_root_callback)
    for name in stages:
        stage = stage_class(name)
        help_text = " ".join((inspect.getdoc(stage) or "").split())
        app.command(name=name, help=help_text, short_help=help_text.split(". ")[0].rstrip("."), no_args_is_help=_has_required(stage))(
            _build_command(stage)
        )
    return app


def stage_class(name: str) -> type[base.Stage]:
    """The dataclass behind a command: `mine-negatives` is MineNegatives in stages/mine_negatives.py."""
    module = importlib.import_module(f"moeir.stages.{name.replace('-', '_')}")
    stage: type[base.Stage] = getattr(module, "".join(word.capitalize() for word in name.split("-")))
    stage.name = name
    return stage


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"moeir {__version__}\n")
        raise typer.Exit


def _root_callback(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
) -> None:
    """Options before a stage."""


def _has_required(stage: type[base.Stage]) -> bool:
    return any(setting.required for setting in settings.list_settings(stage))


def _build_command(stage: type[base.Stage]) -> Callable[..., None]:
    parameters = [_build_parameter(setting) for setting in settings.list_settings(stage)]
    has_output = any(setting.role == "product" for setting in settings.list_settings(stage))
    parameters += [
        _common_option("config", "--config", "YAML file of settings, keys as the flags; flags override it.", Path | None, metavar="FILE"),
        _common_option("show", "--show", "Print the resolved settings as YAML and stop.", bool),
        _common_option("dry_run", "--dry-run", "Print what would be read, written and spent, and stop.", bool),
    ]
    if has_output:
        parameters.append(_common_option("force", "--force", "Replace an existing --output; discard unfinished work.", bool))

    def command(*, config: Path | None, show: bool, dry_run: bool, force: bool = False, **values: Any) -> None:
        _dispatch(settings.build_stage(stage, values, config), show=show, dry_run=dry_run, force=force)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = stage.name.replace("-", "_")
    return command


def _dispatch(stage: base.Stage, *, show: bool, dry_run: bool, force: bool) -> None:
    if show:
        sys.stdout.write(settings.to_yaml(stage))
    elif dry_run:
        sys.stdout.writelines(f"{line}\n" for line in base.dry_run(stage))
    else:
        base.run_stage(stage, force=force, single_process="LOCAL_RANK" not in os.environ)


def _common_option(name: str, flag: str, help: str, annotation: Any, metavar: str | None = None) -> inspect.Parameter:
    default = typer.Option(False if annotation is bool else None, flag, help=help, metavar=metavar, rich_help_panel="Every stage")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _build_parameter(setting: settings.Setting) -> inspect.Parameter:
    help, switch = setting.help + _default_hint(setting), setting.annotation == "bool"
    annotation: Any = bool | None if switch else (list[str] | None if setting.repeated else str | None)
    if setting.role == "argument":
        default = typer.Argument(None, help=help, metavar=setting.name.upper())
    else:
        flags = [f"{setting.flag}/--no-{setting.flag.removeprefix('--')}" if switch else setting.flag, *setting.aliases]
        default = typer.Option(None, *flags, help=help, metavar=None if switch else METAVARS[setting.annotation.removesuffix(" | None")])
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default_hint(setting: settings.Setting) -> str:
    if setting.required:
        return " [required]"
    default = setting.default
    if default is None or default is False or default in ((), ""):
        return ""
    text = "on" if default is True else ", ".join(default) if setting.repeated else default
    return f" [default: {text}]"


def main() -> NoReturn:
    """Run the command line; only this function prints errors and exits."""
    console.configure_logging()
    sys.exit(_exit_code(sys.argv[1:]))


def _exit_code(arguments: list[str]) -> int:
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except typer.TyperException as problem:
        return _report_usage_error(problem)
    except KeyboardInterrupt:
        log.error("stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MoeirError as problem:
        return _report_error(problem, problem.exit_code)
    except OSError as problem:
        return _report_error(problem, 1)
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
        return _report_error(problem, 1, "out of memory; lower the batch size or shard the work")


def _invoke(arguments: list[str]) -> int:
    """Invoke without typer's own handling of broken pipes and Ctrl-C, which hides both."""
    stages = arguments[:1] if arguments and arguments[0] in STAGES else STAGES  # to build the others takes longer than many a stage
    command = typer.main.get_command(build_app(stages))
    try:
        with command.make_context("moeir", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    return 0


def _report_usage_error(problem: typer.TyperException) -> int:
    message = problem.format_message()
    if message.startswith("Usage: "):  # a command without arguments: its help
        sys.stderr.write(message + "\n")
        return problem.exit_code
    context = getattr(problem, "ctx", None)
    path = context.command_path.strip() if context else "moeir"
    log.error("%s: %s (see %s --help)", path, " ".join(message.split()), path)
    return problem.exit_code


def _report_error(problem: Exception, code: int, message: str | None = None) -> int:
    if os.environ.get("MOEIR_TRACEBACK") == "1":
        raise problem
    if message is None and isinstance(problem, OSError) and problem.strerror:
        message = f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    log.error("error: %s", " ".join((message or str(problem) or type(problem).__name__).split()))
    return code
