"""Detect the format of a file or folder where its first lines are unambiguous."""

import csv
import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

from moeir.errors import DataError, UsageError
from moeir.formats import pairs
from moeir.formats.examples import read_objects
from moeir.records import dpr, lines, remote_rows, texts
from moeir.records.qrels import ROW_FIELDS

_FOLDER_FILES = {
    "checkpoint": {"moeir.json"},
    "colbert": {"triples.jsonl", "collection.tsv", "queries.tsv"},
    "beir": {"corpus.jsonl", "queries.jsonl"},
    "msmarco": {"collection.tsv", "queries.tsv"},
}


def _cross(*columns: tuple[str, ...]) -> tuple[set[str], ...]:
    return tuple(map(set, product(*columns)))


_TABLE_KEYS: dict[str, tuple[set[str], ...]] = {
    "tuples": _cross(pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS, ("negative_1",)),
    "triplets": _cross(pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS, pairs.NEGATIVE_COLUMNS),
    "labelled": _cross(pairs.ANCHOR_COLUMNS, pairs.LABELLED_COLUMNS, pairs.LABEL_COLUMNS),
    "pairs": _cross(pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS),
}
_FORMAT_KEYS = {  # a line of the format has all keys of one of these sets
    "tevatron": ({"query_id", "query", "positive_passages"},),
    "tevatron-ids": ({"query_id", "positive_document_ids"},),
    "examples": ({"query_id", "positive_ids"},),
    "flagembedding": ({"query", "pos", "neg"}, {"query", "pos"}),
    "msmarco-hard-negatives": ({"qid", "pos", "neg"},),
    **_TABLE_KEYS,
    "tevatron-texts": ({"docid", "text"}, {"query_id", "query"}, {"docid", "document_text"}),
}
_TREC_COLUMNS = {6: ("run", 4), 4: ("qrels", 3)}  # by their number: the format, and the column that is a number
HEAD_LINES = 10
_SURE_RANKS = 5  # a list numbered so far in its order is no list of grades
_GRADES = {str(grade) for grade in range(10)}


def detect_format(path: Path) -> str:
    """The name of the format; UsageError where it is not recognised, or where several fit."""
    if path.is_dir():
        files = {lines.strip_compression_suffix(file).name for file in path.iterdir()}
        fitting = {name: layout for name, layout in _FOLDER_FILES.items() if layout <= files}
        names = [name for name, layout in fitting.items() if not any(layout < other for other in fitting.values())]
    elif not path.exists() and str(path) != "-":
        raise UsageError(f"{path}: no such file or folder")
    elif remote_rows.is_columnar(path):
        names = _detect_record(next(read_objects(path), ("", {}))[1])
    else:
        head = _read_head(path)
        names = detect_from_lines(head, path)
        if not names and head and not head[0].startswith(("{", "[")) and (advice := lines.describe_markup(head[0])):
            raise UsageError(f"{path}: format not recognised: {advice}")
    if len(names) != 1:
        problem = f"may be {' or '.join(names)}; say which" if names else "format not recognised; name it"
        raise UsageError(f"{path}: {problem} with --from (moeir variants formats lists them)")
    return names[0]


def detect_examples(path: Path) -> str | None:
    """The format of what should be training examples, so that more is clear than of any file; None if ambiguous.

    JSON and rows of columns in no known format are taken for moeir's, whose reader says what they lack.
    """
    if remote_rows.is_columnar(path):
        return _match_keys(next(read_objects(path), ("", {}))[1]) or "examples"
    head = _read_head(path)
    names = detect_from_lines(head, path)
    with suppress(ValueError, RecursionError):
        record = json.loads(head[0] if head else "{}")
        if isinstance(record, list) and not dpr.is_array(head[0]):
            return "id-triples"
        if isinstance(record, dict):
            return _match_keys(record) or (names or ["examples"])[0]
    if len(names) == 1 or head[0].lstrip().startswith(("{", "[")):
        return (names or ["examples"])[0]
    return "id-triples" if _are_id_triples([line.split("\t") for line in head]) else None


def _are_id_triples(rows: list[list[str]]) -> bool:
    """Whether rows are three ids each that can be neither judgements nor a run: grades, or the documents of one query with numbers."""
    if any(len(row) != 3 or any(len(word.split()) != 1 for word in row) for row in rows):
        return False
    queries, positives, last = map(set, zip(*rows, strict=True))
    return not last <= _GRADES and not (len(queries) == 1 and len(positives) == len(rows) > 1 and all(map(_is_number, last)))


def _read_head(path: Path) -> list[str]:
    with lines.open_lines(path) as numbered:
        return list(islice((line for _, line in numbered if line.strip()), HEAD_LINES))


def detect_from_lines(head: list[str], path: Path) -> list[str]:
    """The formats that a file may have by its first lines.

    >>> heads = "q1 Q0 owl 1 2.5 bm25", "q1\\t0\\towl\\t1", "1\\tAn owl."
    >>> [detect_from_lines([head], Path("x.tsv")) for head in heads]
    [['run'], ['qrels'], ['tsv']]
    """
    if not head:
        return []
    if dpr.is_array(head[0]):
        with suppress(DataError):  # an entry that ends on a later line
            _, entry = next(dpr.read_array("", iter(enumerate(head))), ("", {}))
            return ["texts"] if "positive_ctxs" not in entry and _detect_record(entry) == ["texts"] else ["dpr"]
        return ["dpr"]
    with suppress(ValueError, RecursionError):
        return _detect_record(json.loads(head[0]))
    return [] if head[0].startswith("{") else _detect_columns(head, path)


def _detect_record(record: Any) -> list[str]:
    if not isinstance(record, dict):
        return []
    match = _match_keys(record)
    is_text = any(name in record for name in texts.ID_FIELDS) and any(name in record for name in texts.TEXT_FIELDS)
    name = "texts" if is_text and match in (None, "pairs") else match
    return [] if name is None else [name]


def _match_keys(names: Iterable[str]) -> str | None:
    present = set(names)
    return next((name for name, alternatives in _FORMAT_KEYS.items() if any(keys <= present for keys in alternatives)), None)


def _detect_columns(head: list[str], path: Path) -> list[str]:
    """The formats that the lines may have."""
    head = [line for line in head if not line.startswith("#")] or head  # comments of judgements
    delimiter = "," if lines.strip_compression_suffix(path).suffix.lower() == ".csv" else "\t"
    with suppress(csv.Error):  # a carriage return within the line
        if (match := _match_keys(next(csv.reader(head[:1], delimiter=delimiter)))) in _TABLE_KEYS:
            return [str(match)]
    rows = [line.split("\t") if "\t" in line else line.split() for line in head]
    width = len(rows[0])
    if width in (3, 4) and rows[0][0] in ROW_FIELDS["query"] and rows[0][-1] in ROW_FIELDS["grade"]:
        return ["beir-qrels" if width == 3 else "qrels"]
    with suppress(DataError):
        if texts.parse_header(head[0], ""):
            return ["tsv"]
    if any(len(row) != width for row in rows):
        return []
    if width in _TREC_COLUMNS:
        name, number = _TREC_COLUMNS[width]
        return [name] * all(row[1] in ("0", "Q0", "q0") and _is_number(row[number]) for row in rows)
    return _detect_tabs(rows) if "\t" in head[0] else []


def _detect_tabs(rows: list[list[str]]) -> list[str]:
    """The formats that rows of one width may have, other than TREC's."""
    last = [row[-1] for row in rows]
    if len(rows[0]) != 3:
        return ["tsv"] * (len(rows[0]) == 2 and any(" " in text for text in last))
    if not all(map(_is_number, last)):
        return []
    first_list = [row[2] for row in rows if row[0] == rows[0][0]]
    if len(first_list) >= _SURE_RANKS and first_list == [str(rank) for rank in range(1, len(first_list) + 1)]:
        return ["msmarco-run"]
    are_whole = all(float(word) % 1 == 0 for word in last)  # not so for nan
    return ["tevatron-run", *["beir-qrels"] * are_whole, *["msmarco-run"] * all(map(str.isdecimal, last))]


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False
