"""`moeir fuse`: the method that applies by default, and the depth of the searches."""

from pathlib import Path

import pytest

from moeir.artifacts import manifests
from moeir.records.runs import read_run


@pytest.fixture
def room(work_folder, run):
    """The runs of CAME's experts, in a folder and one by one, and BM25's."""
    search = "search --queries toy/test-queries.tsv --depth 10 --index"
    for rest in ("idx --output came-runs", "idx --expert local --output local.trec", "bm25 --output bm25.trec"):
        run(f"{search} {rest}")
    Path("copy.trec").write_bytes(Path("came-runs/global.trec").read_bytes())


@pytest.fixture
def fuse(run):
    """`fuse(runs, flags)`: the fused run, the method in its manifest, and what was logged."""

    def fuse_runs(runs, flags=""):
        result = run(f"fuse --run {runs} {flags} --force --output fused.trec")
        return Path("fused.trec").read_text(), manifests.read_manifest(Path("fused.trec"))["counts"]["method"], result.stderr

    return fuse_runs


@pytest.mark.parametrize(("runs", "expected", "words"), [
    ("came-runs/lexical.trec came-runs/global.trec", "came-sum", "those of one index"),
    ("came-runs/lexical.trec local.trec", "came-sum", "those of one index"),
    ("came-runs/global.trec bm25.trec", "rrf", "of different systems"),
    ("came-runs/lexical.trec copy.trec", "rrf", "of different systems"),
])  # fmt: skip
def test_runs_of_one_index_are_summed_and_others_fused_by_rank(runs, expected, words, room, fuse):
    text, method, logged = fuse(runs)
    assert method == expected and f"--method {expected}: the runs are {words}" in logged
    alone = {method: fuse(runs, f"--method {method}")[0] for method in ("came-sum", "rrf")}
    assert text == alone[expected] and alone["came-sum"] != alone["rrf"]


def test_the_depth_of_a_run_is_that_of_its_search(room, run, fuse, refuse):
    """Lists of the toy collection are shorter than 1,000 hits: `fuse` knows from the manifest, from --run-depth, or not at all."""
    run("search --queries toy/test-queries.tsv --index idx --output deep")
    text, *_ = fuse("deep/lexical.trec deep/local.trec deep/global.trec", "--method came-sum")
    expected = read_run("deep/fused.trec")
    assert [read_run("fused.trec").hits(query) for query in expected.queries] == [expected.hits(query) for query in expected.queries]
    Path("copies").mkdir()
    for name in ("lexical", "local", "global"):  # the lexical expert finds the same few documents at any depth
        Path(f"copies/{name}.trec").write_bytes(Path(f"deep/{name}.trec").read_bytes())
    copies = "copies/lexical.trec copies/local.trec copies/global.trec"
    assert fuse(copies, "--method came-sum --run-depth 1000")[0] == text
    refused = refuse(2, "expected the depth of its search", f"fuse --run {copies} --run-depth 2 --output refused.trec")
    assert "--run-depth 2: copies/" in refused.stderr


def test_a_run_that_was_cut_since_its_search_has_no_depth_of_its_manifest(room, fuse):
    """A list cut to 2 hits ends for want of room: the documents that it lacks get its 2nd score, beside the manifest or elsewhere."""
    whole = Path("came-runs/global.trec")
    lines = [line for line in whole.read_text().splitlines(keepends=True) if int(line.split()[3]) <= 2]
    for path in (whole, Path("cut.trec")):
        path.write_text("".join(lines))
    beside, *_ = fuse("came-runs/global.trec came-runs/local.trec", "--method came-sum")
    assert beside == fuse("cut.trec came-runs/local.trec", "--method came-sum")[0]
    cut, local = read_run(whole), read_run("came-runs/local.trec")
    for query in cut.queries:
        second = cut.hits(query)[1][1]
        expected = {name: score + dict(cut.hits(query)).get(name, second) for name, score in local.hits(query)}
        assert {name: dict(read_run("fused.trec").hits(query))[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_a_sum_of_scores_of_very_different_scales_is_warned_of(room, fuse):
    lines = [line.split() for line in Path("bm25.trec").read_text().splitlines()]
    Path("cosine.trec").write_text("".join(f"{q} Q0 {d} {rank} {float(score) / 50:.6f} t\n" for q, _, d, rank, score, _ in lines))
    for method in ("came-sum", "combsum"):
        logged = fuse("bm25.trec cosine.trec", f"--method {method}")[2]
        assert f"--method {method}: scores of bm25.trec have a standard deviation of" in logged and "rrf or zscore count both" in logged
    assert "standard deviation" not in fuse("bm25.trec cosine.trec", "--method zscore")[2]
    assert "standard deviation" not in fuse("bm25.trec ./bm25.trec", "--method combsum")[2]


def test_a_guessed_depth_is_said_once_and_only_where_it_counts(room, run):
    Path("short.trec").write_text("q1 Q0 owl 1 9 t\nq1 Q0 bat 2 8 t\n")
    line = "depth of the searches: guessed by the longest lists, 10 of copy.trec, 2 of short.trec; --run-depth K sets it"
    fuse = "fuse --run copy.trec short.trec --method"
    for method in ("came-sum", "sumrr", "linear:weights=1+1"):
        assert run(f"{fuse} {method}").messages.count(line) == 1
        assert line not in run(f"{fuse} {method} --run-depth 10").messages
    for method in ("rrf", "combsum", "zscore"):
        assert "guessed" not in run(f"{fuse} {method}").stderr
    assert "guessed" not in run("fuse --run came-runs/global.trec came-runs/lexical.trec --method came-sum").stderr
    mixed = run("fuse --run came-runs/global.trec short.trec --method came-sum")
    assert "guessed by the longest lists, 2 of short.trec; --run-depth" in mixed.stderr
    learned = run("calibrate --run copy.trec short.trec --qrels toy/test-qrels.tsv --output fusion.json")
    assert "guessed by the longest lists, 10 of copy.trec, 2 of short.trec" in learned.stderr
