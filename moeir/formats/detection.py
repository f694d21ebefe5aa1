"""Detect the format of a file or folder where its first lines are unambiguous."""

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests
from moeir.errors import UsageError
from moeir.records import dpr, lines, texts

_FOLDER_FILES = {
    "checkpoint": ("moeir.json",),
    "colbert": ("triples.jsonl", "collection.tsv"),
    "beir": ("corpus.jsonl", "queries.jsonl"),
    "msmarco": ("collection.tsv", "queries.tsv"),
    "anserini": ("corpus", "topics.tsv"),
}
_FORMAT_KEYS: dict[str, tuple[set[str], ...]] = {  # a line of the format has all keys of one of these sets
    "tevatron": ({"query_id", "query", "positive_passages"},),
    "tevatron-ids": ({"query_id", "positive_document_ids"},),
    "examples": ({"query_id", "positive_ids"},),
    "flagembedding": ({"query", "pos", "neg"},),
    "tuples": tuple({anchor, "positive", "negative_1"} for anchor in ("anchor", "query")),
    "triplets": tuple({anchor, "positive", "negative"} for anchor in ("anchor", "query")),
    "labelled": ({"query", "passage", "label"}, {"sentence1", "sentence2", "label"}),
    "pairs": tuple({anchor, "positive"} for anchor in ("anchor", "query")),
    "anserini-vectors": ({"id", "vector"}, {"docid", "vector"}),
    "anserini-texts": ({"id", "contents"},),
    "tevatron-texts": ({"docid", "text"}, {"query_id", "query"}, {"docid", "document_text"}),
}
HEAD_LINES = 3


def detect_format(path: Path) -> str:
    """The name of the format; UsageError where it is ambiguous."""
    if path.is_dir():
        name = _detect_folder(path)
    elif not path.exists() and str(path) != "-":
        raise UsageError(f"{path}: no such file or folder")
    else:
        with lines.open_lines(path) as numbered:
            head = list(islice((line for _, line in numbered if line.strip()), HEAD_LINES))
        name = detect_from_lines(head, path)
    if name is None:
        raise UsageError(f"{path}: format not recognised; name it with --from (moeir variants formats lists them)")
    return name


def _detect_folder(path: Path) -> str | None:
    if manifests.manifest_path(path).is_file() and manifests.read_manifest(path)["kind"] == "encodings":
        return "encodings"
    names = {lines.strip_compression_suffix(file).name for file in path.iterdir()}
    return next((name for name, files in _FOLDER_FILES.items() if set(files) <= names), None)


def detect_from_lines(head: list[str], path: Path) -> str | None:
    """The format by the first lines of a file; None if ambiguous.

    >>> heads = "q1 Q0 owl 1 2.5 bm25", "q1\\t0\\towl\\t1", "1\\tAn owl."
    >>> [detect_from_lines([head], Path("x.tsv")) for head in heads]
    ['run', 'qrels', 'tsv']
    """
    if not head:
        return None
    if dpr.is_array(head[0]):
        return "dpr"
    with suppress(ValueError, RecursionError):
        return _detect_json(json.loads(head[0]))
    if head[0].startswith("{"):
        return "json-run" if lines.strip_compression_suffix(path).suffix == ".json" else None
    return _detect_columns(head, path)


def _detect_json(record: Any) -> str | None:
    if not isinstance(record, dict):
        return None
    if record and all(isinstance(hits, dict) for hits in record.values()):
        return "json-run"
    if (match := _match_keys(record.keys())) is not None:
        return match
    is_text = any(name in record for name in texts.ID_FIELDS) and any(name in record for name in texts.TEXT_FIELDS)
    return "texts" if is_text else None


def _match_keys(names: Iterable[str]) -> str | None:
    present = set(names)
    return next((name for name, alternatives in _FORMAT_KEYS.items() if any(keys <= present for keys in alternatives)), None)


def _detect_columns(head: list[str], path: Path) -> str | None:
    rows = [line.split("\t") for line in head]
    words = [line.split() for line in head]
    delimiter = "," if lines.strip_compression_suffix(path).suffix.lower() == ".csv" else "\t"
    if (match := _match_keys(head[0].split(delimiter))) in ("tuples", "triplets", "labelled", "pairs"):
        return match
    if words[0][:1] and words[0][0] in ("query-id", "query_id") and len(words[0]) == 3:
        return "beir-qrels"
    if all(len(columns) == 6 and columns[1] in ("Q0", "q0", "0") and _is_number(columns[4]) for columns in words):
        return "run"
    if all(len(columns) == 4 and columns[1] in ("0", "Q0") and _is_number(columns[3]) for columns in words):
        return "qrels"
    return _detect_tabs(rows)


def _detect_tabs(rows: list[list[str]]) -> str | None:
    width = len(rows[0])
    if any(len(row) != width for row in rows):
        return None
    last = [row[-1] for row in rows]
    if width == 3 and all(_is_number(word) for word in last):
        third_column = [row[2] for row in rows if row[0] == rows[0][0]]
        if third_column == [str(rank) for rank in range(1, len(third_column) + 1)]:
            return "msmarco-run" if len(rows) > 1 else None
        return "tevatron-run" if any("." in word or "e" in word for word in last) else None
    if width == 4 and rows[0][2] == "1" and all(_is_number(word) for word in last):
        return "colbert-run"
    if width == 4 and all(" " in row[2] and " " in row[3] for row in rows):
        return "top1000"
    return "tsv" if width == 2 and any(" " in row[1] for row in rows) else None


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False
