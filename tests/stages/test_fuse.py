"""`moeir fuse`: the method that applies by default, and the warning about scores of different scales."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moeir.artifacts import manifests


@pytest.fixture
def room(index: Path, bm25_index: Path, toy: Path, tmp_path: Path, moeir: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs of CAME's experts, in a folder and one by one, and BM25's."""
    monkeypatch.chdir(tmp_path)
    search = ("search", "--queries", toy / "test-queries.tsv", "--depth", 10, "--index")
    assert moeir(*search, index, "--output", "came").code == 0
    assert moeir(*search, index, "--expert", "local", "--output", "local.trec").code == 0
    assert moeir(*search, bm25_index, "--output", "bm25.trec").code == 0
    return tmp_path


def fused(moeir: Callable, *runs: str, method: str | None = None) -> tuple[str, str, str]:
    """The fused run, the method in its manifest, and what was logged."""
    options = () if method is None else ("--method", method)
    arguments = [part for run in runs for part in ("--run", run)]
    result = moeir("fuse", *arguments, *options, "--force", "--output", "fused.trec")
    assert result.code == 0, result.stderr
    return Path("fused.trec").read_text(), manifests.read_manifest(Path("fused.trec"))["settings"]["method"], result.stderr


def test_runs_of_one_index_are_summed_and_others_fused_by_rank(room, moeir):
    for runs in (("came/lexical.trec", "came/global.trec"), ("came/lexical.trec", "local.trec")):
        text, method, logged = fused(moeir, *runs)
        assert method == "came-sum" and "--method came-sum: the runs are those of one index" in logged
        assert text == fused(moeir, *runs, method="came-sum")[0] != fused(moeir, *runs, method="rrf")[0]
    Path("copy.trec").write_bytes(Path("came/global.trec").read_bytes())
    for runs in (("came/global.trec", "bm25.trec"), ("came/lexical.trec", "copy.trec")):
        text, method, logged = fused(moeir, *runs)
        assert method == "rrf" and "--method rrf: the runs are of different systems" in logged
        assert text == fused(moeir, *runs, method="rrf")[0]


def test_a_sum_of_scores_of_very_different_scales_is_warned_of(room, moeir):
    lines = [line.split() for line in Path("bm25.trec").read_text().splitlines()]
    Path("cosine.trec").write_text("".join(f"{q} Q0 {d} {rank} {float(score) / 50:.6f} t\n" for q, _, d, rank, score, _ in lines))
    for method in ("came-sum", "combsum"):
        logged = fused(moeir, "bm25.trec", "cosine.trec", method=method)[2]
        assert f"--method {method}: scores of bm25.trec have a standard deviation of" in logged
        assert "rrf or zscore count both alike" in logged
    assert "standard deviation" not in fused(moeir, "bm25.trec", "cosine.trec", method="zscore")[2]
    assert "standard deviation" not in fused(moeir, "bm25.trec", "bm25.trec", method="combsum")[2]
