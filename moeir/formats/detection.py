"""Detect the format of a file or folder where its first lines are unambiguous."""

import csv
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests
from moeir.errors import DataError, UsageError
from moeir.formats import pairs
from moeir.formats.examples import read_objects
from moeir.records import dpr, lines, remote_rows, texts
from moeir.records.qrels import ROW_FIELDS

_FOLDER_FILES = {
    "checkpoint": ("moeir.json",),
    "colbert": ("triples.jsonl", "collection.tsv", "queries.tsv"),
    "beir": ("corpus.jsonl", "queries.jsonl"),
    "msmarco": ("collection.tsv", "queries.tsv"),
    "anserini": ("corpus", "topics.tsv"),
}


def _cross(*columns: tuple[str, ...]) -> tuple[set[str], ...]:
    return tuple(map(set, product(*columns)))


_FORMAT_KEYS: dict[str, tuple[set[str], ...]] = {  # a line of the format has all keys of one of these sets
    "tevatron": ({"query_id", "query", "positive_passages"},),
    "tevatron-ids": ({"query_id", "positive_document_ids"},),
    "examples": ({"query_id", "positive_ids"},),
    "flagembedding": ({"query", "pos", "neg"}, {"query", "pos"}),
    "msmarco-hard-negatives": ({"qid", "pos", "neg"},),
    "tuples": _cross(pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS, ("negative_1",)),
    "triplets": _cross(pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS, pairs.NEGATIVE_COLUMNS),
    "labelled": _cross(pairs.ANCHOR_COLUMNS, pairs.LABELLED_COLUMNS, pairs.LABEL_COLUMNS),
    "pairs": _cross(pairs.ANCHOR_COLUMNS, pairs.POSITIVE_COLUMNS),
    "anserini-vectors": ({"id", "vector"}, {"docid", "vector"}),
    "anserini-texts": ({"id", "contents"},),
    "tevatron-texts": ({"docid", "text"}, {"query_id", "query"}, {"docid", "document_text"}),
}
_ITERATIONS = ("0", "Q0", "q0")
HEAD_LINES = 10
_SURE_RANKS = 5  # a list numbered so far in its order is no list of grades
GRADES = {str(grade) for grade in range(10)}


def detect_format(path: Path) -> str:
    """The name of the format; UsageError where it is not recognised, or where several fit."""
    if path.is_dir():
        names = _detect_folder(path)
    elif not path.exists() and str(path) != "-":
        raise UsageError(f"{path}: no such file or folder")
    elif remote_rows.is_columnar(path):
        names = _detect_json(next(read_objects(path), ("", {}))[1], "")
    else:
        head = _read_head(path)
        names = detect_from_lines(head, path)
        if not names and head and not head[0].startswith(("{", "[")) and (advice := lines.describe_markup(head[0])):
            raise UsageError(f"{path}: format not recognised: {advice}")
    if len(names) != 1:
        problem = f"may be {' or '.join(names)}; say which" if names else "format not recognised; name it"
        raise UsageError(f"{path}: {problem} with --from (moeir variants formats lists them)")
    return names[0]


def _read_head(path: Path) -> list[str]:
    with lines.open_lines(path) as numbered:
        return list(islice((line for _, line in numbered if line.strip()), HEAD_LINES))


def detect_examples(path: Path) -> str | None:
    """The format of what should be training examples, so that more is clear than of any file; None if ambiguous.

    JSON and rows of columns in no known format are taken for moeir's, whose reader says what they lack.
    """
    if remote_rows.is_columnar(path):
        return _match_keys(next(read_objects(path), ("", {}))[1]) or "examples"
    head = _read_head(path)
    with suppress(ValueError, RecursionError):
        record = json.loads(head[0] if head else "{}")
        if isinstance(record, list) and not dpr.is_array(head[0]):
            return "id-triples"
        if isinstance(record, dict):
            return _match_keys(record) or _detect_one(head, path) or "examples"
    if (name := _detect_one(head, path)) is not None or head[0].lstrip().startswith(("{", "[")):
        return name or "examples"
    return "id-triples" if _are_id_triples([line.split("\t") for line in head]) else None


def _detect_one(head: list[str], path: Path) -> str | None:
    names = detect_from_lines(head, path)
    return names[0] if len(names) == 1 else None


def _are_id_triples(rows: list[list[str]]) -> bool:
    """Whether rows are three ids each that can be neither judgements nor a run: grades, or the documents of one query with numbers."""
    if any(len(row) != 3 or any(len(word.split()) != 1 for word in row) for row in rows):
        return False
    queries, positives, last = map(set, zip(*rows, strict=True))
    return not last <= GRADES and not (len(queries) == 1 and len(positives) == len(rows) > 1 and all(map(_is_number, last)))


def _detect_folder(path: Path) -> list[str]:
    if manifests.manifest_path(path).is_file() and manifests.read_manifest(path)["kind"] == "encodings":
        return ["encodings"]
    names = {lines.strip_compression_suffix(file).name for file in path.iterdir()}
    fitting = {name: set(files) for name, files in _FOLDER_FILES.items() if set(files) <= names}
    return [name for name, files in fitting.items() if not any(files < others for others in fitting.values())]


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
            return ["texts"] if "positive_ctxs" not in entry and _detect_json(entry, "") == ["texts"] else ["dpr"]
        return ["dpr"]
    with suppress(ValueError, RecursionError):
        return _detect_json(json.loads(head[0]), head[0])
    if head[0].startswith("{"):
        return _name_json_run("".join(head)) if lines.strip_compression_suffix(path).suffix == ".json" else []
    return _detect_columns(head, path)


def _name_json_run(text: str) -> list[str]:
    return ["json-run"] if re.search(r":\s*-?\d+[.eE]", text) else ["json-run", "judgements"]


def _detect_json(record: Any, line: str) -> list[str]:
    if not isinstance(record, dict):
        return []
    if record and all(isinstance(hits, dict) for hits in record.values()):
        return _name_json_run(line)
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
    rows = [line.split("\t") for line in head]
    words = [row if len(row) > 1 else line.split() for row, line in zip(rows, head, strict=True)]
    delimiter = "," if lines.strip_compression_suffix(path).suffix.lower() == ".csv" else "\t"
    with suppress(csv.Error):  # a carriage return within the line
        if (match := _match_keys(next(csv.reader(head[:1], delimiter=delimiter)))) in ("tuples", "triplets", "labelled", "pairs"):
            return [match]
    if len(words[0]) in (3, 4) and words[0][0] in ROW_FIELDS["query"] and words[0][-1] in ROW_FIELDS["grade"]:
        return ["beir-qrels" if len(words[0]) == 3 else "qrels"]
    with suppress(DataError):
        if texts.parse_header(head[0], ""):
            return ["tsv"]
    if all(len(columns) == 6 and columns[1] in _ITERATIONS and _is_number(columns[4]) for columns in words):
        return ["run"]
    is_qrels = all(len(columns) == 4 and columns[1] in _ITERATIONS and _is_number(columns[3]) for columns in words)
    return ["qrels"] * is_qrels + (_detect_tabs(rows) if len({len(row) for row in rows}) == 1 else [])


def _detect_tabs(rows: list[list[str]]) -> list[str]:
    """The formats that rows of one width may have, other than TREC's."""
    width, last = len(rows[0]), [row[-1] for row in rows]
    if width in (3, 4) and not all(map(_is_number, last)):
        return ["top1000"] * (width == 4 and all(" " in row[2] and " " in row[3] for row in rows[:3]))
    if width == 3:
        first_list = [row[2] for row in rows if row[0] == rows[0][0]]
        if len(first_list) >= _SURE_RANKS and first_list == [str(rank) for rank in range(1, len(first_list) + 1)]:
            return ["msmarco-run"]
        are_whole = all(float(word) % 1 == 0 for word in last)  # not so for nan
        return ["tevatron-run", *["beir-qrels"] * are_whole, *["msmarco-run"] * all(map(str.isdecimal, last))]
    if width == 4:
        return ["colbert-run"] * (rows[0][2] == "1")
    return ["tsv"] * (width == 2 and any(" " in row[1] for row in rows))


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False
