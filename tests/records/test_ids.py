"""Ids of an index as one array, and the rule of ids."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.errors import ArtifactError, DataError
from moeir.records import ids
from moeir.records.ids import IdColumn
from moeir.records.runs import id_ranks

WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=70)  # also longer than the fixed width


@given(st.lists(WORDS, unique=True, max_size=12), st.sampled_from([1, 4, 2**19]))
def test_a_column_holds_the_lines_of_its_file_and_ranks_them_as_strings_are_ranked(words: list[str], rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_ROWS_PER_CHUNK", rows)
        path = Path(folder, "ids.txt")
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        column = IdColumn.read(path)
    assert column == words and list(column) == words and [column[row] for row in range(len(words))] == words
    assert id_ranks(column).tolist() == id_ranks(words).tolist()
    halves = [IdColumn(column.byte_strings[:5]), IdColumn(column.byte_strings[5:])]
    assert IdColumn.concatenate(halves) == words and column[1:3] == words[1:3]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a b", "id with white space: 'a b'; expected one word, as in a run"),
        *((value, "id with white space: ") for value in (" a", "a\t1", "a\u00a0")),
        *((value, "id with a control character: ") for value in ("\x1ba", "\ufeffa", "a\ud800", "\x7f", "a\x9f")),
        ("", "id is blank"),
        (" ", "id is blank"),
        *((value, f"id is not a string: {shown}") for value, shown in [(None, "null"), (True, "true"), (12.0, "12.0"), (["a"], '["a"]')]),
        (b"owl", "id is not a string: \"b'owl'\""),
    ],
)
def test_what_is_no_id_is_refused(value: object, message: str) -> None:
    with pytest.raises(DataError) as caught:
        ids.parse_id(value, "row 1")
    assert str(caught.value).startswith(f"row 1: {message}")
    assert [ids.parse_id(one, "") for one in (7, np.int64(7), "é\u200d🦉")] == ["7", "7", "é\u200d🦉"]


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes(b"d1\nd\xe92\n")
    with pytest.raises(ArtifactError, match=r"ids\.txt: damaged: ids that are not UTF-8; run the stage that made it again with --force"):
        IdColumn.read(tmp_path / "ids.txt")
