"""The `moeir` command: stages as typer commands, errors as one line and an exit code."""

import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from moeir import __version__, console, settings
from moeir.errors import MoeirError, UsageError, is_out_of_memory
from moeir.parsing import escape_controls, shorten_message
from moeir.stages import STAGES, base, stage_class

BUG, PACKAGE = 70, Path(__file__).parent  # exit code of an error that nobody foresaw: EX_SOFTWARE of sysexits.h

COMMANDS_ELSEWHERE = {  # what other tools call our commands
    **dict.fromkeys(("train", "fine-tune", "train-reranker"), "finetune"),
    **dict.fromkeys(("retrieve", "query"), "search"),
    **dict.fromkeys(("embed", "vectorize", "encode-corpus"), "encode"),
    **dict.fromkeys(("eval", "trec-eval", "trec_eval", "significance"), "evaluate"),
    **dict.fromkeys(("mine", "hard-negatives", "mine-hard-negatives", "negatives"), "mine-negatives"),
    **dict.fromkeys(("merge", "combine", "hybrid"), "fuse"),
    **dict.fromkeys(("doc2query", "generate"), "generate-queries"),
    **dict.fromkeys(("plot", "dashboard"), "report"),
    **dict.fromkeys(("inspect", "show", "describe", "stats"), "info"),
    **dict.fromkeys(("build-index", "build"), "index"),
    **dict.fromkeys(("rescore", "score"), "rerank"),
    **dict.fromkeys(("validate", "lint"), "check"),
    **dict.fromkeys(("import", "transform"), "convert"),
    **dict.fromkeys(("models", "list", "architectures"), "variants"),
    **dict.fromkeys(("pre-train", "pretraining"), "pretrain"),
}
FLAGS_ELSEWHERE = {  # what other tools call our flags; those that mean the same are aliases instead
    **dict.fromkeys(("--lr", "--rate"), ("--learning-rate",)),
    **dict.fromkeys(("--fp16", "--bf16", "--half", "--precision", "--amp", "--mixed-precision"), ("--dtype",)),
    **dict.fromkeys(("--per-device-train-batch-size", "--per-device-batch-size", "--train-batch-size", "--bs"), ("--batch-size",)),
    **dict.fromkeys(("--batch-size", "--batch", "--per-device-eval-batch-size"), ("--batch-size", "--max-tokens")),
    **dict.fromkeys(("--train-group-size", "--train-n-passages", "--num-negatives", "--hard-negatives"), ("--negatives",)),
    **dict.fromkeys(("--topk", "--top-k", "--num-hits", "--limit", "--k"), ("--depth",)),
    **dict.fromkeys(("--collection", "--documents", "--passages", "--docs"), ("--corpus",)),
    **dict.fromkeys(("--judgements", "--judgments", "--qrel"), ("--qrels",)),
    **dict.fromkeys(("--loss", "--loss-function", "--objective-function"), ("--objective",)),
    **dict.fromkeys(("--model-type", "--architecture"), ("--arch",)),
    **dict.fromkeys(("--checkpoint", "--ckpt", "--pretrained"), ("--model",)),
    **dict.fromkeys(("--gpu", "--gpus", "--num-gpus", "--cuda", "--cpu"), ("--device",)),
    **dict.fromkeys(("--num-workers", "--workers"), ("--threads",)),
    **dict.fromkeys(("--output-dir", "--out", "--save"), ("--output",)),
    **dict.fromkeys(("--overwrite", "--overwrite-output-dir"), ("--force",)),
    **dict.fromkeys(("--engine-type", "--index-type", "--backend"), ("--engine",)),
    **dict.fromkeys(("--fusion", "--normalization"), ("--method", "--fuse")),
    **dict.fromkeys(("--query-max-len", "--q-max-len", "--max-query-length", "--query-maxlen"), ("--query-length",)),
    **dict.fromkeys(("--passage-max-len", "--p-max-len", "--max-passage-length", "--doc-maxlen"), ("--document-length",)),
    **dict.fromkeys(("--max-length", "--max-seq-length"), ("--document-length",)),
    **dict.fromkeys(("--pooling", "--normalize", "--normalise", "--similarity", "--scale"), ("--arch",)),
    **dict.fromkeys(("--save-steps", "--save-strategy"), ("--save-minutes",)),
    **dict.fromkeys(("--train-file", "--train-dir", "--train-data", "--train-path"), ("--train",)),
}
FLAG_ADVICE = {  # what another tool's flag is here, where a flag's name does not say it
    **dict.fromkeys(("--per-device-train-batch-size", "--per-device-batch-size"), "it counts the queries of all processes together"),
    **dict.fromkeys(("--train-group-size", "--train-n-passages"), "it does not count the positive: a group of 8 is --negatives 7"),
    **dict.fromkeys(("--pooling", "--normalize", "--normalise"), "it is an option of the architecture: dense:pooling=mean,normalise=true"),
    "--scale": "it is an option of the architecture: dense:normalise=true,scale=20",
    **dict.fromkeys(("--resume-from-checkpoint", "--resume"), "the same command continues an unfinished output by itself"),
    **dict.fromkeys(("--do-train", "--do-eval"), "each command is one stage; leave it out"),
}
FIRST_GROUPS, LAST_GROUPS = ("Arguments", "Inputs"), ("Options", "Speed and memory", "Saving and logging", "Output", "Every stage")
NAME_WIDTH = 30  # of the flags in a help page, unless a flag is longer
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH"}
log = logging.getLogger(__name__)


class GroupedCommand(TyperCommand):
    """A command whose help lists its flags in groups: the panels, which typer shows only with rich markup."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in FIRST_GROUPS}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or LAST_GROUPS[-1], []).append(record)
        width = min(NAME_WIDTH, max(len(name) for records in groups.values() for name, _ in records))
        for group in sorted(groups, key=lambda name: LAST_GROUPS.index(name) + 1 if name in LAST_GROUPS else 0):
            if groups[group]:
                with formatter.section(group):
                    formatter.write_dl([(name.ljust(width), text) for name, text in groups[group]])


def build_app(stages: Sequence[str] = STAGES) -> typer.Typer:
    """The typer application with a command for each of the stages."""
    app = typer.Typer(
        name="moeir",
        help="Mixture-of-experts retrieval: train, encode, index, search, fuse, evaluate. Each stage reads and writes files.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "token_normalize_func": _with_dashes},
    )
    app.callback()(_root_callback)
    for name in stages:
        stage = stage_class(name)
        help_text = " ".join((inspect.getdoc(stage) or "").split())
        short_help = help_text.split(". ")[0].rstrip(".")
        has_required = any(setting.required for setting in settings.list_settings(stage))
        add_command = app.command(name=name, cls=GroupedCommand, help=help_text, short_help=short_help, no_args_is_help=has_required)
        add_command(_build_command(stage))
    return app


def _with_dashes(name: str) -> str:
    """A flag's name as ours are written: `--batch_size`, as other tools have it, is `--batch-size`."""
    return name.replace("_", "-")


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"moeir {__version__}\n")
        raise typer.Exit


def _root_callback(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
) -> None:
    """Options before a stage."""


def _build_command(stage: type[base.Stage]) -> Callable[..., None]:
    all_settings = (*settings.list_shorthands(stage), *settings.list_settings(stage))
    parameters = [_build_parameter(setting) for setting in sorted(all_settings, key=lambda setting: not setting.required)]
    has_output = any(setting.role == "product" for setting in settings.list_settings(stage))
    parameters += [
        _common_option("config", "--config", "YAML file of settings, keys as the flags; flags override it.", Path | None, metavar="FILE"),
        _common_option("show", "--show", "Print the resolved settings as YAML and stop.", bool),
        _common_option("dry_run", "--dry-run", "Print what would be read, written and spent, and stop.", bool),
    ]
    if has_output:
        parameters.append(_common_option("force", "--force", "Replace an existing --output; discard unfinished work.", bool))

    def command(*, config: Path | None, show: bool, dry_run: bool, force: bool = False, **values: Any) -> None:
        built: base.Stage = settings.build_stage(stage, values, config)
        if show:
            sys.stdout.write(settings.to_yaml(built))
        elif dry_run:
            sys.stdout.writelines(f"{escape_controls(line)}\n" for line in base.dry_run(built, force=force))
        else:
            base.run_stage(built, force=force, single_process="LOCAL_RANK" not in os.environ)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__name__ = stage.name.replace("-", "_")
    return command


def _common_option(name: str, flag: str, help: str, annotation: Any, metavar: str | None = None) -> inspect.Parameter:
    default = typer.Option(False if annotation is bool else None, flag, help=help, metavar=metavar, rich_help_panel=LAST_GROUPS[-1])
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _build_parameter(setting: settings.Setting) -> inspect.Parameter:
    help, switch = setting.help + _default_hint(setting), setting.annotation == "bool"
    annotation: Any = bool | None if switch else (list[str] | None if setting.repeated else str | None)
    if setting.role == "argument":
        default = typer.Argument(None, help=help, metavar=setting.name.upper(), rich_help_panel=setting.help_group)
    else:
        flags = [f"{setting.flag}/--no-{setting.flag.removeprefix('--')}" if switch else setting.flag, *setting.aliases]
        metavar = None if switch else METAVARS[setting.annotation.removesuffix(" | None")] + ("..." if setting.repeated else "")
        default = typer.Option(None, *flags, help=help, metavar=metavar, rich_help_panel=setting.help_group)
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default_hint(setting: settings.Setting) -> str:
    if setting.required:
        return " [required, or --dataset]" if setting.part else " [required]"
    default, choices = setting.default, f" [{', '.join(setting.choices)}]" if setting.choices else ""
    if default is None or default is False or default in ((), ""):
        return choices
    text = "on" if default is True else ", ".join(default) if setting.repeated else default
    return f"{choices} [default: {text}]"


def main() -> NoReturn:
    """Run the command line; only this function prints errors and exits."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch then uses large pages, which speeds up training
    console.prepare_streams()
    console.configure_logging()
    sys.exit(_exit_code(sys.argv[1:]))


def _exit_code(arguments: list[str]) -> int:
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
        return code
    except typer.TyperException as problem:
        return _report_usage_error(problem, arguments)
    except KeyboardInterrupt:
        log.error("stopped; the same command continues, or starts over")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (MoeirError, OSError) as problem:
        return _report_error(problem, getattr(problem, "exit_code", 1))
    except (MemoryError, RuntimeError, ImportError) as problem:
        if not is_out_of_memory(problem):
            return _report_bug(problem)
        advice = "lower the batch size or shard the work, or raise the limit of this shell (ulimit -v)"
        return _report_error(problem, 1, f"out of memory; {advice}")
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as problem:  # noqa: BLE001 - whatever no other line foresaw; a panic of Rust's code is no Exception
        return _report_bug(problem)


def _invoke(arguments: list[str]) -> int:
    """Invoke without typer's own handling of broken pipes and Ctrl-C, which hides both."""
    if arguments and (known := COMMANDS_ELSEWHERE.get(arguments[0].lower())):
        raise UsageError(f"moeir has no command {arguments[0]!r}; did you mean {known!r}? (see moeir {known} --help)")
    stages: Sequence[str] = STAGES
    if arguments and (name := _with_dashes(arguments[0])) in STAGES:
        stages = (name,)  # to build the others takes longer than many a stage
        stage_settings = settings.list_settings(stage_class(stages[0]))
        _warn_of_repeated_inputs(stage_settings, arguments[1:])
        arguments = [*stages, *spread_values(stage_settings, arguments[1:])]
    command = typer.main.get_command(build_app(stages))
    try:
        with _keep_ctrl_c(), command.make_context("moeir", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    return 0


@contextmanager
def _keep_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends the block with KeyboardInterrupt, also where native code turns that into an error of its own."""
    presses: list[int] = []

    def count_and_raise(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        signal.default_int_handler(number, frame)

    is_default = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, count_and_raise)
    try:
        yield
    except Exception as problem:
        if presses:
            raise KeyboardInterrupt from problem
        raise
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def spread_values(stage_settings: Sequence[settings.Setting], arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with the flag before each further value of a flag that can be repeated, up to the next flag or `--`.

    >>> run = settings.Setting(role="source", help="", name="run", repeated=True)
    >>> list(spread_values([run], ["--run", "a", "b", "--depth", "5", "--", "c"]))
    ['--run', 'a', '--run', 'b', '--depth', '5', '--', 'c']
    """
    repeatable = {flag for setting in stage_settings if setting.repeated for flag in (setting.flag, *setting.aliases)}
    words = {word for setting in stage_settings for word in setting.words}
    flag, is_first, remaining = "", False, iter(arguments)
    for argument in remaining:
        if is_first:
            is_first = False
        elif argument.startswith("-") and argument != "-":
            name, equals, _ = argument.partition("=")
            name = _with_dashes(name)
            flag = name if name in repeatable else ""
            is_first = not equals and bool(flag)
        elif flag and argument not in words:
            yield flag
        yield argument
        if argument == "--" and not is_first:
            yield from remaining


def _warn_of_repeated_inputs(stage_settings: Sequence[settings.Setting], arguments: Sequence[str]) -> None:
    """Warn if a flag that names one input file is given more than once: only the last one is read, where both may be meant."""
    names = [_with_dashes(argument.partition("=")[0]) for argument in takewhile(lambda argument: argument != "--", arguments)]
    for setting in stage_settings:
        count = sum(map(names.count, (setting.flag, *setting.aliases)))
        if count > 1 and setting.role == "source" and not setting.repeated:
            log.warning("%s: given %d times and takes one file: the last one is read", setting.flag, count)


def _report_usage_error(problem: typer.TyperException, arguments: Sequence[str]) -> int:
    message = problem.format_message()
    if message.startswith("Usage: "):  # a command without arguments: its help
        sys.stderr.write(message + "\n")
        return problem.exit_code
    context = getattr(problem, "ctx", None)
    path = (
        context.command_path.strip()
        if context
        else " ".join(("moeir", *(name for name in map(_with_dashes, arguments[:1]) if name in STAGES)))
    )
    flag = str(getattr(problem, "option_name", ""))
    own = {name for parameter in (context.command.params if context else ()) for name in parameter.opts}
    similar = next((name for name in FLAGS_ELSEWHERE.get(flag, ()) if name in own), None)
    if any(answers := (f"did you mean {similar}?" if similar else "", FLAG_ADVICE.get(flag, ""))):
        message = " ".join((f"No such option: {flag};", *filter(None, answers)))
    log.error("%s: %s (see %s --help)", path, shorten_message(message), path)
    return problem.exit_code


def _report_bug(problem: BaseException) -> int:
    """Report an unexpected error, with the file and line it comes from."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(PACKAGE)] or frames
    location = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    advice = "this is a bug of moeir; please report this line and the command, and what MOEIR_TRACEBACK=1 shows"
    return _report_error(problem, BUG, f"{type(problem).__name__}{location}: {shorten_message(str(problem))}; {advice}")


def _report_error(problem: BaseException, code: int, message: str | None = None) -> int:
    if os.environ.get("MOEIR_TRACEBACK") == "1":
        raise problem
    if message is None and isinstance(problem, OSError) and problem.strerror:
        is_target = problem.filename2 and os.access(problem.filename, os.R_OK)  # of a copy or a rename, whose source can be read
        path = problem.filename2 if is_target else problem.filename
        message = f"{path}: {problem.strerror}" if path else problem.strerror
    log.error("error: %s", shorten_message(message or str(problem) or type(problem).__name__))
    return code
