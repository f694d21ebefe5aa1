"""docs/reproductions.md is what its data and the results say: the papers' tables, and ours read from the files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benchmarks import reproductions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reproductions.md"
DECIMAL = re.compile(r"(?<![\w.-])\d*\.\d+(?:e-\d)?")
PAPERS = {"came": "CAME", "cot": "CoT-MoTE", "taser": "TASER", "sbmoe": "SB-MoE", "lce": "LCE"}  # by the first word of their scripts
SETTINGS = {  # decimals of the headers that are no result
    "came_figure3.sh": {"0.133", "0.267"},
    "came_msmarco.sh": {".5058", ".745", "0.4", "0.68", "0.82", "0.9"},
    "sbmoe_table3_usage.sh": {"1.14", "1.92", "2.08", "3.85"},
    "taser_multiset.sh": {"0.73"},
}


@pytest.fixture(scope="module")
def data() -> Any:
    return yaml.safe_load(reproductions.DATA.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def chapters(data: Any) -> dict[str, str]:
    """The part of the page about each paper."""
    parts = re.split(r"^## (.+)$", reproductions.write_page(data), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_page_is_that_of_its_data_and_the_results(data: Any, check_golden: Callable[[str, str], None]) -> None:
    check_golden(str(PAGE), reproductions.write_page(data))


def test_the_numbers_that_a_script_expects_are_on_the_page(chapters: dict[str, str]) -> None:
    """The headers of the scripts and the page were typed from the papers one by one: they agree."""
    for script in sorted((ROOT / "examples").glob("*.sh")):
        header = re.match(r"(?:#.*\n)*", script.read_text(encoding="utf-8"))
        assert header is not None
        expected = set(DECIMAL.findall(header[0].partition("# Expected:")[2])) - SETTINGS.get(script.name, set())
        assert not expected or expected <= set(DECIMAL.findall(chapters[PAPERS[script.name.split("_")[0]]])), script.name


def test_the_numbers_of_claims_are_those_of_the_tables(data: Any) -> None:
    for paper in data["papers"]:
        rows = [row for table in paper["tables"] for row in table["rows"].items()]
        numbers = set(DECIMAL.findall(" ".join(f"{name} {row['paper'] if isinstance(row, dict) else row}" for name, row in rows)))
        for claim in paper["claims"]:
            assert set(DECIMAL.findall(str(claim["paper"]))) <= numbers, claim["claim"]


def test_what_was_never_run_names_a_script_and_its_hours(chapters: dict[str, str]) -> None:
    rows = [line for paper in PAPERS.values() for line in chapters[paper].splitlines() if "| not run |" in line]
    assert len(rows) > 150
    assert all(re.search(r"\[\w+\.sh\]\(\.\./examples/\w+\.sh\), hours: \w|no script: another paper's system", row) for row in rows)


def test_every_number_of_ours_has_a_size_a_command_a_date_and_a_commit(data: Any) -> None:
    for paper in data["papers"]:
        for name, measurement in paper["measurements"].items():
            assert measurement["collection"] and measurement["size"] and measurement["why"], name
            if not measurement.get("pending"):
                assert re.fullmatch(r"\d{4}-\d\d-\d\d", str(measurement["date"])) and re.fullmatch(r"[0-9a-f]{7}", measurement["commit"]), (
                    name
                )
                paths = [word for word in measurement["command"].split() if "/" in word]
                assert all((ROOT / path).is_file() for path in paths), name


def test_what_is_called_exact_is_exact(data: Any) -> None:
    for row in data["exact"]["rows"]:
        ours, _ = reproductions.resolve(row["ours"], row, row["row"]) or ("", [])
        value, published = ours.split()[-1], row["published"].split()[0]
        near = abs(float(value.replace(",", "")) / float(published.rstrip("M")) / (1e6 if "M" in published else 1) - 1)
        assert value == published or ("M" in published and near < 0.005) or (row["why"] == "near, not equal" and near < 0.01), row["row"]
