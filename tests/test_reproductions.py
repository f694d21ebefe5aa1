"""docs/reproductions.md is what its data and the results say: every table of the papers, ours read from the files, and clear errors."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from moeir.errors import DataError
from tests.benchmarks import reproductions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproductions.md"
DECIMAL = re.compile(r"(?<![\w.-])\d*\.\d+(?:e-\d)?")
TABLES = {
    "CAME": ["Table 1", "Table 2", "Table 3", "Table 4", "Figure 3 (a)", "Figure 3 (b)", "Figure 3 (c)", "Figure 4", "§3.5", "§5.3"],
    "CoT-MoTE": ["Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Figure 1", "Figure 2", "Figure 4 (A)", "Figure 4 (B)"],
    "TASER": ["Table 1", "Table 2", "Table A1", "Table A2", "Table A3", "Table A4", "§4.1"],
    "SB-MoE": ["Table I", "Table II", "Table III", "Figure 2", "Figures 3 and 4"],
    "LCE": ["Table 1", "Figure 1", "Figure 2"],
}
SYSTEMS = {"CAME": "CAME", "CoT-MoTE": "CoT-MoTE", "TASER": "TASER ★", "SB-MoE": "TinyBERT, MSMARCO", "LCE": "HDCT, LCE"}
SETTINGS = {  # decimals of the headers that are no result
    "came_figure3.sh": {"0.133", "0.267"},
    "came_msmarco.sh": {".5058", ".745", "0.4", "0.68", "0.82", "0.9"},
    "sbmoe_table3_usage.sh": {"1.14", "1.92", "2.08", "3.85"},
    "taser_multiset.sh": {"0.73"},
}
RESULTS = """# Results

## Small runs

```
MoTE, seed 1
run      nDCG@10       p   RR@10
-------  -------  ------  ------
one       0.7000          0.6000
two       0.7150   0.004  0.6100
MoTE, seed 2
run      nDCG@10       p   RR@10
-------  -------  ------  ------
one       0.7100          0.6000
two       0.7050  <0.001  0.6100
# a comment of a command
pairs
run      run     rbo
-------  ------  ----
one      two     0.33
```

## Differences

| comparison | difference | 95 % interval | p |
|:--|--:|--:|--:|
| `b` − a | **+.0042** | .001 to .007 | .03 |
| twice | 1 | | |
| twice | 2 | | |
| words | none | | |
| twisted | .1 | | none |

| | first | second |
|---|---|---|
| b | 0.50 (<.001) | 0.40 (.2) |
| a | 0.45 | 0.45 |
"""


@pytest.fixture(scope="module")
def data() -> Any:
    return yaml.safe_load(reproductions.DATA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def chapters(data: Any) -> dict[str, str]:
    """The part of the page about each paper."""
    parts = re.split(r"^## (.+)$", reproductions.write_page(data), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with one small file."""
    (tmp_path / "small.md").write_text(RESULTS, encoding="utf-8")
    monkeypatch.setattr(reproductions, "RESULTS", tmp_path)
    return tmp_path


def resolve(reference: dict[str, Any], **measurement: Any) -> tuple[str, list[str]] | None:
    values = {"file": "small.md", "column": "nDCG@10"} | measurement
    resolved = reproductions.resolve(reference, values, "reproductions.yaml (Paper, Table 1)")
    return resolved and (resolved[0], [str(one) for one in resolved[1]])


def test_the_page_is_that_of_its_data_and_the_results(data: Any, check_golden: Callable[[str, str], None]) -> None:
    check_golden(str(PAGE), reproductions.write_page(data))


@pytest.mark.parametrize("paper", TABLES)
def test_every_table_and_figure_of_a_paper_is_there(paper: str, chapters: dict[str, str]) -> None:
    for table in TABLES[paper]:
        assert re.search(rf"^(### {re.escape(paper)}: {re.escape(table)}$|\| {re.escape(table)}[ ,])", chapters[paper], re.MULTILINE), table
    assert re.search(rf"^\| {re.escape(SYSTEMS[paper])} \|", chapters[paper], re.MULTILINE), "the paper's own system"


def test_the_numbers_that_a_script_expects_are_on_the_page(chapters: dict[str, str]) -> None:
    """The headers of the scripts and the page were typed from the papers one by one: they agree."""
    papers = {"came": "CAME", "cot": "CoT-MoTE", "taser": "TASER", "sbmoe": "SB-MoE", "lce": "LCE"}
    for script in sorted((ROOT / "examples").glob("*.sh")):
        header = re.match(r"(?:#.*\n)*", script.read_text(encoding="utf-8"))
        assert header is not None
        expected = set(DECIMAL.findall(header[0].partition("# Expected:")[2])) - SETTINGS.get(script.name, set())
        assert not expected or expected <= set(DECIMAL.findall(chapters[papers[script.name.split("_")[0]]])), script.name


def test_the_numbers_of_claims_are_those_of_the_tables(data: Any) -> None:
    for paper in data["papers"]:
        rows = [row for table in paper["tables"] for row in table["rows"].items()]
        numbers = set(DECIMAL.findall(" ".join(f"{name} {row['paper'] if isinstance(row, dict) else row}" for name, row in rows)))
        for claim in paper["claims"]:
            assert set(DECIMAL.findall(str(claim["paper"]))) <= numbers, claim["claim"]


def test_what_was_never_run_names_a_script_and_its_hours(chapters: dict[str, str]) -> None:
    rows = [line for paper in TABLES for line in chapters[paper].splitlines() if "| not run |" in line]
    assert len(rows) > 150
    assert all(re.search(r"\[\w+\.sh\]\(\.\./examples/\w+\.sh\), hours: \w|no script: another paper's system", row) for row in rows)


def test_every_number_of_ours_has_a_size_a_command_a_date_and_a_commit(data: Any) -> None:
    for paper in data["papers"]:
        for name, measurement in paper["measurements"].items():
            assert measurement["collection"] and measurement["size"] and measurement["why"], name
            if not measurement.get("pending"):
                assert re.fullmatch(r"\d{4}-\d\d-\d\d [0-9a-f]{7}", f"{measurement['date']} {measurement['commit']}"), name
                paths = [word for word in measurement["command"].split() if "/" in word]
                assert all((ROOT / path).is_file() for path in paths), name


def test_what_is_called_exact_is_exact(data: Any) -> None:
    for row in data["exact"]["rows"]:
        ours, _ = reproductions.resolve(row["ours"], row, row["row"]) or ("", [])
        value, published = ours.split()[-1], row["published"].split()[0]
        near = abs(float(value.replace(",", "")) / float(published.rstrip("M")) / (1e6 if "M" in published else 1) - 1)
        assert value == published or ("M" in published and near < 0.005) or (row["why"] == "near, not equal" and near < 0.01), row["row"]


SEEDS = {"table": "MoTE, seed {seed}", "row": "two", "against": {"row": "one"}, "p": "p", "seeds": [1, 2]}
ACROSS = {"table": "Differences", "row": "b", "column": "{seed}", "label": "nDCG@10", "seeds": ["first", "second"], "against": {"row": "a"}}
PAIRED = {"table": "comparison", "row": "b − a", "column": "difference", "p": "p", "interval": "95 % interval"}


@pytest.mark.parametrize(
    ("reference", "text", "differences"),
    [  # by heading, caption and first column; then rows, columns and seeds compared
        ({"table": "MoTE, seed 1", "columns": ["nDCG@10", "RR@10"]}, "nDCG@10 0.7150, RR@10 0.6100", ["+71.50 (no p)", "+61.00 (no p)"]),
        ({"table": "pairs", "row": "one two", "column": "rbo", "label": "overlap"}, "overlap 0.33", ["+33.00 (no p)"]),
        (PAIRED, "difference +.0042", ["+0.42 (+0.10 to +0.70; p = 0.03)"]),
        ({"table": "Small runs", "row": "one two", "column": "rbo"}, "rbo 0.33", ["+33.00 (no p)"]),
        (SEEDS, "nDCG@10 0.7150 / 0.7050", ["+1.50 (p = 0.004)", "−0.50 (p < 0.001)"]),
        (ACROSS, "nDCG@10 0.50 / 0.40", ["+5.00 (p < 0.001)", "−5.00 (p = 0.2)"]),
        ({"table": "MoTE, seed 1", "against": {"column": "RR@10"}}, "nDCG@10 0.7150", ["+10.50 (no p)"]),
    ],
)
def test_a_reference_finds_and_compares_numbers(results: Path, reference: dict[str, Any], text: str, differences: list[str]) -> None:
    assert resolve({"row": "two"} | reference) == (text, differences)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"table": "MoTE, seed 3"}, ["no table 'MoTE, seed 3'", "'MoTE, seed 2'"]),
        ({"table": "MoTE, seed 1", "row": "three"}, ["no rows 'three' in table 'MoTE, seed 1'", "['one', 'two']"]),
        ({"table": "Small runs"}, ["2 rows 'two' in table 'Small runs'"]),
        ({"table": "MoTE, seed 1", "column": "R@5"}, ["no column 'R@5'", "['run', 'nDCG@10', 'p', 'RR@10']"]),
    ],
)
def test_what_is_not_found_is_one_line_that_says_where_and_what_there_is(
    results: Path, reference: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(DataError) as error:
        resolve({"row": "two"} | reference)
    message, where = str(error.value), "correct reproductions.yaml (Paper, Table 1), or the results"
    assert all(word in message for word in [*words, "small.md: ", "expected one of", where]) and "\n" not in message


def test_a_declared_file_may_be_missing_until_it_is_there(results: Path) -> None:
    reference, file = {"table": "Primary", "row": "b − a", "column": "nDCG@10"}, {"file": "evidence/came_fork.md"}
    with pytest.raises(DataError, match=r"came_fork.md: no such file: correct .* or add `pending: true`"):
        resolve(reference, **file)
    assert resolve(reference, **file, pending=True) is None
    (results / "evidence").mkdir()
    page = "# Fork\n\n## Primary\n\n| row | nDCG@10 |\n|---|---|\n| b − a | +.01 |\n"
    (results / "evidence/came_fork.md").write_text(page, encoding="utf-8")
    assert resolve(reference, **file, pending=True) == ("nDCG@10 +.01", ["+1.00 (no p)"])
    with pytest.raises(DataError, match="no table None: expected one of"):
        resolve({}, **file, pending=True)


@pytest.mark.parametrize(
    ("differences", "paper", "verdict"),
    [
        ([(1.0, "0.04"), (2.0, "<0.001")], "RR@10 39.0 against 36.5", "**same sign**, p < 0.05"),
        ([(1.0, ".04"), (2.0, ".2")], "better", "**same sign**, p < 0.05 in some"),
        ([(1.0, "0.04")], "R@20 78.4 against 79.3", "**opposite sign**, p < 0.05"),
        ([(-1.0, "0.4")], ".243 against .244", "**same sign**, p ≥ 0.05"),
        ([(-1.0, "0.04"), (1.0, "0.3")], "better", "**no common sign**, p < 0.05 in some"),
        ([(0.0, "1.0")], ".243 against .244", "**no common sign**, p ≥ 0.05"),
        ([(1.0, "0.04"), (1.0, "")], "better", "**same sign**, not tested"),
    ],
)
def test_a_comparison_is_judged_by_its_sign_and_all_its_values(differences: list[tuple[float, str]], paper: str, verdict: str) -> None:
    assert reproductions.judge([reproductions.Difference(points, p, "") for points, p in differences], paper) == verdict
