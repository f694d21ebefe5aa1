"""Detect the format of a file or folder where its first lines are unambiguous."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests
from moeir.errors import DataError, UsageError
from moeir.records import dpr, lines, texts

_FOLDER_FILES = {
    "checkpoint": ("moeir.json",),
    "colbert": ("triples.jsonl", "collection.tsv", "queries.tsv"),
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
_ITERATIONS = ("0", "Q0", "q0")
HEAD_LINES = 10
_SURE_RANKS = 5  # a list numbered so far in its order is no list of grades


def detect_format(path: Path) -> str:
    """The name of the format; UsageError where it is not recognised, or where several fit."""
    if path.is_dir():
        names = _detect_folder(path)
    elif not path.exists() and str(path) != "-":
        raise UsageError(f"{path}: no such file or folder")
    else:
        with lines.open_lines(path) as numbered:
            head = list(islice((line for _, line in numbered if line.strip()), HEAD_LINES))
        names = detect_from_lines(head, path)
    if len(names) != 1:
        problem = f"may be {' or '.join(names)}; say which" if names else "format not recognised; name it"
        raise UsageError(f"{path}: {problem} with --from (moeir variants formats lists them)")
    return names[0]


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
    if (match := _match_keys(record.keys())) is not None:
        return [match]
    is_text = any(name in record for name in texts.ID_FIELDS) and any(name in record for name in texts.TEXT_FIELDS)
    return ["texts"] * is_text


def _match_keys(names: Iterable[str]) -> str | None:
    present = set(names)
    return next((name for name, alternatives in _FORMAT_KEYS.items() if any(keys <= present for keys in alternatives)), None)


def _detect_columns(head: list[str], path: Path) -> list[str]:
    """The formats that the lines may have."""
    rows = [line.split("\t") for line in head]
    words = [row if len(row) > 1 else line.split() for row, line in zip(rows, head, strict=True)]
    delimiter = "," if lines.strip_compression_suffix(path).suffix.lower() == ".csv" else "\t"
    if (match := _match_keys(head[0].split(delimiter))) in ("tuples", "triplets", "labelled", "pairs"):
        return [match]
    if words[0][:1] and words[0][0] in ("query-id", "query_id") and len(words[0]) == 3:
        return ["beir-qrels"]
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
