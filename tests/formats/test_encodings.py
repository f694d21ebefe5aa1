"""Encodings convert to Anserini's vectors and back byte for byte, and search gives the same."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]


@pytest.fixture
def lines(encodings: Path, tmp_path: Path, moeir: Moeir) -> Callable[[str], Path]:
    def made(expert: str) -> Path:
        path = tmp_path / f"{expert}.jsonl"
        spec = f"encodings:expert={expert}"
        result = moeir("convert", "--input", encodings, "--from", spec, "--to", "anserini-vectors", "--output", path, "--lossy")
        assert result.code == 0 and "lost, 1 times: expert local" in result.stderr
        return path

    return made


@pytest.mark.parametrize("expert", ["lexical", "global"])
def test_vectors_come_back_as_they_were(
    expert: str, lines: Callable[[str], Path], encodings: Path, came_checkpoint: Path, toy: Path, tmp_path: Path, moeir: Moeir
) -> None:
    path, back = lines(expert), tmp_path / "back"
    flags = ("--model", came_checkpoint, "--output", back)
    result = moeir("convert", "--input", path, "--to", f"encodings:expert={expert}", *flags)
    assert result.code == 0, result.stderr
    files = {file.name: file.read_bytes() for file in (back / expert).iterdir()}
    assert files == {file.name: file.read_bytes() for file in (encodings / expert).iterdir()}
    assert (back / "ids.txt").read_bytes() == (encodings / "ids.txt").read_bytes()
    again = moeir("convert", "--input", back, "--to", "anserini-vectors")
    assert again.stdout.encode() == path.read_bytes()
    assert moeir("index", "--encodings", back, "--output", tmp_path / "idx").code == 0
    hits = moeir("search", "--index", tmp_path / "idx", "--queries", toy / "test-queries.tsv", "--depth", 3)
    assert hits.code == 0 and hits.stdout.count("\n") == 18
    assert moeir("check", "--encodings", back, "--corpus", toy / "corpus.jsonl").code == 0


def test_a_line_has_the_fields_that_anserini_reads(lines: Callable[[str], Path]) -> None:
    record = json.loads(lines("lexical").read_text().splitlines()[0])
    assert list(record) == ["id", "contents", "vector"] and record["id"] == "owl"
    assert all(isinstance(term, str) and weight > 0 for term, weight in record["vector"].items())
    assert len(json.loads(lines("global").read_text().splitlines()[0])["vector"]) == 32


BAD = [
    ('{"id": "a"}', 3, "an object with id, contents and vector was expected"),
    ('{"id": "a", "vector": "x"}', 3, "vector is neither an object of terms with weights nor a list of numbers"),
    ('{"id": "a", "vector": {"zzz": 1}}', 3, "text 'a': 'zzz' is not in the vocabulary of the checkpoint of --model"),
    ('{"id": "a", "vector": [1e9]}', 3, "text 'a': a number is not finite, or too large for float16"),
    ('{"id": "a", "vector": [0.1]}', 2, "text 'a': digits beyond float16, the precision of stored dense vectors, would be lost"),
    ('{"id": "a", "vector": [1]}\n{"id": "b", "vector": [1, 2]}', 3, "text 'b': expected 1 numbers"),
    ('{"id": "a", "vector": [1]}\n{"id": "a", "vector": [2]}', 3, "text 'a': has two vectors"),
    (
        '{"id": "a", "contents": "An owl.", "vector": [1]}',
        2,
        "the words of texts (name the corpus that has them with --corpus) would be lost",
    ),
    ('{"id": "a", "vector": [1], "lang": "en"}', 2, "field 'lang' would be lost"),
]


@pytest.mark.parametrize(("content", "code", "words"), BAD)
def test_faulty_vectors_are_one_line(content: str, code: int, words: str, came_checkpoint: Path, tmp_path: Path, moeir: Moeir) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content + "\n")
    flags = ("--model", came_checkpoint, "--from", "anserini-vectors", "--output", tmp_path / "out")
    result = moeir("convert", "--input", path, "--to", "encodings", *flags)
    assert result.code == code and words in result.stderr and len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_not_said_is_asked_for(encodings: Path, tmp_path: Path, moeir: Moeir) -> None:
    result = moeir("convert", "--input", encodings, "--to", "anserini-vectors")
    assert result.code == 2 and "has lexical, global; choose one with encodings:expert=…" in result.stderr
    (tmp_path / "x.jsonl").write_text('{"id": "a", "vector": [1]}\n')
    result = moeir("convert", "--input", tmp_path / "x.jsonl", "--to", "encodings", "--output", tmp_path / "out")
    assert result.code == 2 and "needs --model, the checkpoint that encodes queries for them" in result.stderr
    spec = "encodings:expert=local"
    assert "expert=local: " in moeir("convert", "--input", encodings, "--from", spec, "--to", "anserini-vectors").stderr
