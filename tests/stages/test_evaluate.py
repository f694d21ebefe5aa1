"""`moeir evaluate` with all its output forms, significance tests and errors."""

import json

import pytest
import scipy

from moeir.evaluation.significance import confidence_interval, correct_p_values, paired_t_test
from moeir.records.runs import read_run


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
    assert one["queries"] == 5 and one["interval"] == pytest.approx(list(confidence_interval(list(expected.values()))))
    by_measure = [report["runs"][name]["all"][measure]["p"] for name in ("two", "three") for measure in ("RR", "nDCG@3")]
    raw = json.loads(moeir(*RUNS, "--form", "json", "--correction", "none").stdout)["runs"]
    plain = [raw[name]["all"][measure]["p"] for name in ("two", "three") for measure in ("RR", "nDCG@3")]
    assert by_measure == pytest.approx(correct_p_values(plain, "holm"))
    assert plain[2] == pytest.approx(paired_t_test(rr("one"), expected))


def test_intervals_stand_beside_the_means(place, moeir):
    result = moeir(*RUNS[:-2], "--intervals", "--test", "none")
    header, _, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header == ["run", "RR", "95", "%"]
    assert rows[2][2:] == ["{:.4f}-{:.4f}".format(*confidence_interval(list(rr("three").values())))]


def test_the_best_means_of_several_runs_are_bold_in_latex_and_markdown_ties_too(tmp_path, moeir):
    (tmp_path / "qrels").write_text("q1 0 a 1\nq2 0 a 1\n")
    for name, order in {"first": ("ab", "ba"), "same": ("ba", "ab"), "worst": ("ba", "ba"), "deep": ("bca", "ab")}.items():
        lines = (f"q{number} Q0 {one} {rank} {9 - rank} x" for number, row in enumerate(order, 1) for rank, one in enumerate(row))
        (tmp_path / f"{name}.trec").write_text("\n".join(lines) + "\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "x", "set": "u"}\n{"_id": "q2", "text": "y", "set": "v"}\n')
    runs = [word for name in ("first", "same", "worst", "deep") for word in ("--run", tmp_path / f"{name}.trec")]
    command = ("evaluate", *runs, "--qrels", tmp_path / "qrels", "--test", "none", "-m", "RR", "-m", "P@1", "-m", "NumRet")
    rows = [line.removesuffix(r" \\") for line in moeir(*command, "--form", "latex").stdout.splitlines()[4:8]]
    assert rows == [
        r"first & \textbf{0.7500} & \textbf{0.5000} & 4.0000",
        r"same & \textbf{0.7500} & \textbf{0.5000} & 4.0000",
        "worst & 0.5000 & 0.0000 & 4.0000",
        r"deep & 0.6667 & \textbf{0.5000} & 5.0000",
    ]
    assert "| same | **0.7500** | **0.5000** | 4.0000 |" in moeir(*command, "--form", "markdown").stdout
    assert "**" not in moeir(*command).stdout and "textbf" not in moeir(*command[:3], *command[9:], "--form", "latex").stdout
    grouped = moeir(*command, "--group-by", "set", "--queries", tmp_path / "queries.jsonl", "--form", "latex").stdout
    assert r"set=u & 1 & first & \textbf{1.0000} & \textbf{1.0000}" in grouped and r"set=v & 1 & first & 0.5000 & 0.0000" in grouped
    assert r"set=v & 1 & deep & \textbf{1.0000}" in grouped


RANKS = {  # of the relevant document, by query: `best` is better than both others on each, `odd` is now better and now worse than `base`
    "base": [4, 5, 6, 4, 5, 6, 4, 5, 6, 4],
    "odd": [5, 4, 6, 4, 4, 7, 4, 5, 5, 4],
    "best": [1, 2, 1, 1, 2, 1, 1, 2, 1, 1],
}
AGAINST = ("evaluate", "--run", "base=base.trec", "--run", "odd.trec", "--run", "best.trec", "--qrels", "ten.qrels", "--measure", "RR",
           "--measure", "P@5")  # fmt: skip


@pytest.fixture
def ten_queries(place):
    for name, ranks in RANKS.items():
        hits = [(query, rank, "right" if rank == own else f"d{rank}") for query, own in enumerate(ranks) for rank in range(1, 9)]
        (place / f"{name}.trec").write_text("".join(f"q{query} Q0 {document} {rank} {9 - rank} t\n" for query, rank, document in hits))
    (place / "ten.qrels").write_text("".join(f"q{query} 0 right 1\n" for query in range(10)))


def expected_p_values(correction):
    """Computed by scipy: the three pairs of runs by the two measures, each comparison counted once."""
    values = {
        "RR": {name: [1 / rank for rank in ranks] for name, ranks in RANKS.items()},
        "P@5": {name: [0.2 * (rank <= 5) for rank in ranks] for name, ranks in RANKS.items()},
    }
    pairs = [("base", "odd"), ("base", "best"), ("odd", "best")]
    keys = [(measure, one, other) for measure in values for one, other in pairs]
    raw = [scipy.stats.ttest_rel(values[measure][one], values[measure][other]).pvalue for measure, one, other in keys]
    adjusted = {"none": raw, "bonferroni": [min(6 * p, 1) for p in raw]}[correction]
    return {(measure, frozenset(pair)): p for (measure, *pair), p in zip(keys, adjusted, strict=True)}


@pytest.mark.parametrize("correction", ["bonferroni", "none"])
def test_marks_stand_for_significant_gains_over_baselines(ten_queries, moeir, correction):
    flags = (*AGAINST, "--against", "base", "--against", "odd.trec", "--correction", correction)
    report = json.loads(moeir(*flags, "--form", "json").stdout)
    expected, marks = expected_p_values(correction), {}
    for name, measures in ((name, labels["all"]) for name, labels in report["runs"].items()):
        for measure, one in measures.items():
            assert "p" not in one and list(one["p_against"]) == report["against"] == ["base", "odd"]
            for mark, baseline in zip("†‡", ("base", "odd"), strict=True):
                p = one["p_against"][baseline]
                assert p == (None if name == baseline else pytest.approx(expected[measure, frozenset((name, baseline))]))
                better = p is not None and p < 0.05 and one["mean"] > measures_of(report, baseline)[measure]["mean"]
                marks[name, measure] = marks.get((name, measure), "") + mark * better
    assert marks["best", "RR"] == "†‡" and marks["base", "RR"] == marks["odd", "RR"] == ""
    assert marks["best", "P@5"] == "" and expected["P@5", frozenset(("base", "best"))] > 0.05  # higher by 0.06, but not significantly
    header, _, *rows, empty, legend = moeir(*flags).stdout.splitlines()
    assert header.split() == ["run", "RR", "P@5"] and empty == ""
    for name, row in zip(RANKS, rows, strict=True):
        assert row.split() == [
            name,
            *(f"{measures_of(report, name)[measure]['mean']:.4f}{marks[name, measure]}" for measure in ("RR", "P@5")),
        ]
    assert len({row.index(".") for row in rows}) == 1  # decimal points below one another
    words = {"none": "uncorrected", "bonferroni": "Bonferroni"}[correction]
    assert legend == f"significantly better than † base, ‡ odd (p < 0.05, two-sided paired t-test, {words})"


def measures_of(report, name):
    return report["runs"][name]["all"]


def test_marks_in_every_form(ten_queries, moeir):
    flags = (*AGAINST[:-2], "--against", "base", "--against", "odd")
    markdown = moeir(*flags, "--form", "markdown").stdout.splitlines()
    assert markdown[4] == "| best | **0.8500**†‡ |" and markdown[5] == "" and markdown[6].startswith("significantly better than † base")
    latex = moeir(*flags, "--form", "latex").stdout.splitlines()
    assert latex[0] == r"\begin{tabular}{lr}" and latex[6] == r"best & \textbf{0.8500}$^{\dagger}$$^{\ddagger}$ \\"
    assert latex[-1].startswith(r"\par{\footnotesize significantly better than $^{\dagger}$ base, $^{\ddagger}$ odd (p $<$ 0.05")


def test_the_suffix_of_the_output_is_the_form_of_the_table(ten_queries, place, moeir):
    for suffix, start in ((".tex", r"\begin{tabular}"), (".md", "| run"), (".tsv", "base\t")):
        assert moeir(*AGAINST, "--output", f"table{suffix}").code == 0
        assert (place / f"table{suffix}").read_text().startswith(start)
    refused = moeir(*AGAINST, "--output", "table.pdf")
    assert refused.code == 2 and "--output table.pdf: expected .tsv or .jsonl for a table" in refused.stderr


def test_marks_by_another_test_and_for_groups(ten_queries, place, moeir):
    (place / "asked.jsonl").write_text("".join(json.dumps({"_id": f"q{q}", "text": "x", "set": "ab"[q % 2]}) + "\n" for q in range(10)))
    flags = (*AGAINST[:-2], "--against", "base", "--test", "randomisation", "--correction", "none")
    flags = (*flags, "--group-by", "set", "--queries", "asked.jsonl")
    *rows, _, legend = moeir(*flags).stdout.splitlines()
    marked = {row.split()[0] for row in rows if "†" in row}
    assert "randomisation test, uncorrected" in legend
    assert marked == {"micro"}  # five queries: 2 of 32 flips, p = 0.0625


BAD = [
    (("--form", "latex", "--per-query"), "--per-query: latex has no room for queries"),
    (("--against", "four"), "--against four: expected a run of this call: one, two, three"),
    (("--against", "one", "--test", "none"), "--against one: needs a test; expected --test t or randomisation"),
]


@pytest.mark.parametrize(("flags", "words"), BAD)
def test_what_cannot_be_done_is_one_line(place, moeir, flags, words):
    result = moeir(*RUNS, *flags)
    assert result.code == 2 and words in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("stage", ["evaluate", "report", "analyze"])
def test_a_run_has_the_name_it_is_given(place, moeir, stage):
    (place / "k=2.trec").write_bytes((place / "two.trec").read_bytes())
    judged = ("--qrels", "qrels") if stage in ("evaluate", "report") else ()
    page = ("--output", "page.html") if stage == "report" else ()
    result = moeir(stage, "--run", "first one=one.trec", "--run", "k=2.trec", *judged, *page)
    assert result.code == 0, result.stderr
    written = (place / "page.html").read_text() if page else result.stdout
    assert "first one" in written and "k=2" in written and "one.trec" not in written


def test_runs_with_other_names_are_another_table(place, moeir):
    command = ("evaluate", "--qrels", "qrels", "--form", "tsv", "--output", "table.tsv", "--run", "one.trec", "--run")
    assert moeir(*command, "a=two.trec").code == 0
    assert "already made" in moeir(*command, "a=two.trec").stderr
    other = moeir(*command, "b=two.trec")
    assert other.code == 2 and "run-names" in other.stderr


def test_a_name_that_cannot_be_given_is_refused(place, moeir):
    for runs, code, words in (
        (("same=one.trec", "same=two.trec"), 2, "--run: two runs have the name 'same'; give each its own name: --run NAME=PATH"),
        (("one.trec", "one.trec"), 2, "--run: the same run is given twice; give each its own name: --run NAME=PATH"),
        (("a=nowhere.trec",), 3, "nowhere.trec: no such file (--run)"),
        (("folder/a=one.trec",), 3, "folder/a=one.trec: no such file (--run)"),
    ):
        result = moeir("evaluate", "--run", *runs, "--qrels", "qrels")
        assert (result.code, result.stdout) == (code, "") and words in result.stderr


def test_a_fused_run_below_one_of_its_parts_is_named(place, moeir):
    below = "three alone has RR 0.9000, fused, which merges it, 0.5000, p 0.042"
    for method, expected in (("linear:weights=1+0", below), ("linear:weights=0+1", None)):
        runs = ("--run", "one.trec", "--run", "three.trec")
        assert moeir("fuse", *runs, "--method", method, "--output", "fused.trec", "--force").code == 0
        result = moeir("evaluate", *runs, "--run", "two.trec", "--run", "fused.trec", "--qrels", "qrels", "--measure", "RR")
        assert result.code == 0 and ("alone has" in result.stderr) == (expected is not None) and (expected or "") in result.stderr


def test_a_searched_fused_run_below_one_of_its_experts_is_named(index, toy, moeir, tmp_path):
    moeir("search", "--index", index, "--queries", toy / "test-queries.tsv", "--output", tmp_path / "runs")
    best = read_run(tmp_path / "runs" / "global.trec")
    (tmp_path / "best.qrels").write_text("".join(f"{query} 0 {best.hits(query)[0][0]} 1\n" for query in best.queries))
    runs = [word for name in ("lexical", "local", "global", "fused") for word in ("--run", tmp_path / "runs" / f"{name}.trec")]
    stderr = moeir("evaluate", *runs, "--qrels", tmp_path / "best.qrels", "--measure", "RR@10").stderr
    assert "global alone has RR@10 1.0000, fused, which merges it, " in stderr


HOSTILE = "a\n| x | 1.0 |\x1b[2J\x9b\u2028\u202eb\t*_`[<b>&"


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "tsv", "jsonl", "json"])
def test_a_name_makes_no_row_and_steers_no_terminal(place, moeir, form):
    more = () if form == "tsv" else ("--against", "one")
    plain, hostile = (
        moeir(*RUNS[:1], "--run", "one.trec", "--run", f"{name}=two.trec", *RUNS[7:], "--form", form, *more) for name in ("two", HOSTILE)
    )
    assert plain.code == hostile.code == 0, hostile.stderr
    assert len(hostile.stdout.splitlines()) == len(plain.stdout.splitlines()), hostile.stdout
    assert all(line.isprintable() or form == "tsv" for text in hostile[1:] for line in text.split("\n"))
    assert not set("\x1b\x9b\u2028\u202e") & set(hostile.stdout + hostile.stderr)
    if form == "tsv":
        assert [line.count("\t") for line in hostile.stdout.splitlines()] == [line.count("\t") for line in plain.stdout.splitlines()]
    if form == "markdown":
        assert r"a\\n\| x \| 1.0 \|\\x1b\[2J" in hostile.stdout and r"\*\_\`\[\<b\>\&" in hostile.stdout


def test_a_query_is_escaped_and_cannot_be_taken_for_the_mean(place, moeir):
    for name in ("one.trec", "qrels"):
        (place / name).write_text((place / name).read_text().replace("q3 ", "all ").replace("q2 ", "q\x1b[2J "))
    command = ("evaluate", "--run", "one.trec", "--qrels", "qrels", "--measure", "RR", "--form")
    for form in ("tsv", "jsonl"):
        result = moeir(*command, form, "--per-query")
        assert (result.code, result.stdout) == (3, "") and "query 'all' has the name of a mean; leave out --per-query" in result.stderr
        assert moeir(*command, form).code == 0
    for name in ("one.trec", "qrels"):
        (place / name).write_text((place / name).read_text().replace("all ", "q3 "))
    assert "RR\tq\\x1b[2J\t0.500000" in moeir(*command, "tsv", "--per-query").stdout.splitlines()
