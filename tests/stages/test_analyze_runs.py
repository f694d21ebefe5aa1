"""The analyses of runs that list queries and documents, on runs whose numbers are seen at once."""

import json

import pytest

RANKS = {
    "first": {"a": 1, "b": 2, "c": 4},
    "second": {"a": 2, "b": 2, "c": 1},
    "third": {"d": 2, "e": 1},
}  # of the relevant document `right`


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Two runs of the queries a, b and c, one of d and e, and their judgements."""
    monkeypatch.chdir(tmp_path)
    for name, ranks in RANKS.items():
        hits = [(query, rank, "right" if rank == own else f"x{rank}") for query, own in ranks.items() for rank in range(1, 6)]
        (tmp_path / f"{name}.trec").write_text("".join(f"{query} Q0 {document} {rank} {9 - rank} t\n" for query, rank, document in hits))
    for name, queries in {"abc": "abc", "de": "de"}.items():
        (tmp_path / f"{name}.qrels").write_text("".join(f"{query} 0 right 1\n" for query in queries))
    (tmp_path / "z.tsv").write_text("z\tanother query\n")
    return tmp_path


TWO = ("--run", "one=first.trec", "--run", "two=second.trec", "--qrels")


def test_a_picture_of_another_kind_is_refused_before_a_table_has_its_name(moeir, folder):
    result = moeir("analyze", "wins", *TWO, "abc.qrels", "--output", "wins.pdf")
    assert result.code == 2 and not (folder / "wins.pdf").exists()
    assert "--output wins.pdf: expected .svg or .png for a plot, .tsv or .jsonl for a table" in result.stderr


def test_runs_with_other_names_are_another_table(moeir):
    command = ("analyze", "overlap", "--output", "overlap.tsv", "--run", "second.trec", "--run")
    assert moeir(*command, "a=first.trec").code == 0
    assert "already made" in moeir(*command, "a=first.trec").stderr
    other = moeir(*command, "b=first.trec")
    assert other.code == 2 and "run-names" in other.stderr


@pytest.fixture
def texts(folder):
    (folder / "queries.tsv").write_text(f"a\twho  hunts mice\nb\t{'long ' * 40}\nc\twhen do owls sleep\n")
    return ("--queries", "queries.tsv")


def test_wins_are_listed_query_by_query_with_the_largest_difference_first(moeir, texts):
    result = moeir("analyze", "wins", "--list", *TWO, "abc.qrels", "--measure", "RR", *texts, "--form", "jsonl")
    assert (result.code, result.messages) == (0, [])
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"query": "c", "text": "when do owls sleep", "winner": "two", "one": 0.25, "two": 1.0, "spread": 0.75},
        {"query": "a", "text": "who hunts mice", "winner": "one", "one": 1.0, "two": 0.5, "spread": 0.5},
        {"query": "b", "text": ("long " * 40).strip(), "winner": "=", "one": 0.5, "two": 0.5, "spread": 0.0},
    ]
    table = moeir("analyze", "wins", "--list", *TWO, "abc.qrels", "--measure", "RR", *texts).stdout
    assert f"  {('long ' * 40)[:79]}…  " in table
    plain = moeir("analyze", "wins", "--list", *TWO, "abc.qrels", "--measure", "RR", "--run", "three=first.trec").stdout.splitlines()
    assert [line.split() for line in plain][2:4] == [
        ["c", "two", "0.2500", "1.0000", "0.2500", "0.7500"], ["a", "one", "=", "three", "1.0000", "0.5000", "1.0000", "0.5000"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("wins --list --run first.trec --run second.trec --qrels abc.qrels --queries z.tsv", 3, "has no query 'a', which abc.qrels judges"),
        ("wins --list --run first.trec --qrels abc.qrels", 2, "expected two runs or more, found 1"),
        ("wins --list --run first.trec --run third.trec --qrels abc.qrels --output x.png", 2, "analyze wins --list has no plot"),
        ("overlap --list --run first.trec", 2, "analyze overlap: does not read --list-queries; it belongs to analyze wins"),
    ],
)
def test_what_cannot_be_listed_is_refused_in_a_line(command, code, words, moeir):
    result = moeir("analyze", *command.split())
    assert (result.code, result.stdout) == (code, "") and words in result.stderr and len(result.messages) == 1, result.stderr


def test_two_columns_of_one_name_are_refused(moeir):
    """A line of JSON would keep the last of them."""
    runs = ("--run", "winner=first.trec", "--run", "second.trec")
    result = moeir("analyze", "wins", "--list", *runs, "--qrels", "abc.qrels", "--form", "jsonl")
    assert result.code == 2 and "--run: the table would have two columns called" in result.stderr and not result.stdout


def test_the_gain_on_lost_queries_of_two_experts_and_a_sentence_below_the_table(moeir, folder):
    judged = "".join(f"q{number} 0 right 1\n" for number in range(40))
    (folder / "many.qrels").write_text(judged)
    for name, (one, two) in {"before": (1, 5), "later": (1, 1)}.items():
        for expert, rank in (("one", one), ("two", two)):
            others = [f"x{number}" for number in range(12)]
            lines = [f"q{number} Q0 {document} 1 {-place} t\n" for number in range(40)
                     for place, document in enumerate([*others[: rank - 1], "right", *others[rank - 1 :]])]  # fmt: skip
            (folder / f"{expert}-{name}.trec").write_text("".join(lines))
    runs = [word for name, flag in (("before", "--run"), ("later", "--after")) for expert in ("one", "two")
            for word in (flag, f"{expert}={expert}-{name}.trec")]  # fmt: skip
    command = ("analyze", "competition", *runs, "--qrels", "many.qrels", "--measure", "RR")
    refused = moeir(*command)
    assert refused.code == 3 and "no expert loses a query; expected experts that differ" in refused.stderr, "after, none loses"
    (folder / "two-later.trec").write_text((folder / "two-before.trec").read_text().replace("q7 Q0 right 1 -4", "q7 Q0 right 1 1"))
    result = moeir(*command, "--seed", "3")
    assert (result.code, result.messages) == (0, [])
    lines = result.stdout.splitlines()
    assert lines[0].split("  ")[0] == "expert" and [line.split()[0] for line in lines[2:5]] == ["one", "two", "all"]
    assert lines[5] == "" and lines[6].startswith("loss that competition keeps, by temperature (all alike: 1.00): 1: 0.")
    assert lines[7].startswith(("undecided: learning alike, experts gain +0.0", "do not compete: learning alike"))
    records = moeir(*command, "--seed", "3", "--form", "jsonl")
    assert json.loads(records.stdout.splitlines()[2])["lost"] == 40
    assert [line.split(":")[0] for line in records.messages] == [
        "loss that competition keeps, by temperature (all alike",
        lines[7].split(":")[0],
    ]
    assert "has no plot" in moeir(*command, "--output", "x.svg").stderr
