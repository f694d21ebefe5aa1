"""Ids of an index as one array."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import ArtifactError
from moeir.records.ids import IdColumn
from moeir.records.runs import id_ranks

WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=70)  # also longer than the fixed width


@given(st.lists(WORDS, unique=True, max_size=12))
def test_a_column_holds_the_lines_of_its_file_and_ranks_them_as_strings_are_ranked(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ids.txt")
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        column = IdColumn.read(path)
    assert column == words and list(column) == words and [column[row] for row in range(len(words))] == words
    assert id_ranks(column).tolist() == id_ranks(words).tolist()
    halves = [IdColumn(column.byte_strings[:5]), IdColumn(column.byte_strings[5:])]
    assert IdColumn.concatenate(halves) == words and column[1:3] == words[1:3]


def test_a_long_file_is_read_in_several_chunks_of_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"d{'x' * (70 if number == 9 else number)}" for number in range(17)]
    (tmp_path / "ids.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    monkeypatch.setattr("moeir.records.ids._ROWS_PER_CHUNK", 4)
    assert IdColumn.read(tmp_path / "ids.txt") == words


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes(b"d1\nd\xe92\n")
    with pytest.raises(ArtifactError, match=r"ids\.txt: damaged: ids that are not UTF-8; run the stage that made it again with --force"):
        IdColumn.read(tmp_path / "ids.txt")
