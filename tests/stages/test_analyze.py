"""Every analysis through the command line: as numbers, as a plot, and refused in a line."""

import json
import math
from pathlib import Path

import pytest

from moeir.records import texts

LENGTHS = ("--query-length", 16, "--document-length", 32)
ARCHITECTURES = {
    "token": "taser:routing=token,every=1", "sequence": "taser:routing=sequence,every=0,experts=3", "gated": "sbmoe:experts=3",
    "random": "sbmoe:gate=random", "role": "mote:every=1,similarity=dense", "plain": "dense",
}  # fmt: skip
RANKS = {"first": {"a": 1, "b": 2, "c": 4}, "second": {"a": 2, "b": 2, "c": 1}, "third": {"d": 2, "e": 1}}  # of the document `right`
TEXTS = ("--queries", "test-queries.tsv", "--corpus", "corpus.jsonl")
RUNS = ("--run", "lexical.trec", "--run", "global.trec")
TWO = ("--run", "one=first.trec", "--run", "two=second.trec", "--qrels", "abc.qrels")
OVERLAP = ("--run", "one.trec", "--run", "two.trec", "--overlap", "overlap:depth=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model, came_checkpoint, index, toy, moeir) -> Path:
    """The working folder: a checkpoint per way of routing, the toy texts with runs of two experts, and runs seen at once."""
    folder = tmp_path_factory.mktemp("analyze")
    for name, arch in ARCHITECTURES.items():
        result = moeir("init", "--model", tiny_model, "--arch", arch, *LENGTHS, "--output", folder / name)
        assert result.code == 0, result.stderr
    result = moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", folder / "runs")
    assert result.code == 0, result.stderr
    for path in (*toy.iterdir(), folder / "runs/lexical.trec", folder / "runs/global.trec"):
        (folder / path.name).symlink_to(path)
    (folder / "came").symlink_to(came_checkpoint)
    (folder / "one.trec").write_text("q1 Q0 owl 1 2.0 t\nq1 Q0 cat 2 1.0 t\n")
    (folder / "two.trec").write_text("q1 Q0 cat 1 9 t\n")
    for name, ranks in RANKS.items():
        hits = [(query, rank, "right" if rank == own else f"x{rank}") for query, own in ranks.items() for rank in range(1, 6)]
        (folder / f"{name}.trec").write_text("".join(f"{query} Q0 {document} {rank} {9 - rank} t\n" for query, rank, document in hits))
    (folder / "abc.qrels").write_text("".join(f"{query} 0 right 1\n" for query in "abc"))
    (folder / "asked.tsv").write_text(f"a\twho  hunts mice\nb\t{'long ' * 40}\nc\twhen do owls sleep\n")
    (folder / "z.tsv").write_text("z\tanother query\n")
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


def test_the_flags_say_which_analysis_and_the_output_which_form(moeir, tmp_path):
    result = moeir("analyze", *OVERLAP)
    assert result == (0, "run  run  queries  overlap:depth=2\n---  ---  -------  ---------------\none  two        1           0.5000\n", "")
    assert moeir("analyze", "overlap", *OVERLAP) == result
    usage = moeir("analyze", "--model", "sequence", "--corpus", "corpus.jsonl").stdout.splitlines()
    assert usage[0].split() == ["side", "router", "of", "expert", "chosen", "share", "probability", "entropy"]
    assert len(usage) == 2 + 4 * 4
    for name in ("found.tsv", "found.jsonl"):
        assert moeir("analyze", *OVERLAP, "--output", tmp_path / name).messages == []
    assert (tmp_path / "found.tsv").read_text() == "run\tother\tqueries\toverlap:depth=2\none\ttwo\t1\t0.5\n"
    assert json.loads((tmp_path / "found.jsonl").read_text()) == {"run": "one", "other": "two", "queries": 1, "overlap:depth=2": 0.5}
    assert "already made" in moeir("analyze", *OVERLAP, "--output", tmp_path / "found.tsv").stderr


@pytest.mark.parametrize(("name", "routers", "unit"), [
    ("token", ["layer2", "layer4"], "tokens"), ("sequence", [f"layer{number}" for number in (1, 2, 3, 4)], "texts"),
    ("gated", ["gate"], "texts"),
])  # fmt: skip
def test_usage_counts_what_the_routers_say_once_in_any_batches(name, routers, unit, folder, listed, monkeypatch):
    from moeir import open_checkpoint

    monkeypatch.setattr("moeir.stages.analysis_inputs.CHUNK", 5)
    records = listed("usage", "--model", name, *TEXTS, "--max-tokens", 40, "--dtype", "float32")
    sums = [(row["side"], row["router"]) for row in records if row["expert"] == "all"]
    assert sums == [(side, router) for side in ("query", "document") for router in routers]
    checkpoint = open_checkpoint(folder / name)
    for side, file in (("query", "test-queries.tsv"), ("document", "corpus.jsonl")):
        encoded = checkpoint.encode([text.content for text in texts.read_texts(folder / file)], side)
        for router in routers:
            probabilities = encoded.routing[router].probabilities
            *rows, total = [row for row in records if (row["side"], row["router"]) == (side, router)]
            assert [row["chosen"] for row in rows] == probabilities.argmax(1).bincount(minlength=probabilities.shape[1]).tolist()
            assert [row["probability"] for row in rows] == pytest.approx(probabilities.mean(0).tolist(), rel=1e-5)
            assert (total["chosen"], total["of"]) == (len(probabilities), unit)
            assert total["share"] == pytest.approx(1.0)
            assert total["entropy"] == pytest.approx(sum(row["entropy"] for row in rows))


def test_wins_are_counted_and_listed_with_the_largest_difference_first(moeir, listed):
    rows = listed("wins", *RUNS, "--qrels", "test-qrels.tsv", "--measure", "RR@10")
    assert list(rows[0]) == ["run", "queries", "wins", "share", "RR@10"]
    assert sum(row["wins"] for row in rows) == 6 and rows[-1]["run"] == "tied" and rows[-1]["RR@10"] is None
    command = ("wins", "--list", *TWO, "--measure", "RR")
    assert listed(*command, "--queries", "asked.tsv") == [
        {"query": "c", "text": "when do owls sleep", "winner": "two", "one": 0.25, "two": 1.0, "spread": 0.75},
        {"query": "a", "text": "who hunts mice", "winner": "one", "one": 1.0, "two": 0.5, "spread": 0.5},
        {"query": "b", "text": ("long " * 40).strip(), "winner": "=", "one": 0.5, "two": 0.5, "spread": 0.0},
    ]
    assert f"  {('long ' * 40)[:79]}…  " in moeir("analyze", *command, "--queries", "asked.tsv").stdout
    plain = moeir("analyze", *command, "--run", "three=first.trec").stdout.splitlines()
    assert [line.split() for line in plain][2:4] == [
        ["c", "two", "0.2500", "1.0000", "0.2500", "0.7500"], ["a", "one", "=", "three", "1.0000", "0.5000", "1.0000", "0.5000"],
    ]  # fmt: skip


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
    "overlap": RUNS,
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


def test_a_map_goes_into_a_report(moeir, tmp_path):
    assert moeir("analyze", *("projection", "--model", "came", *TEXTS, "--projection", "pca"), "--output", tmp_path / "map.tsv").code == 0
    command = ("report", "--run", "global.trec", "--qrels", "test-qrels.tsv", "--projection", tmp_path / "map.tsv")
    assert moeir(*command, "--output", tmp_path / "page.html").messages == []
    assert '"map":{"groups":["query","document"]' in (tmp_path / "page.html").read_text()


def test_the_gain_on_lost_queries_of_two_experts_and_a_sentence_below_the_table(moeir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "many.qrels").write_text("".join(f"q{number} 0 right 1\n" for number in range(40)))
    for name, (one, two) in {"before": (1, 5), "later": (1, 1)}.items():
        for expert, rank in (("one", one), ("two", two)):
            others = [f"x{number}" for number in range(12)]
            lines = [f"q{number} Q0 {document} 1 {-place} t\n" for number in range(40)
                     for place, document in enumerate([*others[: rank - 1], "right", *others[rank - 1 :]])]  # fmt: skip
            (tmp_path / f"{expert}-{name}.trec").write_text("".join(lines))
    runs = [word for name, flag in (("before", "--run"), ("later", "--after")) for expert in ("one", "two")
            for word in (flag, f"{expert}={expert}-{name}.trec")]  # fmt: skip
    command = ("analyze", "competition", *runs, "--qrels", "many.qrels", "--measure", "RR")
    refused = moeir(*command)
    assert refused.code == 3 and "no expert loses a query; expected experts that differ" in refused.stderr, "after, none loses"
    (tmp_path / "two-later.trec").write_text((tmp_path / "two-before.trec").read_text().replace("q7 Q0 right 1 -4", "q7 Q0 right 1 1"))
    result = moeir(*command, "--seed", "3")
    assert (result.code, result.messages) == (0, [])
    lines = result.stdout.splitlines()
    assert lines[0].split("  ")[0] == "expert" and [line.split()[0] for line in lines[2:5]] == ["one", "two", "all"]
    assert lines[5] == "" and lines[6].startswith("loss that competition keeps, by temperature (all alike: 1.00): 1: 0.")
    assert lines[7].startswith(("undecided: learning alike, experts gain +0.0", "do not compete: learning alike"))
    records = moeir(*command, "--seed", "3", "--form", "jsonl")
    assert json.loads(records.stdout.splitlines()[2])["lost"] == 40
    words = ["loss that competition keeps, by temperature (all alike", lines[7].split(":")[0]]
    assert [line.split(":")[0] for line in records.messages] == words
    assert "has no plot" in moeir(*command, "--output", "x.svg").stderr


JUDGED = "--qrels test-qrels.tsv"
BOTH = "--run lexical.trec --run global.trec"
QUERIES = "--model came --queries test-queries.tsv"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("--run one.trec", 2, "expected two runs or more, found 1; repeat --run"),
        (f"wins --run lexical.trec {JUDGED}", 2, "expected two runs or more, found 1"),
        ("usages --model token", 2, "analyze usages: expected one of overlap, usage, wins"),
        (f"competition {BOTH} {JUDGED}", 2, "analyze competition: needs --after"),
        (f"wins {BOTH}", 2, "analyze wins: needs --qrels"),
        ("usage --model token", 2, "analyze usage: needs --corpus, --queries or both"),
        ("usage --corpus corpus.jsonl", 2, "analyze usage: needs --model"),
        (f"{BOTH} --model token", 2, "does not read --model; it belongs to analyze usage or projection"),
        (f"wins {BOTH} {JUDGED} --corpus corpus.jsonl", 2, "does not read --corpus"),
        (f"wins {BOTH} {JUDGED} --queries train-queries.jsonl", 2, "which need --list"),
        (f"wins {BOTH} {JUDGED} --measure nDGC", 2, "no measure is called"),
        ("usage --model role --corpus corpus.jsonl", 2, "role: mote has no learned router; there is no usage to count"),
        ("usage --model random --corpus corpus.jsonl", 2, "random: sbmoe has no learned router"),
        ("usage --model plain --corpus corpus.jsonl", 2, "plain: dense has no learned router"),
        ("projection --model came --corpus corpus.jsonl --expert local", 2, "--expert local: expected global"),
        (f"projection {QUERIES} --dimensions 4", 2, "--dimensions 4: expected 2 or 3"),
        (f"projection {QUERIES} --projection umap", 2, "analysis.projection has no 'umap'"),
        (f"projection {QUERIES}", 2, "tsne:perplexity=30: expected 1 to less than the number of points, 6"),
        (f"projection {QUERIES} --sample 2", 2, "expected more than 2 texts, found 2"),
        ("usage --model token --corpus absent", 3, "absent: no such file (--corpus)"),
        ("usage --model corpus.jsonl --corpus corpus.jsonl", 4, "expected a folder with checkpoint, found a file"),
        (f"{BOTH} --form xml", 2, "--form xml: expected auto, table, tsv or jsonl"),
        (f"overlap {BOTH} --form tsv --output x.svg", 2, "--form tsv: x.svg is a plot"),
        (f"wins {BOTH} {JUDGED} --output x.pdf", 2, "--output x.pdf: expected .svg or .png for a plot, .tsv or .jsonl for a table"),
        ("wins --list --run first.trec second.trec --qrels abc.qrels --queries z.tsv", 3, "has no query 'a', which abc.qrels judges"),
        ("wins --list --run first.trec third.trec --qrels abc.qrels --output x.png", 2, "analyze wins --list has no plot"),
        ("overlap --list --run first.trec", 2, "analyze overlap: does not read --list-queries; it belongs to analyze wins"),
        ("wins --list --run winner=first.trec second.trec --qrels abc.qrels --form jsonl", 2, "--run: the table would have two columns"),
    ],
)
def test_what_cannot_be_analysed_is_refused_in_a_line(command, code, words, moeir):
    result = moeir("analyze", *command.split())
    assert (result.code, result.stdout) == (code, "") and words in result.stderr and len(result.messages) == 1, result.stderr
    assert not list(Path().glob("x.*"))
