"""`make torture` goes on where it was stopped, by parts, and its table counts what passed, failed and was not run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import torture

TESTS = """
import pathlib, pytest
@MARK
@pytest.mark.parametrize("name", ["good", "bad"])
def test_one(name, record_property):
    with open(pathlib.Path(__file__).with_name("calls"), "a") as calls:
        calls.write(name + " ")
    record_property("faults", (name, {"kill": [1, 2]}))
    assert name == "good"
def test_of_the_plain_run():
    raise AssertionError
""".replace("@MARK", "@pytest.mark." + "torture")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of one file of tests, with the program that runs them."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    (tmp_path / "tests/torture.py").write_text(Path(torture.__file__).read_text())
    (tmp_path / "tests/test_first.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = torture: slow\n")
    (tmp_path / ".gitignore").write_text(".torture.jsonl\ncalls\n__pycache__/\n.pytest_cache/\n")
    git = ("git", "-C", tmp_path, "-c", "user.name=tests", "-c", "user.email=tests")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "tests")):
        subprocess.run([*git, *command], check=True)
    return tmp_path


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tests.torture", *arguments], cwd=project, capture_output=True, text=True, check=False)


def test_a_part_goes_on_where_it_was_stopped(project):
    completed = run(project, "first")
    assert completed.returncode == 1
    assert completed.stdout.splitlines()[-2:] == ["| first | 2 | 1 | 1 | 0 | 0 |", "* failed: tests/test_first.py::test_one[bad]"]
    assert run(project, "--table", "first").stdout.splitlines()[-2:] == completed.stdout.splitlines()[-2:]
    run(project, "first")
    assert (project / "tests/calls").read_text().split() == ["good", "bad", "bad"], "what has passed is not run again"
    results = [json.loads(line) for line in (project / ".torture.jsonl").read_text().splitlines()]
    assert [result["unit"][-5:] for result in results if 'assert name == "good"' in result.get("message", "")] == ["[bad]"] * 2
    assert ["good", {"kill": [1, 2]}] in [one for result in results for one in result["counts"]]
    (project / "tests/test_first.py").write_text(TESTS + "# another commit")
    assert "| first | 0 | 0 | 0 | 0 | 0 |" in run(project, "--table", "first").stdout


def test_an_unknown_part_is_refused_with_the_names_of_all(project):
    completed = run(project, "second")
    assert completed.returncode == 2 and completed.stderr.endswith("there is no part 'second'; parts: first, fuzz\n")


def test_every_file_with_marked_tests_is_a_part():
    names = [path.stem.removeprefix("test_") for path in torture.list_parts().values() if path is not None]
    assert {"power_loss", "failing_io", "random_kills", "damage", "bad_arrays", "kill_and_resume", "gpu_script"} <= set(names)
    assert len(names) == len(set(names))
