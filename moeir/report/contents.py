"""Training charts, a projection, and query pages with their texts."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.records import lines, texts
from moeir.records.texts import Text
from moeir.report.cases import QUERIES_PER_CHUNK, TEXTS_PER_CHUNK, QueryPages, split_chunks, shorten
from moeir.report.kinds import CURVE_KINDS
from moeir.report.reasons import Explanations
from moeir.report.training import TrainingRun

MAX_QUERY_LENGTH = 400
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class PageData:
    """Pages of `queries` with explanations, and the texts of their documents up to `max_length` characters."""

    pages: QueryPages
    queries: Sequence[str]
    explanations: Explanations
    max_length: int

    @cached_property
    def document_numbers(self) -> dict[str, int]:
        """Number of every shown document, by id."""
        numbers: dict[str, int] = {}
        for query in self.queries:
            for name in self.pages.shown_documents(query):
                numbers.setdefault(name, len(numbers))
        return numbers

    def overview(self, query_texts: Mapping[str, Text]) -> dict[str, Any]:
        """Data of all queries that the page loads first."""
        answers = [sum(grade > 0 for grade in self.pages.qrels[query].values()) for query in self.queries]
        return {
            "runs": list(self.pages.runs),
            "depth": self.pages.depth,
            "queries": list(self.queries),
            "texts": [shorten(query_texts[query].content, MAX_QUERY_LENGTH) if query in query_texts else "" for query in self.queries],
            "answers": answers,
            "firsts": self.pages.first_answer_ranks(self.queries),
            "chunks": {"cases": QUERIES_PER_CHUNK, "texts": TEXTS_PER_CHUNK},
        }

    def iter_chunks(self, corpus: Iterable[Text]) -> Iterator[tuple[str, Any]]:
        """Query pages in chunks, then documents in chunks: id, title and text; only the id if `corpus` lacks the document."""
        numbers = self.document_numbers
        cases = (self.pages.query_page(query, numbers, self.explanations) for query in self.queries)
        for index, chunk in enumerate(split_chunks(cases, QUERIES_PER_CHUNK)):
            yield f"cases-{index}", chunk
        rows: list[list[str]] = [[name] for name in numbers]
        for text in corpus:
            if text.id in numbers:
                rows[numbers[text.id]] = [text.id, shorten(text.title, self.max_length), shorten(text.text, self.max_length)]
        for index, documents in enumerate(split_chunks(rows, TEXTS_PER_CHUNK)):
            yield f"texts-{index}", documents


def training_charts(trainings: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """Charts and alarms of each training, with the same curves as the plots: title → curves of (step, mean)."""
    charts_of_trainings = []
    for training in trainings:
        charts = []
        for title, curves_of in CURVE_KINDS.items():
            if curves := curves_of(training.monitor):
                lines_of = [
                    {"label": label, "points": [[step, _round_coordinate(value / unit)] for step, value in training.monitor[fact].points()]}
                    for label, (fact, unit) in curves.items()
                ]
                charts.append({"title": title, "curves": lines_of})
        charts_of_trainings.append({"name": training.name, "steps": training.monitor.step, "finished": training.finished, "charts": charts})
        charts_of_trainings[-1]["alarms"] = [str(alarm) for alarm in training.monitor.alarms]
    return charts_of_trainings


def read_projection(path: Path) -> dict[str, Any]:
    """Read the output of `analyze projection`: ids, sides, groups and coordinates [n][2 or 3] of the points."""
    rows = list(_read_rows(path))
    axes = [name for name in AXES if name in rows[0][1]]
    if len(axes) < 2 or "id" not in rows[0][1] or "group" not in rows[0][1]:
        raise DataError(f"{path}: expected the columns side, id, group, x and y that analyze projection writes")
    groups = list(dict.fromkeys(str(row["group"]) for _, row in rows))
    return {
        "groups": groups,
        "of": [groups.index(str(row["group"])) for _, row in rows],
        "ids": [str(row["id"]) for _, row in rows],
        "sides": [str(row.get("side", "")) for _, row in rows],
        "places": [[_parse_coordinate(row[axis], where) for axis in axes] for where, row in rows],
    }


def _read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a TSV file with a header, or of JSON lines, each with `file:line`."""
    names: list[str] | None = None
    name, has_rows = lines.source_name(path), False
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            where = f"{name}:{number}"
            if lines.strip_compression_suffix(path).suffix == ".jsonl":
                row = texts.parse_json(line, where)
                if not isinstance(row, dict):
                    raise DataError(f"{where}: expected an object for each point")
            elif names is None:
                names = line.split("\t")
                continue
            else:
                cells = line.split("\t")
                if len(cells) != len(names):
                    raise DataError(f"{where}: {len(names)} columns expected, as the first line has, {len(cells)} found")
                row = dict(zip(names, cells, strict=True))
            has_rows = True
            yield where, row
    if not has_rows:
        raise DataError(f"{name}: has no points; moeir analyze projection writes them")


def _parse_coordinate(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: a coordinate is not a number: {value!r}")
    return _round_coordinate(number)


def _round_coordinate(number: float) -> float:
    return float(f"{number:.5g}")
