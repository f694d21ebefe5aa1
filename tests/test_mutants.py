"""The generator of mutants: what each operator yields, that mutants compile, and that a copy is as it was after every run."""

import importlib

import pytest

from tests import mutants

SAMPLE = '''"""A docstring with 1 + 2 and "not"."""
from math import floor

LIMIT: "int | None" = 7


@decorated(1)
def first(a: int = 3, *, wide: bool = True) -> bool:
    """Another of a < b."""
    if not a or wide is None:
        raise ValueError(f"{a + 1}: expected less than 4")
    assert a < 5
    log.info("%d", a * 2)
    total = -a + min(a, 2.5)  # ½ of the bytes before
    total += tensor.mean(dim=-1)
    tensor.clear()
    return a <= total and b in c
'''
EXPECTED = {
    ("number +1", 'LIMIT: "int | None" = 8'),
    ("number -1", 'LIMIT: "int | None" = 6'),
    ("number *2", 'LIMIT: "int | None" = 14'),
    ("number 0", 'LIMIT: "int | None" = 0'),
    ("boolean", "def first(a: int = 3, *, wide: bool = False) -> bool:"),
    ("no sign", "if  a or wide is None:"),
    ("or and", "if not a and wide is None:"),
    ("is is not", "if not a or wide is not None:"),
    ("no sign", "total = a + min(a, 2.5)  # ½ of the bytes before"),
    ("+ -", "total = -a - min(a, 2.5)  # ½ of the bytes before"),
    ("reduction", "total = -a + max(a, 2.5)  # ½ of the bytes before"),
    ("number 0", "total = -a + min(a, 0.0)  # ½ of the bytes before"),
    ("reduction", "total += tensor.sum(dim=-1)"),
    ("dim", "total += tensor.mean(dim=0)"),
    ("+ -", "total -= tensor.mean(dim=-1)"),
    ("deleted", "pass"),
    ("<= <", "return a < total and b in c"),
    ("<= >=", "return a >= total and b in c"),
    ("and or", "return a <= total or b in c"),
    ("in not in", "return a <= total and b not in c"),
    ("negated", "return not (a <= total and b in c)"),
}


def all_mutants(text):
    source = mutants.Source(text)
    return [source.mutant(edit) for edit in source.edits()]


def test_every_operator_yields_what_it_says_and_words_for_people_are_left_alone():
    produced = {(mutant.operator, mutant.after) for mutant in all_mutants(SAMPLE)}
    assert produced >= EXPECTED
    assert {operator for operator, _ in produced} == {operator for operator, _ in EXPECTED}
    untouched = [number for number, line in enumerate(SAMPLE.splitlines(), 1) if any(word in line for word in ("docstring", "@", "Another",
                 "raise", "assert", "log", "import"))]  # fmt: skip
    assert not [mutant for mutant in all_mutants(SAMPLE) if mutant.line in untouched]


HALF = """
def half(x):
    while x > 100:
        x -= 100
    return x / 2 if x >= 0 else 0
"""


@pytest.fixture
def little_tree(tmp_path, monkeypatch):
    """A package of one function and its tests, in place of this tree."""
    importlib.import_module("numba")
    files = {
        "moeir/heads/__init__.py": "", "moeir/__init__.py": "", "setup.cfg": "[tool:pytest]\naddopts = --import-mode=importlib\n",
        "moeir/heads/half.py": HALF,
        "tests/heads/test_half.py": "from moeir.heads.half import half\n\ndef test_half():\n    assert half(8) == half(108) == 4\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    mutants.subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def test_mutants_are_killed_survive_and_run_out_of_time_in_a_copy(little_tree, monkeypatch):
    original = (little_tree / "moeir/heads/half.py").read_bytes()
    copy = mutants.Copy(little_tree.with_name("copy") / "job0")
    assert mutants.tests_of("moeir/heads/half.py") == (["tests/heads/test_half.py"], [])
    by_line = {mutant.after: mutant for mutant in all_mutants(original.decode())}
    for line, status in {"return x * 2 if x >= 0 else 0": "killed", "return x / 2 if x > 0 else 0": "survived"}.items():
        outcome = copy.try_mutant("moeir/heads/half.py", by_line[line])
        assert outcome["status"] == status and ("test_half" in outcome["killer"]) == (status == "killed")
    run = copy.run
    monkeypatch.setattr(copy, "run", lambda tests, limit, recompile: run(tests, 0.3, recompile))
    assert copy.try_mutant("moeir/heads/half.py", by_line["pass"])["status"] == "killed by time"
    assert (copy.folder / "moeir/heads/half.py").read_bytes() == original == (little_tree / "moeir/heads/half.py").read_bytes()
