"""Every analysis through the command line: as numbers, and refused in a line."""

import json
from pathlib import Path

import pytest

from moeir.records import texts
from tests.conftest import run_moeir

LENGTHS = ("--query-length", 16, "--document-length", 32)
ARCHITECTURES = {
    "token": "taser:routing=token,every=1", "sequence": "taser:routing=sequence,every=0,experts=3", "gated": "sbmoe:experts=3",
    "random": "sbmoe:gate=random", "role": "mote:every=1,similarity=dense",
}  # fmt: skip
RANKS = {"first": {"a": 1, "b": 2, "c": 4}, "second": {"a": 2, "b": 2, "c": 1}, "third": {"d": 2, "e": 1}}  # of the document `right`
TEXTS = ("--queries", "test-queries.tsv", "--corpus", "corpus.jsonl")
RUNS = ("--run", "lexical.trec", "--run", "global.trec")
TWO = ("--run", "one=first.trec", "--run", "two=second.trec", "--qrels", "abc.qrels")
OVERLAP = ("--run", "one.trec", "--run", "two.trec", "--overlap", "overlap:depth=2")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory, tiny_model, index, toy):
    """The working folder: a checkpoint per way of routing, the toy texts with runs of two experts, and runs seen at once."""
    folder = tmp_path_factory.mktemp("analyze")
    for name, arch in ARCHITECTURES.items():
        run_moeir("init", "--model", tiny_model, "--arch", arch, *LENGTHS, "--output", folder / name)
    run_moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", folder / "runs")
    for path in (*toy.iterdir(), folder / "runs/lexical.trec", folder / "runs/global.trec"):
        (folder / path.name).symlink_to(path)
    (folder / "one.trec").write_text("q1 Q0 owl 1 2.0 t\nq1 Q0 cat 2 1.0 t\n")
    (folder / "two.trec").write_text("q1 Q0 cat 1 9 t\n")
    for name, ranks in RANKS.items():
        hits = [(query, rank, "right" if rank == own else f"x{rank}") for query, own in ranks.items() for rank in range(1, 6)]
        (folder / f"{name}.trec").write_text("".join(f"{query} Q0 {document} {rank} {9 - rank} t\n" for query, rank, document in hits))
    (folder / "abc.qrels").write_text("".join(f"{query} 0 right 1\n" for query in "abc"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture
def listed(moeir):
    def run(*command):
        result = moeir("analyze", *command, "--form", "jsonl")
        assert (result.code, result.messages) == (0, []), result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_overlap_is_the_default_and_the_output_says_which_form(moeir, tmp_path):
    result = moeir("analyze", *OVERLAP)
    table = "run  other  queries  overlap:depth=2\n---  -----  -------  ---------------\none  two          1           0.5000\n"
    assert result == (0, table, "")
    assert moeir("analyze", "overlap", *OVERLAP) == result
    usage = moeir("analyze", "usage", "--model", "sequence", "--corpus", "corpus.jsonl").stdout.splitlines()
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

    monkeypatch.setattr("moeir.stages.analyze.TEXTS_PER_BATCH", 5)
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
    assert listed(*command) == [
        {"query": "c", "winner": "two", "one": 0.25, "two": 1.0, "spread": 0.75},
        {"query": "a", "winner": "one", "one": 1.0, "two": 0.5, "spread": 0.5},
        {"query": "b", "winner": "=", "one": 0.5, "two": 0.5, "spread": 0.0},
    ]
    plain = moeir("analyze", *command, "--run", "three=first.trec").stdout.splitlines()
    assert [line.split() for line in plain][2:4] == [
        ["c", "two", "0.2500", "1.0000", "0.2500", "0.7500"], ["a", "one", "=", "three", "1.0000", "0.5000", "1.0000", "0.5000"],
    ]  # fmt: skip


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
    assert records.messages == lines[6:]


JUDGED = "--qrels test-qrels.tsv"
BOTH = "--run lexical.trec --run global.trec"


@pytest.mark.parametrize(("command", "words"), [
    ("--run one.trec", "expected two runs or more, found 1; repeat --run"),
    ("usages --model token", "analyze usages: expected one of overlap, usage, wins"),
    ("usages --dataset .", "analyze usages: expected one of overlap, usage, wins"),
    (f"competition {BOTH} {JUDGED}", "analyze competition: needs --after"),
    (f"wins {BOTH}", "analyze wins: needs --qrels"),
    ("usage --model token", "analyze usage: needs --corpus, --queries or both"),
    ("usage --corpus corpus.jsonl", "analyze usage: needs --model"),
    (f"{BOTH} --model token", "does not read --model; it belongs to analyze usage"),
    (f"wins {BOTH} {JUDGED} --queries train-queries.jsonl", "does not read --queries; it belongs to analyze usage"),
    ("usage --model role --corpus corpus.jsonl", "role: mote has no learned router; there is no usage to count"),
    ("usage --model random --corpus corpus.jsonl", "random: sbmoe has no learned router"),
    (f"wins {BOTH} {JUDGED} --output x.pdf", "--output x.pdf: expected .tsv or .jsonl for a table"),
    ("overlap --list --run first.trec", "analyze overlap: does not read --list-queries; it belongs to analyze wins"),
    ("wins --list --run winner=first.trec second.trec --qrels abc.qrels --form jsonl", "--run: the table would have two columns"),
])  # fmt: skip
def test_what_cannot_be_analysed_is_refused_in_a_line(command, words, refuse):
    result = refuse(2, words, f"analyze {command}")
    assert result.stdout == "" and len(result.messages) == 1 and not list(Path().glob("x.*"))
