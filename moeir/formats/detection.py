"""Detect the format of a file or folder where its first lines are unambiguous."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

from moeir.errors import DataError, UsageError
from moeir.formats import pairs
from moeir.records import dpr, lines, remote_rows, texts
from moeir.records.qrels import ROW_FIELDS

_FOLDER_FILES = {
    "checkpoint": {"moeir.json"},
    "colbert": {"triples.jsonl", "collection.tsv", "queries.tsv"},
    "beir": {"corpus.jsonl", "queries.jsonl"},
    "msmarco": {"collection.tsv", "queries.tsv"},
}
_TABLE_KEYS = {
    "triplets": (pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS, pairs.NEGATIVE_COLUMNS),
    "labelled": (pairs.ANCHOR_COLUMNS, pairs.LABELLED_COLUMNS, pairs.LABEL_COLUMNS),
    "pairs": (pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS),
}
_FORMAT_KEYS: dict[str, tuple[set[str], ...]] = {  # a line of the format has all keys of one of these sets
    "tevatron": ({"query_id", "query", "positive_passages"},),
    "tevatron-ids": ({"query_id", "positive_document_ids"},),
    "dpr": ({"question", "positive_ctxs"},),
    "examples": ({"query_id", "positive_ids"},),
    "flagembedding": ({"query", "pos", "neg"}, {"query", "pos"}),
    "msmarco-hard-negatives": ({"qid", "pos", "neg"},),
    **{name: tuple(map(set, product(*columns))) for name, columns in _TABLE_KEYS.items()},
    "tevatron-texts": ({"docid", "text"}, {"docid", "document_text"}),
}
_TREC_COLUMNS = {6: ("run", 4), 4: ("qrels", 3)}  # by their number: the format, and the column that is a number
HEAD_LINES = 10


def detect_format(path: Path) -> str:
    """The name of the format; UsageError where it is not recognised, or where several fit."""
    if path.is_dir():
        files = {lines.strip_compression_suffix(file).name for file in path.iterdir()}
        fitting = {name: layout for name, layout in _FOLDER_FILES.items() if layout <= files}
        names = [name for name, layout in fitting.items() if not any(layout < other for other in fitting.values())]
        if len(names) > 1:
            raise UsageError(f"{path}: may be {' or '.join(names)}; say which with --from")
        name = names[0] if names else None
    elif not path.exists() and str(path) != "-":
        raise DataError(f"{path}: no such file or folder")
    else:
        record, head = _read_head(path)
        name = _detect_columns(head, path) if record is None else _detect_record(record)
        if name is None and head and not head[0].startswith(("{", "[")) and (advice := lines.describe_markup(head[0])):
            raise UsageError(f"{path}: format not recognised: {advice}")
    if name is None:
        raise UsageError(f"{path}: format not recognised; name it with --from (moeir variants formats lists them)")
    return name


def detect_examples(path: Path) -> str | None:
    """The format of what should be training examples, so that more is clear than of any file; None if it is none of theirs.

    Objects in no known format are taken for moeir's, whose reader says what they lack.
    """
    record, head = _read_head(path)
    if record is not None or not head:
        return _match_keys(record or {}) or _detect_record(record or {}) or "examples"
    if head[0].lstrip().startswith("["):
        return "id-triples"
    name, rows = _detect_columns(head, path), [line.split("\t") for line in head]
    has_grades = {row[-1] for row in rows} <= set("0123456789")
    return "id-triples" if name in (None, "beir-qrels") and all(len(row) == 3 for row in rows) and not has_grades else name


def _read_head(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The first object of a file of objects, or the first lines of any other."""
    head = list[str]()
    if not remote_rows.is_columnar(path):
        with lines.open_lines(path) as numbered:
            head = list(islice((line for _, line in numbered if line.strip()), HEAD_LINES))
        if not head or not (head[0].lstrip().startswith("{") or dpr.is_array(head[0])):
            return None, head
    return next(texts.read_objects(path), ("", {}))[1], head


def _detect_record(record: dict[str, Any]) -> str | None:
    match = _match_keys(record)
    is_text = any(name in record for name in texts.ID_FIELDS) and any(name in record for name in texts.TEXT_FIELDS)
    return "texts" if is_text and match in (None, "pairs") else match


def _match_keys(names: Iterable[str]) -> str | None:
    present = set(names)
    return next((name for name, alternatives in _FORMAT_KEYS.items() if any(keys <= present for keys in alternatives)), None)


def _detect_columns(head: list[str], path: Path) -> str | None:
    """The format that the lines have."""
    if not head:
        return None
    head = [line for line in head if not line.startswith("#")] or head  # comments of judgements
    delimiter = "," if lines.strip_compression_suffix(path).suffix.lower() == ".csv" else "\t"
    if (match := _match_keys(head[0].replace('"', "").split(delimiter))) in _TABLE_KEYS:
        return match
    rows = [line.split("\t") if "\t" in line else line.split() for line in head]
    width = len(rows[0])
    if width in (3, 4) and rows[0][0] in ROW_FIELDS["query"] and rows[0][-1] in ROW_FIELDS["grade"]:
        return "beir-qrels" if width == 3 else "qrels"
    with suppress(DataError):
        if texts.parse_header(head[0], ""):
            return "tsv"
    is_table, has_tabs = all(len(row) == width for row in rows), "\t" in head[0]
    if is_table and width in _TREC_COLUMNS:
        name, number = _TREC_COLUMNS[width]
        return name if all(row[1] in ("0", "Q0", "q0") and _is_number(row[number]) for row in rows) else None
    if is_table and width == 3 and has_tabs and all(_is_number(row[-1]) for row in rows):
        return "beir-qrels"
    return "tsv" if is_table and width == 2 and has_tabs and any(" " in row[-1] for row in rows) else None


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False
