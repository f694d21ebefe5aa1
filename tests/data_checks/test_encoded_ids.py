"""Checks of encodings: their ids against those of the corpus."""

from collections.abc import Callable
from pathlib import Path

from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]


def test_encodings_are_checked_against_their_corpus(encodings: Path, toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    result = moeir("check", "--encodings", encodings, "--corpus", toy / "corpus.jsonl")
    assert result.code == 0, result.stdout
    other = tmp_path / "corpus.jsonl"
    lines = (toy / "corpus.jsonl").read_text().splitlines()
    other.write_text("\n".join([*lines[1:], '{"_id": "yak", "text": "A yak."}']) + "\n")
    result = moeir("check", "--encodings", encodings, "--corpus", other)
    assert result.code == 3 and "unknown-document, 1" in result.stdout and "missing-document, 1" in result.stdout
    assert f"    {encodings}/ids.txt:1: 'owl' is not in the corpus\n" in result.stdout
    assert f"    {encodings}/ids.txt: 'yak' of the corpus is not encoded\n" in result.stdout
