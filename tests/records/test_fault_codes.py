"""Every error about a line has a code, which is the name of a kind of fault."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeir import errors

PACKAGE = Path(errors.__file__).parent
FILES = [file for room in ("records", "formats", "data_checks") for file in sorted((PACKAGE / room).glob("*.py"))]
ABOUT_A_LINE = re.compile(r"""f["'](\{where\}|\{location\(row\)\}|\{[\w.]+\}:\{)""")


def data_errors(file: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DataError":
            yield node


def literal_codes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.IfExp):
        return literal_codes(node.body) + literal_codes(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) else []


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_error_about_a_line_has_a_code_and_every_code_is_a_kind_of_fault(file):
    for call in data_errors(file):
        codes = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        message = ast.unparse(call.args[0])
        assert codes or not ABOUT_A_LINE.match(message), f"{file}:{call.lineno}: {message}"
        assert {name for code in codes for name in literal_codes(code)} <= errors.FAULT_KINDS.keys(), f"{file}:{call.lineno}"


def test_most_errors_are_about_a_line():
    counts = [bool(ABOUT_A_LINE.match(ast.unparse(call.args[0]))) for file in FILES for call in data_errors(file)]
    assert sum(counts) > len(counts) / 2 > 30
