"""The analyses of runs and vectors through the command line, and every analysis as a plot."""

import json
import math

import pytest

LENGTHS = ("--query-length", 16, "--document-length", 32)
TEXTS = ("--queries", "test-queries.tsv", "--corpus", "corpus.jsonl")
RUNS = ("--run", "lexical.trec", "--run", "global.trec")


@pytest.fixture(scope="module")
def room(tmp_path_factory, tiny_model, came_checkpoint, index, toy, moeir):
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
    (folder / "strange.trec").write_text("q1 Q0 nowhere 1 2.0 t\n")
    return folder


@pytest.fixture(autouse=True)
def here(room, monkeypatch):
    monkeypatch.chdir(room)


@pytest.fixture
def listed(moeir):
    def run(*command):
        result = moeir("analyze", *command, "--form", "jsonl")
        assert (result.code, result.messages) == (0, []), result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_wins_are_counted_by_class_of_query(listed):
    rows = listed("wins", *RUNS, "--qrels", "test-qrels.tsv", *TEXTS, "--measure", "RR@10")
    assert list(rows[0]) == ["by", "group", "queries", "run", "wins", "share", "RR@10"]
    assert list(dict.fromkeys(row["by"] for row in rows)) == ["all", "length", "question", "overlap"]
    for by in ("all", "length", "question", "overlap"):
        assert sum(row["wins"] for row in rows if row["by"] == by) == 6
    assert {row["group"]: row["queries"] for row in rows if row["by"] == "question"} == {"who": 2, "when": 1, "why": 1, "how": 1, "none": 1}
    assert all(row["RR@10"] is None for row in rows if row["run"] == "tied")
    assert {row["by"] for row in listed("wins", *RUNS, "--qrels", "test-qrels.tsv")} == {"all"}


def test_a_projection_names_every_text_its_group_and_its_place(listed):
    rows = listed("projection", "--model", "came", *TEXTS, "--projection", "pca", "--dimensions", 3)
    assert list(rows[0]) == ["side", "id", "group", "x", "y", "z"] and len(rows) == 18
    assert [row["id"] for row in rows[:6]] == ["q1", "q2", "q3", "q4", "q5", "q6"]
    assert {row["group"] for row in rows} == {"query", "document"} and all(math.isfinite(row["z"]) for row in rows)
    routed = listed("projection", "--model", "gated", *TEXTS, "--projection", "tsne:perplexity=4")
    assert {row["group"] for row in routed} <= {"expert 0", "expert 1", "expert 2"} and "z" not in routed[0]
    best = listed("projection", "--model", "came", *TEXTS, "--projection", "pca", *RUNS, "--qrels", "test-qrels.tsv", "--sample", 6)
    assert len(best) == 12 and {row["group"] for row in best} <= {"lexical", "global", "tied", "document"}
    again = listed("projection", "--model", "came", *TEXTS, "--projection", "pca", *RUNS, "--qrels", "test-qrels.tsv", "--sample", 6)
    assert best == again


PAIRS = (*TEXTS, "--qrels", "test-qrels.tsv", "--pairs", 5, "--projection", "pca")
OF_RUN = (*TEXTS, "--qrels", "test-qrels.tsv", "--of-run", "global.trec", "--query", "q2", "--projection", "pca")


def test_pairs_are_projected_as_they_are_sampled(listed, room):
    from moeir.analysis.divergence import sample_pairs

    rows = listed("projection", "--model", "gated", *PAIRS, "--seed", 3)
    pairs = sample_pairs(room / "test-queries.tsv", room / "corpus.jsonl", room / "test-qrels.tsv", 5, 3)
    assert [(row["side"], row["id"], row["pair"]) for row in rows] == [
        (side, pair[column].id, number) for column, side in enumerate(("query", "document")) for number, pair in enumerate(pairs, 1)
    ]
    assert [row["group"] for row in rows] == [row["side"] for row in rows]


def test_each_pair_is_linked_in_each_panel():
    import numpy as np

    from moeir.analysis.projection import analyze_projection, pair_texts
    from moeir.records.texts import Text

    texts = pair_texts([(Text("q1", "a"), Text("d1", "b")), (Text("q2", "c"), Text("d2", "d"))])
    vectors = np.array([[0.0, 0.0], [0.0, 2.0], [8.0, 0.0], [8.0, 2.0]])  # q1, q2, d1, d2
    result = analyze_projection(texts, {"one": (vectors, ["x"] * 4), "two": (-vectors, ["x"] * 4)}, "pca", 2, 42)
    points = {(row[0], row[2]): tuple(row[-2:]) for row in result.rows}
    assert result.plot.links == [(panel, points[panel, f"q{n}"], points[panel, f"d{n}"]) for panel in ("one", "two") for n in (1, 2)]
    assert points["one", "q1"] == (-4.0, -1.0) and points["one", "d2"] == (4.0, 1.0)


def test_a_query_stands_among_its_hits_coloured_by_expert_before_and_after_the_block(listed, room):
    import numpy as np

    from moeir import open_checkpoint
    from moeir.analysis.projection import pca
    from moeir.records import runs, texts

    rows = listed("projection", "--model", "gated", *OF_RUN, "--sample", 7, "--before-mixture", "--dtype", "float32")
    hits = runs.read_run(room / "global.trec").documents_of("q2")[:7]
    assert list(dict.fromkeys(row["panel"] for row in rows)) == ["before the experts", "after the experts"]
    assert [row["id"] for row in rows] == 2 * ["q2", *hits]
    assert {row["id"] for row in rows if row["relevant"]} == {"ant"} & {*hits}
    checkpoint = open_checkpoint(room / "gated")
    contents = {text.id: text.content for file in ("test-queries.tsv", "corpus.jsonl") for text in texts.read_texts(room / file)}
    query = checkpoint.encode([contents["q2"]], "query")
    documents = checkpoint.encode([contents[name] for name in hits], "document")
    choices = [f"expert {number}" for number in documents.routing["gate"].probabilities.argmax(1).tolist()]
    assert [row["group"] for row in rows] == 2 * ["query", *choices]
    after = [*query["global"].vectors.tolist(), *documents["global"].vectors.tolist()]
    checkpoint.architecture.mixture = None
    before = [vector for names, side in ((["q2"], "query"), (hits, "document"))
              for vector in checkpoint.encode([contents[name] for name in names], side)["global"].vectors.tolist()]  # fmt: skip
    for part, vectors in ((rows[:8], before), (rows[8:], after)):
        assert np.array([[row["x"], row["y"]] for row in part]) == pytest.approx(pca(np.array(vectors, np.float32), 2), abs=1e-4)


def test_models_stand_side_by_side(listed, moeir, tmp_path):
    rows = listed("projection", "--model", "came", "--model", "gated", *PAIRS)
    assert [row["panel"] for row in rows] == ["came"] * 10 + ["gated"] * 10
    pytest.importorskip("matplotlib")
    command = ("projection", "--model", "came", "--model", "gated", *OF_RUN, "--output", tmp_path / "panels.svg")
    assert moeir("analyze", *command).messages == []
    content = (tmp_path / "panels.svg").read_text()
    assert content.count(">query<") == content.count(">relevant<") == 1 and ">came<" in content and ">gated<" in content  # one legend


PICTURES = {
    "projection of pairs": ("--model", "came", *PAIRS, "--dimensions", 3),
    "projection of hits": ("--model", "gated", *OF_RUN, "--dimensions", 3),
    "overlap": ("--run", "lexical.trec", "--run", "global.trec"),
    "wins": (*RUNS, "--qrels", "test-qrels.tsv", *TEXTS),
    "usage": ("--model", "gated", *TEXTS),
    "divergence": ("--model", "came", *TEXTS, "--qrels", "test-qrels.tsv", "--pairs", 5),
    "projection": ("--model", "came", *TEXTS, "--projection", "pca", "--dimensions", 3),
}


@pytest.mark.parametrize("name", PICTURES)
def test_every_analysis_is_drawn_and_drawn_alike(name, moeir, tmp_path):
    pytest.importorskip("matplotlib")
    for file_name in ("first.svg", "second.svg", "one.png"):
        result = moeir("analyze", name.split()[0], *PICTURES[name], "--output", tmp_path / file_name)
        assert (result.code, result.stdout, result.messages) == (0, "", [])
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert moeir("analyze", name.split()[0], *PICTURES[name], "--output", tmp_path / "list.tsv").code == 0
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
        ("wins --run lexical.trec --run global.trec --qrels test-qrels.tsv --corpus corpus.jsonl", 2, "--corpus needs --queries"),
        ("wins --run lexical.trec --run global.trec --qrels test-qrels.tsv --queries train-queries.jsonl", 3, "none of its queries is"),
        ("wins --run lexical.trec --run global.trec --qrels test-qrels.tsv --measure nDGC", 2, "no measure is called"),
        ("usage --model came", 2, "analyze usage: needs --corpus, --queries or both"),
        ("projection --model came --queries test-queries.tsv --bandwidth 3", 2, "does not read --bandwidth"),
        ("projection --queries test-queries.tsv", 2, "analyze projection: needs --model"),
        ("projection --model came --queries test-queries.tsv --dimensions 4", 2, "--dimensions 4: expected 2 or 3"),
        ("projection --model came --queries test-queries.tsv --projection umap", 2, "analysis.projection has no 'umap'"),
        ("projection --model came --queries test-queries.tsv", 2, "tsne:perplexity=30: expected 1 to less than the number of points, 6"),
        ("projection --model came --queries test-queries.tsv --run global.trec", 2, "--run, twice or more, and --qrels go together"),
        ("projection --model came --queries test-queries.tsv --sample 2", 2, "expected more than 2 texts, found 2"),
        ("projection --model came --pairs 3 --queries test-queries.tsv --corpus corpus.jsonl", 2, "projection --pairs: needs --qrels"),
        ("projection --model came --pairs 3 --corpus corpus.jsonl --qrels test-qrels.tsv", 2, "projection --pairs: needs --queries"),
        ("projection --model came --of-run global.trec --queries test-queries.tsv --query q1", 2, "projection --of-run: needs --corpus"),
        ("projection --model came --of-run global.trec TEXTS", 2, "expected --query ID, the query whose hits are projected, found 0"),
        ("projection --model came --query q1 TEXTS", 2, "analyze projection: expected --of-run with --query, found 1 --query"),
        ("projection --model came --of-run global.trec --query q0 TEXTS", 3, "test-queries.tsv: has no query 'q0' (--query)"),
        ("projection --model came --of-run strange.trec --query q1 TEXTS", 3, "corpus.jsonl: has no document 'nowhere', a hit in strange"),
        ("projection --model came --of-run strange.trec --query q2 TEXTS", 3, "strange.trec: has no hit of the query 'q2' (--query)"),
        ("projection --model came --pairs 3 --of-run global.trec --query q1 TEXTS", 2, "--pairs and --of-run exclude one another"),
        ("projection --model came --before-mixture TEXTS", 2, "--before-mixture: came: came has no gated block over its global vector"),
        ("usage --model came --model gated --queries test-queries.tsv", 2, "analyze usage: expected one --model, found 2"),
        ("overlap --run lexical.trec --run global.trec --form tsv --output x.svg", 2, "--form tsv: x.svg is a plot"),
    ],
)
def test_what_cannot_be_looked_at_is_refused_in_a_line(command, code, words, moeir):
    result = moeir("analyze", *command.replace("TEXTS", " ".join(TEXTS)).split())
    assert (result.code, result.stdout) == (code, "") and words in result.stderr and len(result.messages) == 1, result.stderr
