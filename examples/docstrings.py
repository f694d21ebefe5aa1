"""Build a small retrieval collection from the sources of this Python's standard library: documentation search as people do it.

A passage is a signature with the docstring without its first sentence, the methods of a class, and the errors that a function raises.
Queries have a field `kind`:

    description   the first sentence of the docstring
    name          what people type who know a word: an error message, two methods of a class, its parameters; a name and a parameter

Modules are divided into train, dev and test, so that no test module is in the training part. A description that its own passage contains
verbatim is left out, and so are repeated texts, and names that fit the passages of two objects.

    python examples/docstrings.py FOLDER [SOURCES]    # corpus.jsonl, {train,dev,test}-queries.jsonl, {train,dev,test}.qrels

Each .qrels stands there for each kind, too: test-name.qrels. SOURCES is a folder of other Python sources, such as your own.
"""

import ast
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED = {"test", "tests", "idle_test", "idlelib", "lib2to3", "site-packages", "dist-packages", "turtledemo", "__pycache__", "ensurepip"}
SENTENCE = re.compile(r"(?<=[a-z\)\"'`\]])[.!?:](?=\s)")
VARIABLE = re.compile(r"%(\(\w+\))?[-#0-9.]*[a-z]|\{[^}]*\}")  # what a message fills in
FEWEST_QUERY_WORDS, MOST_QUERY_WORDS, FEWEST_PASSAGE_WORDS, MOST_PASSAGE_WORDS = 4, 30, 8, 50
KINDS = ("description", "name")
MOST_METHODS, MOST_ERRORS, MOST_ERROR_WORDS, FEWEST_LETTERS = 8, 2, 6, 3
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class DocumentedObject:
    """A module, class or function with its docstring: what a passage and its queries are made of."""

    module: str
    names: tuple[str, ...] = ()  # of the classes around it, and its own
    text: str
    is_class: bool = False
    parameters: dict[str, str | None] = field(default_factory=dict)  # with their defaults
    methods: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()  # exception, message

    def signature(self) -> str:
        """Where it is, its name, and its parameters as one calls it.

        >>> DocumentedObject(module="io", names=("Pipe", "read"), text="", parameters={"size": None, "mode": "'r'"}).signature()
        "io, class Pipe, read(size, mode='r')"
        """
        if not self.names:
            return self.module
        parameters = ", ".join(name if default is None else f"{name}={default}" for name, default in self.parameters.items())
        classes = self.names if self.is_class else self.names[:-1]
        own = "" if self.is_class else f", {self.names[-1]}"
        return self.module + "".join(f", class {name}" for name in classes) + f"{own}({parameters})"


def read_library(library: Path) -> Iterator[DocumentedObject]:
    """Everything documented in a library's sources, in the order of paths and lines, without importing it."""
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if SKIPPED.intersection(parts) or not all(part.isidentifier() for part in parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        yield from read_module(tree, ".".join(parts).removesuffix(".__init__"))


def read_module(tree: ast.Module, module: str) -> Iterator[DocumentedObject]:
    """A module, and its classes and functions with docstrings."""
    if text := ast.get_docstring(tree):
        yield DocumentedObject(module=module, text=text)
    for names, node in definitions(tree, ()):
        text = ast.get_docstring(node)
        if text and isinstance(node, ast.ClassDef):
            functions = [child for child in node.body if isinstance(child, Function)]
            constructor = next((child for child in functions if child.name == "__init__"), None)
            parameters = {} if constructor is None else parameters_of(constructor)
            methods = tuple(dict.fromkeys(child.name for child in functions if not child.name.startswith("_")))[:MOST_METHODS]
            yield DocumentedObject(module=module, names=names, text=text, is_class=True, parameters=parameters, methods=methods)
        elif text and isinstance(node, Function):
            errors = tuple(dict.fromkeys(errors_of(node)))[:MOST_ERRORS]
            yield DocumentedObject(module=module, names=names, text=text, parameters=parameters_of(node), errors=errors)


def definitions(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Definition]]:
    """Every class and function below a node, with the names around it and its own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield (*names, child.name), child
            yield from definitions(child, (*names, child.name))
        else:
            yield from definitions(child, names)


def parameters_of(function: Function) -> dict[str, str | None]:
    """Parameters and the source of their defaults, without `self` and `cls`."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    defaults: list[ast.expr | None] = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    names = [*positional, *(argument.arg for argument in arguments.kwonlyargs)]
    pairs = {name: None if default is None else ast.unparse(default) for name, default in zip(names, defaults, strict=True)}
    return {name: default for name, default in pairs.items() if (name, name in positional[:1]) not in (("self", True), ("cls", True))}


def errors_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Exception and message of every `raise` of a function with a message of two words or more; not of the functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            continue
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call):
            message = " ".join(next((text for argument in child.exc.args if (text := message_of(argument))), "").split())
            if len(message.split()) > 1:
                yield ast.unparse(child.exc.func).split(".")[-1], message
        yield from errors_of(child)


def message_of(node: ast.expr) -> str:
    """The text of a literal, also of one that is formatted, with %s for what an f-string or a sum fills in; empty if there is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in values)
        case ast.BinOp(left=left, op=ast.Mod()) | ast.Call(func=ast.Attribute(value=left, attr="format")):
            return message_of(left)
        case ast.BinOp(left=left, op=ast.Add(), right=right) if start := message_of(left):
            return start + (message_of(right) or "%s")
    return ""


def describe(described: DocumentedObject) -> tuple[str, str] | None:
    """The first sentence of a docstring, and the passage without it; None if either is too short, or if the passage contains it."""
    words = " ".join(described.text.split())
    boundary = SENTENCE.search(words)
    if boundary is None:
        return None
    query, rest = words[: boundary.start()].strip(), words[boundary.end() :].split()[:MOST_PASSAGE_WORDS]
    if not FEWEST_QUERY_WORDS <= len(query.split()) <= MOST_QUERY_WORDS or len(rest) < FEWEST_PASSAGE_WORDS:
        return None
    passage = f"{described.signature()}. {' '.join(rest)}"
    if described.methods:
        passage += f" Methods: {', '.join(described.methods)}."
    if described.errors:
        passage += f" Raises {'; '.join(f'{exception}: {message}' for exception, message in described.errors)}."
    return None if query.lower() in passage.lower() else (query, passage)


def name_queries(described: DocumentedObject) -> Iterator[str]:
    """What somebody types who knows a word of this passage: first one of its contents, then its name with a parameter."""
    identity = ".".join((described.module, *described.names))
    parameters = [name for name in described.parameters if len(name) >= FEWEST_LETTERS]
    messages = [(exception, words_of(VARIABLE.sub(" ", message))) for exception, message in described.errors]
    if messages and len(messages[0][1]) > 1:
        yield " ".join((messages[0][0], *messages[0][1][:MOST_ERROR_WORDS]))
    elif len(described.methods) > 1:
        yield " ".join(draw(described.methods, 2, identity))
    elif len(parameters) > 1:
        yield " ".join(draw(parameters, 3, identity))
    if parameters and not described.names[-1].startswith("__"):
        yield " ".join((described.names[-1].strip("_"), *draw(parameters, 1, identity)))


def number_of(text: str) -> int:
    """A number that depends on a text only.

    >>> number_of("a") % 1000
    499
    """
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def draw(names: Sequence[str], count: int, identity: str) -> list[str]:
    """Some of an object's names, in an order of their own, the same on every machine."""
    return sorted(names, key=lambda name: number_of(f"{identity} {name}"))[:count]


def words_of(text: str) -> list[str]:
    """Words and identifiers of a text.

    >>> words_of("copy_tree(src, *, dirs_exist_ok=False) isn't")
    ['copy_tree', 'src', 'dirs_exist_ok', 'False', "isn't"]
    """
    return re.findall(r"\w+(?:'\w+)*", text)


def split(module: str) -> str:
    """The part of a top-level module: 72 % train, 12 % dev, 16 % test, by a hash of its name."""
    bucket = number_of(module.split(".")[0]) % 100
    return "train" if bucket < 72 else "dev" if bucket < 84 else "test"


def build(objects: Iterator[DocumentedObject]) -> tuple[list[str], list[tuple[str, int, str, str]]]:
    """Passages, and queries: part, number of the passage, kind, text."""
    passages: list[str] = []
    queries: list[tuple[str, int, str, str]] = []
    names: list[tuple[str, int, str, str]] = []
    repeated: set[str] = set()
    for described in objects:
        texts = describe(described)
        if texts is None or repeated.intersection(text.lower() for text in texts):
            continue
        repeated |= {text.lower() for text in texts}
        queries.append((split(described.module), len(passages), "description", texts[0]))
        names.extend((split(described.module), len(passages), "name", text) for text in name_queries(described))
        passages.append(texts[1])
    vocabularies = [{word.lower() for word in words_of(passage)} for passage in passages]
    for query in names:
        known = {word.lower() for word in words_of(query[3])}
        if not any(known <= vocabulary for number, vocabulary in enumerate(vocabularies) if number != query[1]):
            queries.append(query)
    return passages, sorted(queries, key=lambda query: query[1:3])


def main(folder: Path, sources: Path) -> None:
    """Write the collection."""
    if not sources.is_dir():
        sys.exit(f"{sources}: no such folder; expected SOURCES, a folder of Python sources")
    passages, queries = build(read_library(sources))
    if not passages:
        sys.exit(
            f"{sources}: no docstring that makes a passage; expected a folder of Python sources with docstrings of "
            f"{FEWEST_PASSAGE_WORDS} words or more"
        )
    folder.mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": f"d{number:05d}", "text": passage} for number, passage in enumerate(passages)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus), encoding="utf-8")
    sizes = []
    for part in ("train", "dev", "test"):
        judged = [(query, *fields[1:]) for query, fields in enumerate(queries) if fields[0] == part]
        rows = [({"_id": f"{kind}-{query:05d}", "text": text, "kind": kind}, number) for query, number, kind, text in judged]
        (folder / f"{part}-queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _ in rows), encoding="utf-8")
        for suffix, kinds in (("", KINDS), *((f"-{kind}", (kind,)) for kind in KINDS)):
            lines = (f"{row['_id']} 0 d{number:05d} 1\n" for row, number in rows if row["kind"] in kinds)
            (folder / f"{part}{suffix}.qrels").write_text("".join(lines), encoding="utf-8")
        sizes.append(f"{len(rows)} {part} ({sum(row['kind'] == 'name' for row, _ in rows)} names)")
    sys.stderr.write(f"{len(corpus)} passages; queries: {', '.join(sizes)}\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"use: {sys.argv[0]} FOLDER [SOURCES]")
    main(Path(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) == 3 else sysconfig.get_paths()["stdlib"]))
