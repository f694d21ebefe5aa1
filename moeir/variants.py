"""Variants: specs `name:key=value,…` and the rule that resolves them to a class or function.

The name on the command line is the name of a file in its room (`architectures/came.py`), or of a function where the room is a
module of formulas (`mining.py`); the formulas are the functions with the same first parameter. If a file has several classes, its
first one has the file's name and each other its own: `TevatronRun` in `formats/tevatron.py` is tevatron-run. The options are the
keyword-only parameters. Signatures are read from the source, so that a misspelt option is refused, and help is printed, before any
heavy library loads.
"""

import ast
import difflib
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir.errors import UsageError
from moeir.parsing import kebab_case, parse_value

PACKAGE = Path(__file__).parent
FORMULAS = {
    "fusion": "lists",
    "mining": "hits",
    "training.objectives": "batch",
    "analysis.overlap": "first",
    "analysis.projection": "vectors",
    "reranking.ensembles": "scores",
}
BASE_CLASSES = {
    "architectures": "Architecture",
    "indexes": "Index",
    "pretraining": "Pretraining",
    "export_targets": "ExportTarget",
    "formats": "Format",
}
ROOMS = (*BASE_CLASSES, *FORMULAS)
REQUIRED = object()


@dataclass(frozen=True)
class Option:
    """One option of a variant: a keyword with its annotation in the source and its default."""

    name: str
    annotation: str
    default: Any


@dataclass(frozen=True)
class Variant:
    """A function or class that a spec can name, as declared in the source."""

    room: str
    name: str
    symbol: str
    module: str
    summary: str
    options: tuple[Option, ...]
    details: str = ""


@dataclass(frozen=True)
class Spec:
    """A name and its options as text; `str()` returns the spec.

    >>> str(parse_spec("came:shared_layers=4,experts=lexical+local"))
    'came:shared_layers=4,experts=lexical+local'
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in self.options)
        return f"{self.name}:{pairs}" if pairs else self.name


def parse_spec(text: str) -> Spec:
    """Split `name:key=value,…`; one level, no quoting, `+` inside a value stands for a comma.

    >>> parse_spec("rrf:constant=60").options
    (('constant', '60'),)
    """
    name, _, rest = text.partition(":")
    if not name:
        raise UsageError(f"a spec starts with a name, found {text!r}; write name:key=value,key=value")
    options: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{text}: expected key=value, found {pair!r} (inside a value write + for a comma)")
        key = key.replace("-", "_")
        if key in options:
            raise UsageError(f"{text}: {key} is given twice")
        options[key] = value
    return Spec(name, tuple(options.items()))


def bind_variant(room: str, text: str) -> functools.partial[Any]:
    """The function or class that `text` names in `room`, with its options parsed and bound."""
    variant, options = resolve_spec(room, text)
    target: Callable[..., Any] = getattr(importlib.import_module(variant.module), variant.symbol)
    return functools.partial(target, **options)


def resolve_spec(room: str, text: str) -> tuple[Variant, dict[str, Any]]:
    """Find a variant and parse its options without imports; UsageError for an unknown name, option or value."""
    spec = parse_spec(text)
    variant = find_variant(room, spec.name)
    known = {option.name: option for option in variant.options}
    values = {}
    for key, value in spec.options:
        if key not in known:
            raise UsageError(f"{text}: {variant.name} has no option {key!r}{suggest(key, known)}")
        values[key] = parse_value(value, known[key].annotation, f"{text}: {key}")
    for option in variant.options:
        if option.default is REQUIRED and option.name not in values:
            raise UsageError(f"{text}: {variant.name} needs {option.name}=…")
    return variant, values


def find_variant(room: str, name: str) -> Variant:
    """The variant called `name` in `room`; hyphens and underscores are the same."""
    by_name = {variant.name: variant for variant in list_variants(room)}
    key = name.replace("_", "-")
    if key not in by_name:
        raise UsageError(f"{room} has no {name!r}{suggest(key, by_name)} (moeir variants {room} lists them)")
    return by_name[key]


@functools.cache
def list_variants(room: str) -> tuple[Variant, ...]:
    """All variants of a room, sorted by name, read from the source."""
    if room not in ROOMS:
        raise UsageError(f"there is no room {room!r}{suggest(room, ROOMS)}")
    path = PACKAGE.joinpath(*room.split("."))
    if room in BASE_CLASSES:
        files = sorted(file for file in path.glob("*.py") if not file.stem.startswith("_"))
        variants = [variant for file in files for variant in _class_variants(room, file)]
    else:
        module = f"{room}.formulas" if path.is_dir() else room
        variants = _function_variants(room, module)
    return tuple(sorted(variants, key=lambda variant: variant.name))


def _class_variants(room: str, file: Path) -> list[Variant]:
    variants: list[Variant] = []
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and BASE_CLASSES[room] in (ast.unparse(base) for base in node.bases):
            initializer = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
            name = kebab_case(node.name) if variants else file.stem
            variants.append(_variant(room, f"moeir.{room}.{file.stem}", name, node, initializer))
    return variants


def _function_variants(room: str, module: str) -> list[Variant]:
    body = ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.args.args]
    kin = [node for node in functions if node.args.args[0].arg == FORMULAS[room]]
    return [_variant(room, f"moeir.{module}", node.name, node, node) for node in kin]


def _variant(room: str, module: str, name: str, node: ast.FunctionDef | ast.ClassDef, function: ast.FunctionDef | None) -> Variant:
    options = []
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if function else ():
        annotation = ast.unparse(argument.annotation) if argument.annotation else "str"
        options.append(Option(argument.arg, annotation, REQUIRED if default is None else ast.literal_eval(default)))
    summary, _, details = (ast.get_docstring(node) or "").partition("\n")
    return Variant(room, name.replace("_", "-"), node.name, module, summary, tuple(options), details.strip())


def suggest(name: str, known: Any) -> str:
    """Suggestion for an error message about an unknown name: the closest known name, or all of them."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(sorted(known))}" if known else ""
