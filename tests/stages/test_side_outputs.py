"""Files that a stage writes beside its output: made again if they are missing, never in the place of anything else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
RUNS = {"one": "1 Q0 d1 1 2.0 x\n1 Q0 d2 2 1.0 x\n", "two": "1 Q0 d2 1 5.0 x\n1 Q0 d3 2 4.0 x\n"}


@pytest.fixture
def fuse(tmp_path: Path, moeir: Moeir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Fuse two runs, with a file of contributions, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name, text in RUNS.items():
        Path(f"{name}.trec").write_text(text, encoding="utf-8")
    return lambda *more: moeir("fuse", "--run", "one.trec", "--run", "two.trec", "--attribution", "parts.tsv", *more)


@pytest.mark.parametrize("output", [("--output", "fused.trec"), ()])
def test_a_missing_side_output_is_made_again_and_an_unknown_one_is_not_replaced(
    fuse: Callable[..., CommandResult], output: tuple[str, ...]
) -> None:
    assert fuse("--method", "rrf", *output).code == 0
    before = Path("parts.tsv").read_bytes()
    again = fuse("--method", "rrf", *output)
    assert again.code == 0 and ("already made" in again.stderr) == bool(output)
    Path("parts.tsv").unlink()
    result = fuse("--method", "rrf", *output)
    assert result.code == 0 and Path("parts.tsv").read_bytes() == before
    Path("parts.tsv.manifest.json").unlink()
    refused = fuse("--method", "rrf", *output)
    assert (
        refused.code == 2 and "parts.tsv: exists and was not made by moeir; move it away or choose another --attribution" in refused.stderr
    )


def test_a_side_output_of_other_settings_is_replaced_only_by_force(fuse: Callable[..., CommandResult]) -> None:
    assert fuse("--method", "rrf", "--output", "fused.trec").code == 0
    before = Path("parts.tsv").read_bytes()
    refused = fuse("--method", "combsum", "--output", "other.trec")
    assert refused.code == 2 and "parts.tsv: exists, made with other settings or sources (method" in refused.stderr
    assert Path("parts.tsv").read_bytes() == before and not Path("other.trec").exists()
    assert fuse("--method", "combsum", "--output", "other.trec", "--force").code == 0
    assert Path("parts.tsv").read_bytes() != before


def test_a_side_output_never_replaces_what_another_stage_made(fuse: Callable[..., CommandResult], moeir: Moeir) -> None:
    assert moeir("fuse", "--run", "one.trec", "--run", "two.trec", "--method", "rrf", "--output", "parts.tsv").code == 0
    before = Path("parts.tsv").read_bytes()
    refused = fuse("--method", "rrf", "--output", "fused.trec")
    assert refused.code == 2 and "parts.tsv: exists, made with other settings" in refused.stderr
    assert Path("parts.tsv").read_bytes() == before


def test_repaired_copies_never_replace_an_artifact(tmp_path: Path, moeir: Moeir, bm25_index: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "text": "a cat"}\n{"_id": "1", "text": "a dog"}\n', encoding="utf-8")
    before = {file.name: file.read_bytes() for file in sorted(bm25_index.iterdir()) if file.is_file()}
    refused = moeir("check", "--corpus", corpus, "--fix", bm25_index)
    assert refused.code == 2 and f"--fix {bm25_index}: exists, made by moeir index; name another folder" in refused.stderr
    assert {file.name: file.read_bytes() for file in sorted(bm25_index.iterdir()) if file.is_file()} == before
    assert moeir("check", "--corpus", corpus, "--fix", tmp_path / "mended").code in (0, 3)
    first = (tmp_path / "mended" / "corpus.jsonl").read_bytes()
    corpus.write_text('{"_id": "1", "text": "a cat"}\n{"_id": "1", "text": "a dog"}\n{"_id": "2", "text": "a cow"}\n', encoding="utf-8")
    assert moeir("check", "--corpus", corpus, "--fix", tmp_path / "mended").code in (0, 3)
    assert (tmp_path / "mended" / "corpus.jsonl").read_bytes() != first
