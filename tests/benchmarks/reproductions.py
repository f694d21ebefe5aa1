"""Write docs/reproductions.md: every table of the papers beside our numbers, which are read from the files of results.

    python -m tests.benchmarks.reproductions > docs/reproductions.md

reproductions.yaml, beside this file, has the papers' numbers and says where ours stand: file, table (by its heading, the line above it or
its first column's name), row (by its first cell, or its first two) and column. What is not found there is an error.
`pytest tests/test_reproductions.py --update-golden` writes the page too.
"""

import re
from collections.abc import Iterator
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
WAITING = ("not run yet", "seeds missing")  # in a table of results that is not complete
ANSWERS = ("same sign", "opposite sign", "no common sign")
KEYS = {"at", "table", "row", "column", "columns", "label", "after", "against", "p", "interval", "seeds", "text", "why"}
Entry = dict[str, Any]


class Table(NamedTuple):
    """A table of results; its names are the heading that it stands under, the line above it, and its first column's."""

    names: tuple[str, str, str]
    header: list[str]
    rows: list[list[str]]


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
        tables.append(Table((heading, lines[max(number - 2, 0)].strip("=: "), header[0]), header, rows))
    return tables


def split_row(line: str, starts: list[int]) -> list[str]:
    """Cells between bars, or from one start of a column to the next."""
    between = line.strip().removeprefix("|").removesuffix("|").split("|")
    return [part.strip() for part in ([line[start:end] for start, end in zip(starts, [*starts[1:], None])] if starts else between)]


def read_cell(path: Path, table: str | None, row: str | None, column: str, where: str, after: str | None = None) -> str:
    """A cell of the first column of that name, behind the column `after` if there is one; an error says what the file has instead."""

    def error(problem: str, choices: list[str]) -> DataError:
        return DataError(f"{relpath(path, ROOT)}: {problem}: expected one of {choices}; correct {where}, or the results")

    tables = parse_tables(path.read_text(encoding="utf-8"))
    if not (named := [one for one in tables if table in one.names]):
        raise error(f"no table {table!r}", sorted({name for one in tables for name in one.names if name}))
    rows = [(one.header, cells) for one in named for cells in one.rows if row in (cells[0], " ".join(cells[:2]))]
    if len(rows) != 1:
        raise error(f"{len(rows) or 'no'} rows {row!r} in table {table!r}", [cells[0] for one in named for cells in one.rows])
    header, cells = rows[0]
    start = header.index(after) + 1 if after in header else 0
    if column not in header[start:]:
        raise error(f"no column {column!r} in table {table!r}", [name for name in header[start:] if name])
    return cells[header.index(column, start)]


class Difference(NamedTuple):
    """A difference in points; its p as the results print it and its interval in points, empty where they do not."""

    points: float
    p: str
    interval: str

    def __str__(self) -> str:
        p = re.sub(r"(?<!\d)\.", "0.", f"p = {self.p}").replace("= <", "< ") if self.p else "no p"
        interval = f"{self.interval}; " if self.interval else ""
        return f"{format_points(self.points)} ({interval}{p})"


def format_points(points: float) -> str:
    """With a sign and two decimals."""
    sign = "+" if points > 0 else "−" if points < 0 else ""
    return f"{sign}{abs(points):.2f}"


def fill_seed(value: Any, seed: object) -> Any:
    """A reference with {seed} replaced in all its texts."""
    if isinstance(value, dict):
        return {key: fill_seed(one, seed) for key, one in value.items()}
    return value.replace("{seed}", str(seed)) if isinstance(value, str) else value


def parse_points(cell: str, where: str) -> float:
    """The number that a cell starts with, times 100."""
    if not (number := NUMBER.match(cell)):
        raise DataError(f"{where}: {cell!r}: expected a cell that starts with a number; name another column")
    return 100 * float(number[0].replace("−", "-"))


def resolve(reference: Entry, measurement: Entry, where: str) -> tuple[str, list[Difference]] | None:
    """The numbers a reference names, as text, and what they differ from `against`; None while they are declared and not there yet."""
    path = (RESULTS / measurement["file"]).resolve()
    if unknown := reference.keys() - KEYS:
        raise DataError(f"{where}: no key {sorted(unknown)}: expected some of {sorted(KEYS)}")
    if not path.exists() and measurement.get("pending"):
        return None
    if not path.exists():
        raise DataError(f"{relpath(path, ROOT)}: no such file: correct {where}, or add `pending: true` there")
    if "text" in reference:
        if reference["text"] not in path.read_text(encoding="utf-8"):
            raise DataError(f"{relpath(path, ROOT)}: no {reference['text']}: expected by {where}; correct one of them")
        return reference["text"].replace("_", ","), []

    def read(one: Entry) -> str:
        return read_cell(path, one.get("table"), one.get("row"), one["column"], where, one.get("after"))

    values, differences = dict[str, list[str]](), list[Difference]()
    for seed in reference.get("seeds", [""]):
        one = fill_seed({"table": measurement.get("table"), "column": measurement.get("column")} | reference, seed)
        for column in one.get("columns", [one["column"]]):
            cell, _, p = read(one | {"column": column}).rstrip(")").partition(" (")  # quickstart.md has `value (p)`, in either row
            values.setdefault(one.get("label", column), []).append(cell)
            tests = [read(one | {"after": column, "column": one[key]}) if one.get(key) else "" for key in ("p", "interval")]
            if measurement.get("pending") and (cell in WAITING or tests[0] in WAITING):
                return None
            other, _, p_of_other = (
                read({**one, "column": column} | one["against"]).rstrip(")").partition(" (") if "against" in one else ("0", "", "")
            )
            baseline = parse_points(other, where)
            p = (p or p_of_other or tests[0]).replace(" ", "")
            if p:
                parse_points(p.lstrip("<"), where)
            interval = NUMBER.sub(lambda bound: format_points(parse_points(bound[0], where)), tests[1])
            differences.append(Difference(parse_points(cell, where) - baseline, p, interval))
    return ", ".join(f"{name} {' / '.join(cells)}" for name, cells in values.items()), differences


def judge(differences: list[Difference], paper: str) -> str:
    """Signs beside that of the paper's `A against B`, + where it has no numbers, and whether all differences are significant."""
    numbers = re.search(r"(\d*\.?\d+) against (\d*\.?\d+)", paper)
    positive = numbers is None or float(numbers[1]) > float(numbers[2])
    signs = {((one.points > 0) - (one.points < 0)) * (1 if positive else -1) for one in differences}
    significant = [one.p.startswith("<") or (one.p != "" and float(one.p) < 0.05) for one in differences]
    tested = "p < 0.05" if all(significant) else "p < 0.05 in some" if any(significant) else "p ≥ 0.05"
    answer = "same sign" if signs == {1} else "opposite sign" if signs == {-1} else "no common sign"
    return f"**{answer}**, {tested if all(one.p for one in differences) else 'not tested'}"


def format_script(script: str | None) -> str:
    """The link to a script and its hours, which the table of examples/README.md has."""
    if script is None:
        return "no script: another paper's system"
    column = "hours beyond the scripts above it"
    hours = read_cell(ROOT / "examples" / "README.md", "Examples", script, column, DATA.name)
    return f"[{script}](../examples/{script}), hours: {hours}"


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def resolve_all(paper: Entry, references: Any, what: str) -> Iterator[tuple[Entry, Entry, tuple[str, list[Difference]] | None]]:
    """Each reference of a claim or row, the measurement that it is of, and its numbers."""
    where = f"{DATA.name} ({paper['name']}, {what})"
    for reference in as_list(references):
        if (name := reference.get("at")) not in paper["measurements"]:
            raise DataError(f"{where}: at: {name!r}: expected one of {list(paper['measurements'])}; name one, or add it to them")
        measurement = paper["measurements"][name]
        yield reference, measurement, resolve(reference, measurement, where)


def claim_rows(paper: Entry) -> list[list[str]]:
    """What a paper says, what was found here, and how sure that is."""
    rows = []
    for claim in paper["claims"]:
        first = [claim["claim"], str(claim["paper"])]
        for reference, measurement, resolved in resolve_all(paper, claim.get("ours"), f"claim {claim['claim']!r}"):
            answer = [" / ".join(map(str, resolved[1])), judge(resolved[1], str(claim["paper"]))] if resolved else [DECLARED, "–"]
            rows.append([*first, *answer, measurement["title"], reference.get("why", "")])
            first = ["", ""]
        if first[0]:
            rows.append([*first, NOT_RUN, "–", format_script(claim["script"]), ""])
    return rows


def number_rows(paper: Entry, table: Entry) -> list[list[str]]:
    """A table of a paper with ours; each further reference of a row has a line of its own."""
    rows = []
    for name, entry in table["rows"].items():
        options = entry if isinstance(entry, dict) else {"paper": entry}
        first = [str(name), str(options["paper"])]
        for reference, measurement, resolved in resolve_all(paper, options.get("ours"), f"{table['table']}, row {name!r}"):
            rows.append([*first, resolved[0] if resolved else DECLARED, ", ".join([measurement["title"], *as_list(reference.get("why"))])])
            first = ["", ""]
        if first[0]:
            rows.append([*first, NOT_RUN, format_script((table | options).get("script"))])
    return rows


def measurement_row(one: Entry) -> list[str]:
    """How numbers of ours were measured, and what sets them apart from the paper's."""
    path = (RESULTS / one["file"]).resolve()
    linked = path.exists() and path.suffix == ".md"
    results = f"[{path.name}]({relpath(path, ROOT / 'docs')})" if linked else f"`{one['file'].lstrip('./')}`"
    when = f"{one['date']}, {one['commit']}" if "date" in one else "see the results" if path.exists() else DECLARED
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
        size = f" At the paper's size: not run; {format_script(table['script'])}." if "script" in table else ""
        lines += [f"### {name}: {table['table']}", "", table["about"] + size]
        lines += format_table(f"row | paper: {table['measures']} | ours | measured, or the script and its hours", rows)
        numbers += rows
    counts = [f"{sum(word in row[3] for row in claims)} ({[row[3] for row in claims].count(f'**{word}**, p < 0.05')})" for word in ANSWERS]
    waiting = [f"{sum(row[2] == word for row in claims)}; {sum(row[2] == word for row in numbers)}" for word in (DECLARED, NOT_RUN)]
    return lines, [f"[{name}](#{name.lower()})", *counts, *waiting, str(len(numbers))]


def write_page(data: Entry) -> str:
    """The page: what is exact, a summary, and for each paper its claims, how ours was measured, and its tables."""
    chapters, exact = [write_chapter(paper) for paper in data["papers"]], list[list[str]]()
    for row in data["exact"]["rows"]:
        resolved = resolve(row["ours"], row, f"{DATA.name} (exact number {row['row']!r})")
        exact.append([row["row"], row["published"], resolved[0] if resolved else DECLARED, *measurement_row(row)[3:]])
    lines = [data["start"], "## Numbers that are reproduced exactly, or nearly", "", data["exact"]["about"].rstrip()]
    lines += format_table("number | published | ours | command, results | date, commit | how", exact)
    lines += ["## At a glance", "", data["glance"].rstrip()]
    lines += format_table(f"paper | {' | '.join(ANSWERS)} | declared | not run | rows", [row for _, row in chapters])
    return "\n".join([*lines, *(line for chapter, _ in chapters for line in chapter)]).rstrip() + "\n"


if __name__ == "__main__":
    print(write_page(yaml.safe_load(DATA.read_text(encoding="utf-8"))), end="")
