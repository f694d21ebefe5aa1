"""Variants: specs `name:key=value,…` and the rule that resolves them to a class or function.

The name on the command line is the name of a file in its package (`architectures/came.py`), or of a function where the package is a
module of formulas (`mining.py`); the formulas are the functions with the same first parameter. If a file has several classes, its
first one has the file's name and each other its own: `TevatronIds` in `formats/examples.py` is tevatron-ids. The options are the
keyword-only parameters; one whose default is the name of a dataclass's instance stands for the fields of the dataclass. Signatures are
read from the source, so that a misspelt option is refused, and help is printed, before any heavy library loads.

Own code: the name `module:Name` is a class or function of any module, as in `my_package.models:Mine:width=64`. A module that a file names
is never imported, only one that the user names: on the command line, in Python by an import.
"""

import ast
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from moeir.errors import UsageError
from moeir.parsing import kebab_case, parse_value, suggest

FOLDER = Path(__file__).parent
FORMULAS = {
    "fusion": "lists",
    "mining": "hits",
    "training.objectives": "batch",
    "analysis.overlap": "first",
    "reranking.ensembles": "scores",
}
BASE_CLASSES = {
    "architectures": "Architecture",
    "indexes": "Index",
    "pretraining": "Pretraining",
    "export_targets": "ExportTarget",
    "formats": "Format",
}
PACKAGES = (*BASE_CLASSES, *FORMULAS)
REQUIRED = object()
OWN_CODE = re.compile(r"([^\W\d]\w*(?:\.\w+)*):([^\W\d]\w*)(?=:|$)")


@dataclass(frozen=True)
class Option:
    """One option of a variant: a keyword with its annotation in the source and its default, or a field of the dataclass `parameter`."""

    name: str
    annotation: str
    default: Any
    parameter: str | None = None


@dataclass(frozen=True)
class Variant:
    """A function or class that a spec can name, as declared in the source."""

    package: str
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
    """Split `name:key=value,…`; one level, no quoting, `+` inside a value stands for a comma. The name may be `module:Name`.

    >>> parse_spec("rrf:constant=60").options
    (('constant', '60'),)
    >>> parse_spec("my_package.models:Mine:width=64").name
    'my_package.models:Mine'
    """
    own = OWN_CODE.match(text)
    name, _, rest = (own[0], "", text[own.end() + 1 :]) if own else text.partition(":")
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


def bind_variant(package: str, text: str) -> functools.partial[Any]:
    """The function or class that `text` names in a package, with its options parsed and bound."""
    variant, options = resolve_spec(package, text)
    target: Callable[..., Any] = getattr(importlib.import_module(variant.module), variant.symbol)
    grouped: dict[str, dict[str, Any]] = {}
    for option in variant.options:
        if option.parameter is not None and option.name in options:
            grouped.setdefault(option.parameter, {})[option.name] = options.pop(option.name)
    for parameter, values in grouped.items():
        options[parameter] = type(inspect.signature(target).parameters[parameter].default)(**values)
    return functools.partial(target, **options)


def resolve_spec(package: str, text: str) -> tuple[Variant, dict[str, Any]]:
    """Find a variant and parse its options without imports; UsageError for an unknown name, option or value."""
    spec = parse_spec(text)
    variant = find_variant(package, spec.name)
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


def find_variant(package: str, name: str) -> Variant:
    """The variant called `name` in a package; hyphens and underscores are the same. Own code has to be imported already."""
    if package in PACKAGES and OWN_CODE.fullmatch(name):
        return _find_own_variant(package, name)
    by_name = {variant.name: variant for variant in list_variants(package)}
    key = name.replace("_", "-")
    if key not in by_name:
        raise UsageError(f"{package} has no {name!r}{suggest(key, by_name)} (moeir variants {package} lists them)")
    return by_name[key]


@functools.cache
def list_variants(package: str) -> tuple[Variant, ...]:
    """All variants of a package, sorted by name, read from the source."""
    if package not in PACKAGES:
        raise UsageError(f"there is no package {package!r}{suggest(package, PACKAGES)}")
    path = FOLDER.joinpath(*package.split("."))
    if package in BASE_CLASSES:
        files = sorted(file for file in path.glob("*.py") if not file.stem.startswith("_"))
        variants = [variant for file in files for variant in _list_class_variants(package, file)]
    else:
        module = f"{package}.formulas" if path.is_dir() else package
        variants = _list_function_variants(package, module)
    return tuple(sorted(variants, key=lambda variant: variant.name))


def _list_class_variants(package: str, file: Path) -> list[Variant]:
    variants: list[Variant] = []
    body = ast.parse(file.read_text(encoding="utf-8")).body
    imports = _list_imports(body)
    for node in body:
        if isinstance(node, ast.ClassDef) and BASE_CLASSES[package] in (ast.unparse(base) for base in node.bases):
            initializer = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
            name = kebab_case(node.name) if variants else file.stem
            variants.append(_read_variant(package, f"moeir.{package}.{file.stem}", name, node, initializer, imports))
    return variants


def _list_function_variants(package: str, module: str) -> list[Variant]:
    body = _parse_module(module)
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.args.args]
    kin = [node for node in functions if node.args.args[0].arg == FORMULAS[package]]
    return [_read_variant(package, f"moeir.{module}", node.name, node, node, _list_imports(body)) for node in kin]


def _list_imports(body: list[ast.stmt]) -> dict[str, str]:
    """The module that each imported name is from."""
    return {alias.name: str(node.module) for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


def _parse_module(module: str) -> list[ast.stmt]:
    return ast.parse(FOLDER.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")).body


def _read_variant(
    package: str,
    module: str,
    name: str,
    node: ast.FunctionDef | ast.ClassDef,
    function: ast.FunctionDef | None,
    imports: Mapping[str, str],
) -> Variant:
    options = list[Option]()
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if function else ():
        annotation = ast.unparse(argument.annotation) if argument.annotation else "str"
        if isinstance(default, ast.Name):
            options += _list_dataclass_options(argument.arg, annotation, imports[annotation].removeprefix("moeir."))
            continue
        options.append(Option(argument.arg, annotation, REQUIRED if default is None else ast.literal_eval(default)))
    summary, _, details = (ast.get_docstring(node) or "").partition("\n")
    return Variant(package, name.replace("_", "-"), node.name, module, summary, tuple(options), details.strip())


def _list_dataclass_options(parameter: str, name: str, module: str) -> list[Option]:
    """The fields of a dataclass, the type of a parameter."""
    (node,) = (node for node in _parse_module(module) if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [(field, field.value) for field in node.body if isinstance(field, ast.AnnAssign) and field.value is not None]
    return [Option(ast.unparse(field.target), ast.unparse(field.annotation), ast.literal_eval(value), parameter) for field, value in fields]


def own_module(text: str) -> str | None:
    """The module of a spec that names own code, None for any other text.

    >>> own_module("my_package.models:Mine:width=64")
    'my_package.models'
    """
    own = OWN_CODE.match(text)
    return own[1] if own else None


def import_own_code(module: str) -> None:
    """Import a module that the user named, from an installed package or from the working directory; UsageError if that fails."""
    if (folder := os.getcwd()) not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as problem:  # anything can go wrong in code of others
        if isinstance(problem, ModuleNotFoundError) and problem.name is not None and f"{module}.".startswith(f"{problem.name}."):
            where = "expected the name of a module of an installed package or of the working directory"
            raise UsageError(f"there is no module {module!r}; {where} (own code is module:Name, options are key=value)") from None
        raise UsageError(f"module {module}: {type(problem).__name__}: {problem}") from problem


def import_code_of(spec: str) -> None:
    """Import the module that a spec typed by the user names, if it names own code."""
    if module := own_module(spec):
        import_own_code(module)


def code_digest(module: str) -> list[str]:
    """`module:sha256` of the file of an imported module, which other files of its package do not change; nothing without a file."""
    path = getattr(sys.modules.get(module), "__file__", None)
    return [f"{module}:{hashlib.sha256(Path(path).read_bytes()).hexdigest()}"] if path is not None and Path(path).is_file() else []


def _find_own_variant(package: str, name: str) -> Variant:
    """The variant that `module:Name` is, in a module that is imported."""
    module, _, symbol = name.partition(":")
    if module not in sys.modules:
        advice = f"if you trust it, add --code {module} (in Python: import {module})"
        raise UsageError(f"{name} is code outside of moeir, which runs only if it is named; {advice}")
    target = getattr(sys.modules[module], symbol, None)
    if package in BASE_CLASSES:
        base = getattr(importlib.import_module(f"moeir.{package}.base"), BASE_CLASSES[package])
        if not (isinstance(target, type) and issubclass(target, base)) or inspect.isabstract(target):
            raise UsageError(f"{name}: expected a class derived from {base.__module__}.{base.__name__}, found {_describe_own(target)}")
    elif not inspect.isfunction(target) or next(iter(inspect.signature(target).parameters), None) != FORMULAS[package]:
        raise UsageError(f"{name}: expected a function whose first parameter is `{FORMULAS[package]}`, found {_describe_own(target)}")
    keywords = (one for one in inspect.signature(target).parameters.values() if one.kind is one.KEYWORD_ONLY)
    options = tuple(option for one in keywords for option in _list_own_options(one))
    summary, _, details = (inspect.getdoc(target) or "").partition("\n")
    return Variant(package, name, symbol, module, summary, options, details.strip())


def _list_own_options(parameter: inspect.Parameter) -> list[Option]:
    default = parameter.default
    if is_dataclass(default):
        return [Option(one.name, _describe_annotation(one.type), getattr(default, one.name), parameter.name) for one in fields(default)]
    return [Option(parameter.name, _describe_annotation(parameter.annotation), REQUIRED if default is parameter.empty else default)]


def _describe_annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "str"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _describe_own(target: object) -> str:
    if isinstance(target, type):
        missing = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        return f"the class {target.__name__}" + (f", which lacks {missing}" if missing else "")
    if inspect.isfunction(target):
        return f"{target.__name__}{inspect.signature(target)}"
    return "nothing of this name" if target is None else type(target).__name__
