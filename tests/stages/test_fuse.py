"""`moeir fuse`: the method that applies by default, and the warning about scores of different scales."""

from collections.abc import Callable
from pathlib import Path

import pytest

from moeir.artifacts import manifests
from moeir.records.runs import read_run


@pytest.fixture
def room(index: Path, bm25_index: Path, toy: Path, tmp_path: Path, moeir: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs of CAME's experts, in a folder and one by one, and BM25's."""
    monkeypatch.chdir(tmp_path)
    search = ("search", "--queries", toy / "test-queries.tsv", "--depth", 10, "--index")
    Path("index").symlink_to(index)
    Path("queries.tsv").symlink_to(toy / "test-queries.tsv")
    Path("qrels.tsv").symlink_to(toy / "test-qrels.tsv")
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
    return Path("fused.trec").read_text(), manifests.read_manifest(Path("fused.trec"))["counts"]["method"], result.stderr


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


def test_the_depth_of_a_run_is_that_of_its_search(room: Path, moeir: Callable) -> None:
    """Lists of the toy collection are shorter than 1,000 hits: `fuse` knows from the manifest, from --run-depth, or not at all."""
    names = ("lexical", "local", "global")
    assert moeir("search", "--queries", "queries.tsv", "--index", "index", "--output", "deep").code == 0
    arguments = [f"--run=deep/{name}.trec" for name in names]
    assert moeir("fuse", "--method", "came-sum", *arguments, "--output", "fused.trec").code == 0
    expected = read_run("deep/fused.trec")
    assert [read_run("fused.trec").hits(query) for query in expected.queries] == [expected.hits(query) for query in expected.queries]
    Path("copies").mkdir()
    for name in names:  # the lexical expert finds the same few documents at any depth
        Path(f"copies/{name}.trec").write_bytes(Path(f"deep/{name}.trec").read_bytes())
    copies = [f"--run=copies/{name}.trec" for name in names]
    assert moeir("fuse", "--method", "came-sum", *copies, "--run-depth", 1000, "--output", "told.trec").code == 0
    assert Path("told.trec").read_text() == Path("fused.trec").read_text()
    refused = moeir("fuse", *copies, "--run-depth", 2, "--output", "refused.trec")
    assert refused.code == 2 and "--run-depth 2: copies/" in refused.stderr and "expected the depth of its search" in refused.stderr


def test_a_run_without_a_search_has_the_depth_of_its_longest_list(moeir: Callable, tmp_path: Path) -> None:
    lexical, dense = tmp_path / "lexical.trec", tmp_path / "dense.trec"
    lines = ["1 Q0 d4 1 9 t", "1 Q0 d7 2 5 t", "2 Q0 d1 1 3 t", "2 Q0 d2 2 2 t", "2 Q0 d3 3 1 t"]
    lexical.write_text("\n".join(lines) + "\n")
    dense.write_text("1 Q0 d1 1 0.2 t\n1 Q0 d4 2 0.1 t\n1 Q0 d7 3 0.05 t\n")
    result = moeir("fuse", "--run", lexical, "--run", dense, "--method", "came-sum")
    scores = {(words[0], words[2]): float(words[4]) for words in map(str.split, result.stdout.splitlines())}
    assert scores["1", "d1"] == pytest.approx(0.2)  # not 5.2


def test_a_run_that_was_cut_since_its_search_has_no_depth_of_its_manifest(room: Path, moeir: Callable) -> None:
    """A list cut to 2 hits ends for want of room: the documents that it lacks get its 2nd score, beside the manifest or elsewhere."""
    whole = Path("came/global.trec")
    lines = [line for line in whole.read_text().splitlines(keepends=True) if int(line.split()[3]) <= 2]
    for path in (whole, Path("cut.trec")):
        path.write_text("".join(lines))
    beside = fused(moeir, "came/global.trec", "came/local.trec", method="came-sum")[0]
    assert beside == fused(moeir, "cut.trec", "came/local.trec", method="came-sum")[0]
    cut, local = read_run(whole), read_run("came/local.trec")
    for query in cut.queries:
        second = cut.hits(query)[1][1]
        expected = {name: score + dict(cut.hits(query)).get(name, second) for name, score in local.hits(query)}
        assert {name: dict(read_run("fused.trec").hits(query))[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_a_sum_of_scores_of_very_different_scales_is_warned_of(room, moeir):
    lines = [line.split() for line in Path("bm25.trec").read_text().splitlines()]
    Path("cosine.trec").write_text("".join(f"{q} Q0 {d} {rank} {float(score) / 50:.6f} t\n" for q, _, d, rank, score, _ in lines))
    for method in ("came-sum", "combsum"):
        logged = fused(moeir, "bm25.trec", "cosine.trec", method=method)[2]
        assert f"--method {method}: scores of bm25.trec have a standard deviation of" in logged
        assert "rrf or zscore count both alike" in logged
    Path("scaled").mkdir()
    Path("cosine.trec").rename("scaled/bm25.trec")
    logged = fused(moeir, "bm25.trec", "scaled/bm25.trec", method="combsum")[2]
    assert "scores of bm25.trec have" in logged and "those of scaled/bm25.trec " in logged
    Path("scaled/bm25.trec").rename("cosine.trec")
    assert "standard deviation" not in fused(moeir, "bm25.trec", "cosine.trec", method="zscore")[2]
    assert "standard deviation" not in fused(moeir, "bm25.trec", "bm25.trec", method="combsum")[2]


def test_a_guessed_depth_is_said_once_and_only_where_it_counts(room: Path, moeir: Callable) -> None:
    Path("copy.trec").write_bytes(Path("came/global.trec").read_bytes())
    Path("short.trec").write_text("q1 Q0 owl 1 9 t\nq1 Q0 bat 2 8 t\n")
    line = "depth of the searches: guessed by the longest lists, 10 of copy.trec, 2 of short.trec; --run-depth K sets it"
    fuse = ("fuse", "--run", "copy.trec", "--run", "short.trec")
    for method in ("came-sum", "sumrr", "linear:weights=1+1"):
        assert moeir(*fuse, "--method", method).messages.count(line) == 1
        assert line not in moeir(*fuse, "--method", method, "--run-depth", 10).messages
    for method in ("rrf", "combsum", "zscore"):
        assert "guessed" not in moeir(*fuse, "--method", method).stderr
    assert "guessed" not in moeir("fuse", "--run", "came/global.trec", "--run", "came/lexical.trec", "--method", "came-sum").stderr
    mixed = moeir("fuse", "--run", "came/global.trec", "--run", "short.trec", "--method", "came-sum")
    assert "guessed by the longest lists, 2 of short.trec; --run-depth" in mixed.stderr
    learned = moeir("calibrate", "--run", "copy.trec", "--run", "short.trec", "--qrels", "qrels.tsv", "--output", "fusion.json")
    assert "guessed by the longest lists, 10 of copy.trec, 2 of short.trec" in learned.stderr
