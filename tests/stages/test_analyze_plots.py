"""The analyses of runs and vectors through the command line, and every analysis as a plot."""

import json
import math

import pytest

LENGTHS = ("--query-length", 16, "--document-length", 32)
TEXTS = ("--queries", "test-queries.tsv", "--corpus", "corpus.jsonl")
RUNS = ("--run", "lexical.trec", "--run", "global.trec")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model, came_checkpoint, index, toy, moeir):
    """The working folder: two experts' runs of the toy queries, a CAME and a gated checkpoint."""
    folder = tmp_path_factory.mktemp("pictures")
    for file in toy.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "came").symlink_to(came_checkpoint)
    result = moeir("init", "--model", tiny_model, "--arch", "sbmoe:experts=3", *LENGTHS, "--output", folder / "gated")
    assert result.code == 0, result.stderr
    result = moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", folder / "runs")
    assert result.code == 0, result.stderr
    for name in ("lexical", "global"):
        (folder / f"{name}.trec").symlink_to(folder / "runs" / f"{name}.trec")
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture
def listed(moeir):
    def run(*command):
        result = moeir("analyze", *command, "--form", "jsonl")
        assert (result.code, result.messages) == (0, []), result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_wins_are_counted(listed):
    rows = listed("wins", *RUNS, "--qrels", "test-qrels.tsv", "--measure", "RR@10")
    assert list(rows[0]) == ["run", "queries", "wins", "share", "RR@10"]
    assert sum(row["wins"] for row in rows) == 6 and rows[-1]["run"] == "tied" and rows[-1]["RR@10"] is None


def test_a_projection_names_every_text_its_group_and_its_place(listed):
    rows = listed("projection", "--model", "came", *TEXTS, "--projection", "pca", "--dimensions", 3)
    assert list(rows[0]) == ["side", "id", "group", "x", "y", "z"] and len(rows) == 18
    assert [row["id"] for row in rows[:6]] == ["q1", "q2", "q3", "q4", "q5", "q6"]
    assert {row["group"] for row in rows} == {"query", "document"} and all(math.isfinite(row["z"]) for row in rows)
    routed = listed("projection", "--model", "gated", *TEXTS, "--projection", "tsne:perplexity=4")
    assert {row["group"] for row in routed} <= {"expert 0", "expert 1", "expert 2"} and "z" not in routed[0]
    command = ("projection", "--model", "came", *TEXTS, "--projection", "pca", "--sample", 4, "--seed", 3)
    assert len(listed(*command)) == 8 and listed(*command) == listed(*command)


PICTURES = {
    "overlap": ("--run", "lexical.trec", "--run", "global.trec"),
    "wins": (*RUNS, "--qrels", "test-qrels.tsv"),
    "usage": ("--model", "gated", *TEXTS),
    "projection": ("--model", "came", *TEXTS, "--projection", "pca", "--dimensions", 3),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_analysis_is_drawn_and_drawn_alike(name, moeir, tmp_path):
    pytest.importorskip("matplotlib")
    for file_name in ("first.svg", "second.svg", "one.png"):
        result = moeir("analyze", name, *PICTURES[name], "--output", tmp_path / file_name)
        assert (result.code, result.stdout, result.messages) == (0, "", [])
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert moeir("analyze", name, *PICTURES[name], "--output", tmp_path / "list.tsv").code == 0
    assert len((tmp_path / "list.tsv").read_text().splitlines()) > 1


def test_a_map_goes_into_a_report(moeir, tmp_path):
    assert moeir("analyze", *("projection", "--model", "came", *TEXTS, "--projection", "pca"), "--output", tmp_path / "map.tsv").code == 0
    command = ("report", "--run", "global.trec", "--qrels", "test-qrels.tsv", "--projection", tmp_path / "map.tsv")
    assert moeir(*command, "--output", tmp_path / "page.html").messages == []
    assert '"map":{"groups":["query","document"]' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("wins --run lexical.trec --qrels test-qrels.tsv", 2, "expected two runs or more, found 1"),
        ("wins --run lexical.trec --run global.trec", 2, "analyze wins: needs --qrels"),
        ("wins --run lexical.trec --run global.trec --qrels test-qrels.tsv --corpus corpus.jsonl", 2, "does not read --corpus"),
        ("wins --run lexical.trec --run global.trec --qrels test-qrels.tsv --queries train-queries.jsonl", 2, "which need --list"),
        ("wins --run lexical.trec --run global.trec --qrels test-qrels.tsv --measure nDGC", 2, "no measure is called"),
        ("usage --model came", 2, "analyze usage: needs --corpus, --queries or both"),
        ("projection --model came --queries test-queries.tsv --measure RR", 2, "does not read --measure"),
        ("projection --queries test-queries.tsv", 2, "analyze projection: needs --model"),
        ("projection --model came --queries test-queries.tsv --dimensions 4", 2, "--dimensions 4: expected 2 or 3"),
        ("projection --model came --queries test-queries.tsv --projection umap", 2, "analysis.projection has no 'umap'"),
        ("projection --model came --queries test-queries.tsv", 2, "tsne:perplexity=30: expected 1 to less than the number of points, 6"),
        ("projection --model came --queries test-queries.tsv --sample 2", 2, "expected more than 2 texts, found 2"),
        ("overlap --run lexical.trec --run global.trec --form tsv --output x.svg", 2, "--form tsv: x.svg is a plot"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_a_line(command, code, words, moeir):
    result = moeir("analyze", *command.replace("TEXTS", " ".join(TEXTS)).split())
    assert (result.code, result.stdout) == (code, "") and words in result.stderr and len(result.messages) == 1, result.stderr
