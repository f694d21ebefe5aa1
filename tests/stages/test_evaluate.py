"""`moeir evaluate` with all its output forms, significance tests and errors."""

import json

import pytest

from moeir.evaluation.significance import confidence_interval, correct_p_values, paired_t_test


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Three runs of five queries, each better than the one before; one has ties."""
    monkeypatch.chdir(tmp_path)
    ranks = {"one": [3, 3, 2, 3, 1], "two": [2, 3, 1, 3, 1], "three": [1, 1, 1, 2, 1]}
    for name, places in ranks.items():
        lines = []
        for query, place in enumerate(places):
            documents = ["x", "y", "z"]
            documents.insert(place - 1, "right")
            score = (lambda rank: 1.0) if name == "two" and query == 1 else (lambda rank: 9.0 - rank)
            lines += [f"q{query} Q0 {document} {rank} {score(rank)} t" for rank, document in enumerate(documents, 1)]
        (tmp_path / f"{name}.trec").write_text("\n".join(lines) + "\n")
    (tmp_path / "qrels").write_text("".join(f"q{query} 0 right 1\n" for query in range(5)))
    return tmp_path


THREE = ("--run", "one.trec", "--run", "two.trec", "--run", "three.trec")
RUNS = ("evaluate", *THREE, "--qrels", "qrels", "--measure", "RR", "--measure", "nDCG@3")


def rr(name):
    ranks = {"one": [3, 3, 2, 3, 1], "two": [2, 4, 1, 3, 1], "three": [1, 1, 1, 2, 1]}[name]  # two, q1: all tie, ids fall: z, y, x, right
    return {f"q{query}": 1 / rank for query, rank in enumerate(ranks)}


def test_json_has_every_number(place, moeir):
    result = moeir(*RUNS, "--form", "json")
    report = json.loads(result.stdout)
    assert (report["test"], report["correction"], list(report["runs"])) == ("t", "holm", ["one", "two", "three"])
    one = report["runs"]["three"]["all"]["RR"]
    expected = {**rr("three"), "q1": 1.0}
    assert one["mean"] == pytest.approx(sum(expected.values()) / 5)
    assert one["queries"] == 5 and one["interval"] == pytest.approx(list(confidence_interval(list(expected.values()), is_measure=True)))
    by_measure = [report["runs"][name]["all"][measure]["p"] for name in ("two", "three") for measure in ("RR", "nDCG@3")]
    raw = json.loads(moeir(*RUNS, "--form", "json", "--correction", "none").stdout)["runs"]
    plain = [raw[name]["all"][measure]["p"] for name in ("two", "three") for measure in ("RR", "nDCG@3")]
    assert by_measure == pytest.approx(correct_p_values(plain, "holm"))
    assert plain[2] == pytest.approx(paired_t_test(rr("one"), expected))


def test_ties_effects_and_intervals_stand_beside_the_means(place, moeir):
    result = moeir(*RUNS[:-2], "--ties", "--effect-size", "--intervals", "--test", "none")
    header, _, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header == ["run", "RR", "95", "%", "ties", "diff", "d"]
    low, high = (float(value) for value in rows[1][3].split("-"))
    others = 1 / 2 + 1 + 1 / 3 + 1
    assert (low, high) == (pytest.approx((others + 1 / 4) / 5, abs=1e-4), pytest.approx((others + 1) / 5, abs=1e-4))
    assert rows[0][3].split("-")[0] == rows[0][3].split("-")[1]
    assert rows[2][4].startswith("+")


@pytest.mark.parametrize("test", ["randomisation", "bootstrap"])
def test_other_tests_give_other_p_values(place, moeir, test):
    assert moeir(*RUNS, "--test", test).stdout != moeir(*RUNS).stdout


def test_markdown_and_latex(place, moeir):
    markdown = moeir(*RUNS, "--form", "markdown").stdout.splitlines()
    assert markdown[0] == "| run | RR | p (Holm) | nDCG@3 | p (Holm) |" and markdown[1].startswith("|:--|--:|")
    latex = moeir(*RUNS, "--form", "latex").stdout.splitlines()
    assert latex[0] == r"\begin{tabular}{lrrrr}" and latex[-1] == r"\end{tabular}" and latex[4].startswith("one & ")
    assert latex[2] == r"run & RR & p (Holm) & nDCG@3 & p (Holm) \\"


@pytest.mark.parametrize(("correction", "name"), [("none", "uncorrected"), ("bonferroni", "Bonferroni"), ("holm", "Holm"), ("bh", "BH")])
def test_the_head_of_a_column_says_which_p_it_has(place, moeir, correction, name):
    header, *_ = moeir(*RUNS, "--correction", correction).stdout.splitlines()
    assert header.count(f"p ({name})") == header.count("p (") == 2


def test_p_of_one_comparison_is_uncorrected(place, moeir):
    def p_value(*flags):
        report = json.loads(moeir(*RUNS[:5], *RUNS[7:11], "--form", "json", *flags).stdout)
        return report["runs"]["two"]["all"]["RR"]["p"]

    assert RUNS[7:11] == ("--qrels", "qrels", "--measure", "RR")
    assert p_value() == p_value("--correction", "none") < 1


def test_a_report_has_the_p_values_of_evaluate(place, moeir):
    flags = RUNS[1:]
    assert moeir("report", *flags, "--output", "page.html").code == 0
    content = (place / "page.html").read_text()
    judged = json.loads(content.split('id="data">')[1].split("</script>")[0])["judged"]
    assert judged["p_header"] == "p (Holm)" and "data.judged.p_header" in content
    for number, measure in enumerate(("RR", "nDCG@3")):
        for base, first in enumerate(("one", "two", "three")):
            others = [run for name in ("one", "two", "three") if name != first for run in ("--run", f"{name}.trec")]
            report = json.loads(moeir("evaluate", "--run", f"{first}.trec", *others, *flags[6:], "--form", "json").stdout)["runs"]
            expected = [report[name]["all"][measure].get("p") for name in ("one", "two", "three")]
            assert judged["p"][number][base] == expected


BAD = [
    (("--test", "z"), "--test z: expected t, randomisation, bootstrap or none"),
    (("--correction", "x"), "--correction x: expected none, bonferroni, holm or bh"),
    (("--explain",), "--explain needs --compat TOOL"),
    (("--compat", "ranx"), "--compat ranx: expected trec_eval, beir, mteb, msmarco"),
    (("--compat", "msmarco"), "--compat msmarco: nDCG@3: it computes RR@k alone"),
    (("--compat", "beir", "--ties"), "--ties needs --qrels, and cannot be combined with --compat"),
    (("--form", "latex", "--per-query"), "--per-query: latex has no room for queries"),
    (("--form", "html"), "--form html: expected auto, table, markdown"),
    (("--measure", "bpref", "--ties"), "--ties: Bpref: not known over orders of ties"),
    (("--compat", "beir", "--run", "-"), "--compat --run -: the run is read more than once"),
]


@pytest.mark.parametrize(("flags", "words"), BAD)
def test_what_cannot_be_done_is_one_line(place, moeir, flags, words):
    result = moeir(*RUNS, *flags)
    assert result.code == 2 and words in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("stage", ["evaluate", "report", "analyze", "fuse"])
def test_a_run_has_the_name_it_is_given(place, moeir, stage):
    (place / "k=2.trec").write_bytes((place / "two.trec").read_bytes())
    judged = ("--qrels", "qrels") if stage in ("evaluate", "report") else ()
    page, parts = ("--output", "page.html") if stage == "report" else (), ("--attribution", "parts.tsv") if stage == "fuse" else ()
    result = moeir(stage, "--run", "first one=one.trec", "--run", "k=2.trec", *judged, *page, *parts)
    assert result.code == 0, result.stderr
    written = next((path.read_text() for path in (place / "page.html", place / "parts.tsv") if path.exists()), result.stdout)
    assert "first one" in written and "k=2" in written and "one.trec" not in written


def test_runs_with_other_names_are_another_table(place, moeir):
    command = ("evaluate", "--qrels", "qrels", "--form", "tsv", "--output", "table.tsv", "--run", "one.trec", "--run")
    assert moeir(*command, "a=two.trec").code == 0
    assert "already made" in moeir(*command, "a=two.trec").stderr
    other = moeir(*command, "b=two.trec")
    assert other.code == 2 and "run-names" in other.stderr


@pytest.mark.parametrize(
    ("runs", "code", "words"),
    [
        (("same=one.trec", "same=two.trec"), 2, "--run: two runs have the name 'same'; give each its own name: --run NAME=PATH"),
        (("one.trec", "one.trec"), 2, "--run: the same run is given twice; give each its own name: --run NAME=PATH"),
        (("a=nowhere.trec",), 3, "nowhere.trec: no such file (--run)"),
        (("folder/a=one.trec",), 3, "folder/a=one.trec: no such file (--run)"),
    ],
)
def test_a_name_that_cannot_be_given_is_refused(place, moeir, runs, code, words):
    result = moeir("evaluate", *(word for run in runs for word in ("--run", run)), "--qrels", "qrels")
    assert (result.code, result.stdout) == (code, "") and words in result.stderr


def test_the_count_of_judged_queries_leaves_out_those_that_are_not_judged(moeir, tmp_path):
    (tmp_path / "run.trec").write_text("a Q0 x 1 2 t\nb Q0 x 1 2 t\nc Q0 x 1 2 t\n")
    (tmp_path / "qrels").write_text("a 0 x 1\nz 0 x 1\n")
    result = moeir("evaluate", "--run", tmp_path / "run.trec", "--qrels", tmp_path / "qrels")
    assert "run: 1 of 2 judged queries, 1 without hits, 2 not judged" in result.stderr
