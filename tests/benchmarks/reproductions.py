"""Write docs/reproductions.md: every table of the papers beside our numbers, which are read from the files of results.

    python -m tests.benchmarks.reproductions > docs/reproductions.md

reproductions.yaml, beside this file, has the papers' numbers and says where ours stand: file, heading (or line above the table), row and
column. What is not found there is an error. `pytest tests/test_reproductions.py --update-golden` writes the page too.
"""

import re
from os.path import relpath
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from moeir.errors import DataError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "benchmarks" / "results"
DATA = Path(__file__).with_name("reproductions.yaml")
RULE = re.compile(r"-{2,}( +-{2,})+ *|\|[\s:|-]*-[\s:|-]*")
NUMBER = re.compile(r"[+−-]?\d*\.?\d+")
NOT_RUN, DECLARED = "not run", "declared, not yet run"
ANSWERS = ("same sign", "opposite sign", "signs differ")
KEYS = {"at", "table", "row", "column", "columns", "label", "after", "against", "p", "interval", "seeds", "text", "why"}
Entry = dict[str, Any]


class Table(NamedTuple):
    """A table of results; its names are the heading that it stands under, the line above it, and its first column's."""

    names: tuple[str, str, str]
    header: list[str]
    rows: list[list[str]]


class Difference(NamedTuple):
    """A difference in points; its p and interval as the results print them, empty where they do not."""

    points: float
    p: str
    interval: str

    def __str__(self) -> str:
        p = re.sub(r"(?<!\d)\.", "0.", f"p = {self.p}").replace("= <", "< ") if self.p else "no p"
        return f"{'+' if self.points > 0 else '−'}{abs(self.points):.2f} ({f'{self.interval}; ' if self.interval else ''}{p})"


def parse_tables(text: str) -> list[Table]:
    """Tables of Markdown, and those in fences, whose columns a line of dashes marks."""
    lines = text.replace("**", "").replace("```", "~~~").replace("`", "").splitlines()
    rules = {number for number, line in enumerate(lines) if number and RULE.fullmatch(line)}
    tables, heading, fenced = list[Table](), "", False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("~~~")
        heading = line.strip("# ") if line.startswith("#") and not fenced else heading
        if number not in rules:
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip("~ ") and not {end + 1, end + 2} & rules:  # the next table's caption ends this one
            end += 1
        starts = [] if "|" in line else [dashes.start() for dashes in re.finditer("-+", line)]
        header, *rows = [split_row(row, starts) for row in (lines[number - 1], *lines[number + 1 : end])]
        tables.append(Table((heading, lines[number - 2].strip("=: "), header[0]), header, rows))
    return tables


def split_row(line: str, starts: list[int]) -> list[str]:
    """Cells between bars, or from one start of a column to the next."""
    between = line.strip().removeprefix("|").removesuffix("|").split("|")
    return [part.strip() for part in ([line[start:end] for start, end in zip(starts, [*starts[1:], None])] if starts else between)]


def read_cell(path: Path, reference: Entry, column: str, where: str) -> str:
    """The cell that a reference names; an error says what the file has instead."""

    def error(problem: str, choices: list[str]) -> DataError:
        return DataError(f"{relpath(path, ROOT)}: {problem}: expected one of {choices}; correct {where} in {DATA.name}, or the results")

    tables, name, row_name = parse_tables(path.read_text(encoding="utf-8")), reference.get("table"), reference.get("row")
    if not (named := [table for table in tables if name in table.names]):
        raise error(f"no table {name!r}", sorted({name for table in tables for name in table.names if name}))
    rows = [(table.header, row) for table in named for row in table.rows if row_name in (row[0], " ".join(row[:2]))]
    if len(rows) != 1:
        raise error(f"{len(rows) or 'no'} rows {row_name!r} in table {name!r}", [row[0] for table in named for row in table.rows])
    header, row = rows[0]
    start = header.index(reference["after"]) + 1 if reference.get("after") in header else 0
    if column not in header[start:]:
        raise error(f"no column {column!r} in table {name!r}", [name for name in header[start:] if name])
    return row[header.index(column, start)]


def fill_seed(value: Any, seed: object) -> Any:
    """A reference with {seed} replaced in all its texts."""
    if isinstance(value, dict):
        return {key: fill_seed(one, seed) for key, one in value.items()}
    return value.replace("{seed}", str(seed)) if isinstance(value, str) else value


def parse_points(cell: str, where: str) -> float:
    """The number that a cell starts with, times 100."""
    if not (number := NUMBER.match(cell)):
        raise DataError(f"{where}: {cell!r}: expected a cell that starts with a number; name another column in {DATA.name}")
    return 100 * float(number[0].replace("−", "-"))


def resolve(reference: Entry, measurement: Entry, where: str) -> tuple[str, list[Difference]] | None:
    """The numbers a reference names, as text, and what they differ from `against`; None while they are declared and not there yet."""
    path = (RESULTS / measurement["file"]).resolve()
    if unknown := reference.keys() - KEYS:
        raise DataError(f"{DATA.name}: {where}: no key {sorted(unknown)}: expected some of {sorted(KEYS)}")
    if not path.exists() and measurement.get("pending"):
        return None
    if not path.exists():
        raise DataError(f"{relpath(path, ROOT)}: no such file: correct {where} in {DATA.name}, or add `pending: true` there")
    if "text" in reference:
        if reference["text"] not in path.read_text(encoding="utf-8"):
            raise DataError(f"{relpath(path, ROOT)}: no {reference['text']}: expected by {where} in {DATA.name}; correct one of them")
        return reference["text"].replace("_", ","), []
    values, differences = dict[str, list[str]](), list[Difference]()
    for seed in reference.get("seeds", [""]):
        one = fill_seed({"table": measurement.get("table"), "column": measurement.get("column")} | reference, seed)
        for column in one.get("columns", [one["column"]]):
            cell, _, p = read_cell(path, one, column, where).rstrip(")").partition(" (")  # quickstart.md has `value (p)`
            values.setdefault(one.get("label", column), []).append(cell)
            other = {**one, "column": column, **one.get("against", {})}
            baseline = parse_points(read_cell(path, other, other["column"], where), where) if "against" in one else 0.0
            tests = [read_cell(path, one | {"after": column}, one[key], where) if one.get(key) else "" for key in ("p", "interval")]
            differences.append(Difference(parse_points(cell, where) - baseline, p or tests[0], tests[1]))
    return ", ".join(f"{name} {' / '.join(cells)}" for name, cells in values.items()), differences


def judge(differences: list[Difference], paper: str) -> str:
    """Signs beside that of the paper's `A against B`, + where it has no numbers, and whether all differences are significant."""
    numbers = re.search(r"(\d*\.?\d+) against (\d*\.?\d+)", paper)
    positive = numbers is None or float(numbers[1]) > float(numbers[2])
    signs = {(one.points > 0) == positive for one in differences}
    significant = [one.p.startswith("<") or (one.p != "" and float(one.p) < 0.05) for one in differences]
    tested = "p < 0.05" if all(significant) else "p < 0.05 in some" if any(significant) else "p ≥ 0.05"
    answer = "signs differ" if len(signs) > 1 else "same sign" if True in signs else "opposite sign"
    return f"**{answer}**, {tested if all(one.p for one in differences) else 'not tested'}"


def format_script(script: str | None) -> str:
    """The link to a script and its hours, which the table of examples/README.md has."""
    if script is None:
        return "no script: another paper's system"
    column = "hours beyond the scripts above it"
    hours = read_cell(ROOT / "examples" / "README.md", {"table": "Examples", "row": script}, column, f"script {script}")
    return f"[{script}](../examples/{script}), hours: {hours}"


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def claim_rows(paper: Entry) -> list[list[str]]:
    """What a paper says, what was found here, and how sure that is."""
    rows = []
    for claim in paper["claims"]:
        first = [claim["claim"], str(claim["paper"])]
        for reference in as_list(claim.get("ours")):
            measurement = paper["measurements"][reference["at"]]
            resolved = resolve(reference, measurement, f"{paper['name']}, claim {claim['claim']!r}")
            answer = [" / ".join(map(str, resolved[1])), judge(resolved[1], str(claim["paper"]))] if resolved else [DECLARED, "–"]
            rows.append([*first, *answer, measurement["title"], reference.get("why", "")])
            first = ["", ""]
        if not as_list(claim.get("ours")):
            rows.append([*first, NOT_RUN, "–", format_script(claim["script"]), ""])
    return rows


def number_rows(paper: Entry, table: Entry) -> list[list[str]]:
    """A table of a paper with ours; each further reference of a row has a line of its own."""
    rows = []
    for name, entry in table["rows"].items():
        options = entry if isinstance(entry, dict) else {"paper": entry}
        first = [str(name), str(options["paper"])]
        for reference in as_list(options.get("ours")):
            measurement = paper["measurements"][reference["at"]]
            resolved = resolve(reference, measurement, f"{paper['name']}, {table['table']}, row {name!r}")
            source = ", ".join([measurement["title"], *as_list(reference.get("why"))])
            rows.append([*first, resolved[0] if resolved else DECLARED, source])
            first = ["", ""]
        if not as_list(options.get("ours")):
            rows.append([*first, NOT_RUN, format_script(options.get("script", table["script"]))])
    return rows


def measurement_row(one: Entry) -> list[str]:
    """How numbers of ours were measured, and what sets them apart from the paper's."""
    path = (RESULTS / one["file"]).resolve()
    results = f"[{path.name}]({relpath(path, ROOT / 'docs')})" if path.exists() and path.suffix == ".md" else f"`{path.name}`"
    when = f"{one['date']}, {one['commit']}" if "date" in one else DECLARED
    command = f"`{one['command']}` → " if "command" in one else ""
    return [one["title"], one["collection"], one["size"], command + results, when, one["why"]]


def format_table(header: str, rows: list[list[str]]) -> list[str]:
    return ["", f"| {header} |", f"|{'---|' * len(rows[0])}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def write_chapter(paper: Entry) -> tuple[list[str], list[str]]:
    """The lines of a paper, and its row of the summary."""
    name, claims, numbers = paper["name"], claim_rows(paper), list[list[str]]()
    lines = [f"## {name}", "", paper["citation"], "", f"### {name}: claims"]
    lines += format_table("claim | paper | ours, points | sign and test | measured | why they differ", claims)
    lines += [f"### {name}: how ours was measured"]
    measured = [measurement_row(measurement) for measurement in paper["measurements"].values()]
    lines += format_table("measured | collection | size | command, results | date, commit | why the numbers differ", measured)
    for table in paper["tables"]:
        rows = number_rows(paper, table)
        about = f"{table['about']} At the paper's size: not run; {format_script(table['script'])}."
        lines += [f"### {name}: {table['table']}", "", about]
        lines += format_table(f"row | paper: {table['measures']} | ours | measured, or the script and its hours", rows)
        numbers += rows
    counts = [f"{sum(word in row[3] for row in claims)} ({[row[3] for row in claims].count(f'**{word}**, p < 0.05')})" for word in ANSWERS]
    waiting = [f"{sum(row[2] == word for row in claims)}; {sum(row[2] == word for row in numbers)}" for word in (DECLARED, NOT_RUN)]
    return lines, [f"[{name}](#{name.lower()})", *counts, *waiting, str(len(numbers))]


def write_page(data: Entry) -> str:
    """The page: what is exact, a summary, and for each paper its claims, how ours was measured, and its tables."""
    chapters, exact = [write_chapter(paper) for paper in data["papers"]], list[list[str]]()
    for row in data["exact"]["rows"]:
        resolved = resolve(row["ours"], row, f"exact number {row['row']!r}")
        exact.append([row["row"], row["published"], resolved[0] if resolved else DECLARED, *measurement_row(row)[3:]])
    lines = [data["start"], "## Numbers that are reproduced exactly, or nearly", "", data["exact"]["about"].rstrip()]
    lines += format_table("number | published | ours | command, results | date, commit | how", exact)
    lines += ["## At a glance", "", data["glance"].rstrip()]
    lines += format_table(f"paper | {' | '.join(ANSWERS)} | declared | not run | rows", [row for _, row in chapters])
    return "\n".join([*lines, *(line for chapter, _ in chapters for line in chapter)]).rstrip() + "\n"


if __name__ == "__main__":
    print(write_page(yaml.safe_load(DATA.read_text(encoding="utf-8"))), end="")
