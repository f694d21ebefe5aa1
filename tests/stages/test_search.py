"""What search tells people."""

from collections.abc import Callable
from pathlib import Path

from tests.conftest import Said


def test_queries_that_find_nothing_are_counted_aloud(bm25_index: Path, tmp_path: Path, moeir: Callable[..., Said]) -> None:
    (tmp_path / "queries.tsv").write_text("1\tthe of\n2\tcats\n", encoding="utf-8")
    said = moeir("search", "--index", bm25_index, "--queries", tmp_path / "queries.tsv", "--output", "-")
    assert said.code == 0
    assert "bm25: 1 of 2 queries found no document" in said.stderr
    assert all(line.startswith("2 Q0 ") for line in said.stdout.splitlines()) and said.stdout
