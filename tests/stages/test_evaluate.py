"""`moeir evaluate` with all its output forms, significance tests and errors."""

import json
from itertools import product
from pathlib import Path

import pytest
import scipy

from moeir.evaluation.significance import confidence_interval, correct_p_values, paired_t_test
from moeir.records.runs import read_run

FIVE = {"one": [3, 3, 2, 3, 1], "two": [2, 3, 1, 3, 1], "three": [1, 1, 1, 2, 1]}  # ranks of the relevant document, by query
TEN = {  # `best` is better than both others on each query, `odd` is now better and now worse than `base`
    "base": [4, 5, 6, 4, 5, 6, 4, 5, 6, 4],
    "odd": [5, 4, 6, 4, 4, 7, 4, 5, 5, 4],
    "best": [1, 2, 1, 1, 2, 1, 1, 2, 1, 1],
}
RUNS = "evaluate --run one.trec --run two.trec --run three.trec --qrels qrels --measure RR --measure nDCG@3"
AGAINST = "evaluate --run base=base.trec --run odd.trec --run best.trec --qrels ten.qrels --measure RR"


@pytest.fixture(autouse=True)
def run_files(tmp_path, monkeypatch):
    """Three runs of five queries, each better than the one before, of which `two` has ties; three runs of ten queries."""
    monkeypatch.chdir(tmp_path)
    for file, size, runs in (("qrels", 4, FIVE), ("ten.qrels", 8, TEN)):
        for name, ranks in runs.items():
            hits = [(query, rank, "right" if rank == own else "wxyz"[rank - 1] if size == 4 else f"d{rank}")
                    for query, own in enumerate(ranks) for rank in range(1, size + 1)]  # fmt: skip
            scores = {(query, rank): 1.0 if (name, query) == ("two", 1) else 9.0 - rank for query, rank, _ in hits}
            lines = (f"q{query} Q0 {document} {rank} {scores[query, rank]} t\n" for query, rank, document in hits)
            Path(f"{name}.trec").write_text("".join(lines))
        Path(file).write_text("".join(f"q{query} 0 right 1\n" for query in range(len(ranks))))


@pytest.fixture
def evaluate(run):
    """`evaluate(command)`: what is printed; the JSON of `--form json` is read."""

    def read_output(command):
        printed = run(command).stdout
        return json.loads(printed) if command.endswith("--form json") else printed

    return read_output


def test_json_has_every_number(evaluate):
    report = evaluate(f"{RUNS} --form json")
    assert (report["test"], report["correction"], list(report["runs"])) == ("t", "holm", ["one", "two", "three"])
    all_runs = {name: labels["all"] for name, labels in report["runs"].items()}
    one, third = all_runs["three"]["RR"], {f"q{query}": 1 / rank for query, rank in enumerate(FIVE["three"])}
    assert one["mean"] == pytest.approx(sum(third.values()) / 5)
    assert one["queries"] == 5 and one["interval"] == pytest.approx(list(confidence_interval(list(third.values()))))
    assert all_runs["two"]["RR"]["mean"] == pytest.approx((1 / 2 + 1 / 4 + 1 + 1 / 3 + 1) / 5), "all tie, ids fall: z, x, w, right"
    raw = {name: labels["all"] for name, labels in evaluate(f"{RUNS} --correction none --form json")["runs"].items()}
    corrected, plain = ([runs[name][measure]["p"] for name in ("two", "three") for measure in ("RR", "nDCG@3")] for runs in (all_runs, raw))
    assert corrected == pytest.approx(correct_p_values(plain, "holm"))
    first = {f"q{query}": 1 / rank for query, rank in enumerate(FIVE["one"])}
    assert plain[2] == pytest.approx(paired_t_test(first, third))
    header, _, *rows = [line.split() for line in evaluate(f"{RUNS.removesuffix(' --measure nDCG@3')} --intervals --test none").splitlines()]
    assert header == ["run", "RR", "95", "%"] and rows[2][2:] == ["{:.4f}-{:.4f}".format(*one["interval"])]


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


def expected_p_values(correction):
    """Computed by scipy: the three pairs of runs by the two measures, each comparison counted once."""
    values = {
        "RR": {name: [1 / rank for rank in ranks] for name, ranks in TEN.items()},
        "P@5": {name: [0.2 * (rank <= 5) for rank in ranks] for name, ranks in TEN.items()},
    }
    pairs = [("base", "odd"), ("base", "best"), ("odd", "best")]
    keys = [(measure, one, other) for measure in values for one, other in pairs]
    raw = [scipy.stats.ttest_rel(values[measure][one], values[measure][other]).pvalue for measure, one, other in keys]
    adjusted = {"none": raw, "bonferroni": [min(6 * p, 1) for p in raw]}[correction]
    return {(measure, frozenset(pair)): p for (measure, *pair), p in zip(keys, adjusted, strict=True)}


@pytest.mark.parametrize("correction", ["bonferroni", "none"])
def test_marks_stand_for_significant_gains_over_baselines(evaluate, correction):
    command = f"{AGAINST} --measure P@5 --against base --against odd.trec --correction {correction}"
    report = evaluate(f"{command} --form json")
    p_values, all_runs = expected_p_values(correction), {name: labels["all"] for name, labels in report["runs"].items()}
    marks: dict[tuple[str, str], str] = {}
    for name, measure in product(TEN, ("RR", "P@5")):
        one = all_runs[name][measure]
        assert "p" not in one and list(one["p_against"]) == report["against"] == ["base", "odd"]
        for mark, baseline in zip("†‡", ("base", "odd"), strict=True):
            p = one["p_against"][baseline]
            assert p == (None if name == baseline else pytest.approx(p_values[measure, frozenset((name, baseline))]))
            better = p is not None and p < 0.05 and one["mean"] > all_runs[baseline][measure]["mean"]
            marks[name, measure] = marks.get((name, measure), "") + mark * better
    assert marks["best", "RR"] == "†‡" and marks["base", "RR"] == marks["odd", "RR"] == ""
    assert marks["best", "P@5"] == "" and p_values["P@5", frozenset(("base", "best"))] > 0.05  # higher by 0.06, but not significantly
    header, _, *rows, empty, legend = evaluate(command).splitlines()
    assert header.split() == ["run", "RR", "P@5"] and empty == ""
    for name, row in zip(TEN, rows, strict=True):
        assert row.split() == [name, *(f"{all_runs[name][measure]['mean']:.4f}{marks[name, measure]}" for measure in ("RR", "P@5"))]
    assert len({row.index(".") for row in rows}) == 1  # decimal points below one another
    words = {"none": "uncorrected", "bonferroni": "Bonferroni"}[correction]
    assert legend == f"significantly better than † base, ‡ odd (p < 0.05, two-sided paired t-test, {words})"


def test_marks_in_every_form_which_the_suffix_of_the_output_chooses(evaluate, refuse):
    command = f"{AGAINST} --against base --against odd"
    markdown, latex = (evaluate(f"{command} --form {form}").splitlines() for form in ("markdown", "latex"))
    assert markdown[4] == "| best | **0.8500**†‡ |" and markdown[5] == "" and markdown[6].startswith("significantly better than † base")
    assert latex[0] == r"\begin{tabular}{lr}" and latex[6] == r"best & \textbf{0.8500}$^{\dagger}$$^{\ddagger}$ \\"
    assert latex[-1].startswith(r"\par{\footnotesize significantly better than $^{\dagger}$ base, $^{\ddagger}$ odd (p $<$ 0.05")
    for suffix, start in ((".tex", r"\begin{tabular}"), (".md", "| run"), (".tsv", "base\t"), (".json", "{")):
        evaluate(f"{AGAINST} --output table{suffix}")
        assert Path(f"table{suffix}").read_text().startswith(start)
    refuse(2, "--output table.pdf: expected .tsv or .jsonl or .tex or .md or .json for a table", f"{AGAINST} --output table.pdf")


def test_marks_by_another_test_and_for_groups(evaluate):
    Path("asked.jsonl").write_text("".join(json.dumps({"_id": f"q{q}", "text": "x", "set": "ab"[q % 2]}) + "\n" for q in range(10)))
    flags = "--against base --test randomisation --correction none --group-by set --queries asked.jsonl"
    *rows, _, legend = evaluate(f"{AGAINST} {flags}").splitlines()
    assert "randomisation test, uncorrected" in legend
    assert {row.split()[0] for row in rows if "†" in row} == {"micro"}  # five queries: 2 of 32 flips, p = 0.0625


SAME = "give each its own name: --run NAME=PATH"


@pytest.mark.parametrize(("command", "code", "words"), [
    (f"{RUNS} --form latex --per-query", 2, "--per-query: latex has no room for queries"),
    (f"{RUNS} --against four", 2, "--against four: expected a run of this call: one, two, three"),
    (f"{RUNS} --against one --test none", 2, "--against one: needs a test; expected --test t or randomisation"),
    ("evaluate --qrels qrels --run same=one.trec same=two.trec", 2, f"--run: two runs have the name 'same'; {SAME}"),
    ("evaluate --qrels qrels --run one.trec one.trec", 2, f"--run: the same run is given twice; {SAME}"),
    ("evaluate --qrels qrels --run a=nowhere.trec", 3, "nowhere.trec: no such file (--run)"),
    ("evaluate --qrels qrels --run folder/a=one.trec", 3, "folder/a=one.trec: no such file (--run)"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_line(refuse, command, code, words):
    result = refuse(code, words, command)
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["evaluate --qrels qrels", "report --qrels qrels --output page.html", "analyze"])
def test_a_run_has_the_name_that_the_user_types(run, command):
    Path("k=2.trec").write_bytes(Path("two.trec").read_bytes())
    printed = run(f"{command} --run 'first one=one.trec' --run k=2.trec").stdout
    written = Path("page.html").read_text() if command.startswith("report") else printed
    assert "first one" in written and "k=2" in written and "one.trec" not in written


def test_runs_with_other_names_are_another_table(run, refuse):
    command = "evaluate --qrels qrels --form tsv --output table.tsv --run one.trec --run"
    run(f"{command} a=two.trec")
    assert "already made" in run(f"{command} a=two.trec").stderr
    refuse(2, "run-names", f"{command} b=two.trec")


def test_a_fused_run_below_one_of_its_parts_is_named(run):
    runs = "--run one.trec --run three.trec"
    for weights, below in (("1+0", "three alone has RR 0.9000, fused, which merges it, 0.5000, p 0.042"), ("0+1", None)):
        run(f"fuse {runs} --method linear:weights={weights} --output fused.trec --force")
        logged = run(f"evaluate {runs} --run two.trec --run fused.trec --qrels qrels --measure RR").stderr
        assert below in logged if below else "alone has" not in logged


def test_a_searched_fused_run_below_one_of_its_experts_is_named(index, toy, run):
    run(f"search --index {index} --queries {toy}/test-queries.tsv --output runs")
    best = read_run("runs/global.trec")
    Path("best.qrels").write_text("".join(f"{query} 0 {best.hits(query)[0][0]} 1\n" for query in best.queries))
    runs = " ".join(f"--run runs/{name}.trec" for name in ("lexical", "local", "global", "fused"))
    logged = run(f"evaluate {runs} --qrels best.qrels --measure RR@10").stderr
    assert "global alone has RR@10 1.0000, fused, which merges it, " in logged


HOSTILE = "a\n| x | 1.0 |\x1b[2J\x9b\u2028\u202eb\t*_`[<b>&"


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "tsv", "jsonl", "json"])
def test_a_name_makes_no_row_and_steers_no_terminal(form, moeir):
    command = ("evaluate", "--qrels", "qrels", "--measure", "RR", "--form", form, *(() if form == "tsv" else ("--against", "one")))
    plain, hostile = (moeir(*command, "--run", "one.trec", "--run", f"{name}=two.trec") for name in ("two", HOSTILE))
    assert plain.code == hostile.code == 0, hostile.stderr
    assert len(hostile.stdout.splitlines()) == len(plain.stdout.splitlines()), hostile.stdout
    assert all(line.isprintable() or form == "tsv" for text in hostile[1:] for line in text.split("\n"))
    assert not set("\x1b\x9b\u2028\u202e") & set(hostile.stdout + hostile.stderr)
    if form == "tsv":
        assert [line.count("\t") for line in hostile.stdout.splitlines()] == [line.count("\t") for line in plain.stdout.splitlines()]
    if form == "markdown":
        assert r"a\\n\| x \| 1.0 \|\\x1b\[2J" in hostile.stdout and r"\*\_\`\[\<b\>\&" in hostile.stdout


def test_a_query_is_escaped_and_cannot_be_taken_for_the_mean(evaluate, refuse):
    original = {name: Path(name).read_text().replace("q2 ", "q\x1b[2J ") for name in ("one.trec", "qrels")}
    command = "evaluate --run one.trec --qrels qrels --measure RR --form"
    for name, text in original.items():
        Path(name).write_text(text.replace("q3 ", "all "))
    for form in ("tsv", "jsonl"):
        assert refuse(3, "query 'all' has the name of a mean; leave out --per-query", f"{command} {form} --per-query").stdout == ""
        evaluate(f"{command} {form}")
    for name, text in original.items():
        Path(name).write_text(text)
    assert "RR\tq\\x1b[2J\t0.500000" in evaluate(f"{command} tsv --per-query").splitlines()
