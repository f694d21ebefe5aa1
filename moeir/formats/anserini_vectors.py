"""Anserini's and Pyserini's JSON vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format
from moeir.formats.encodings import Vector
from moeir.formats.row_files import read_json_lines, write_json_lines
from moeir.records import runs, texts
from moeir.records.trec_columns import parse_float32


class AnseriniVectors(Format):
    """JSON lines {"id", "contents", "vector"}, the vector as term weights or as numbers: Anserini's and Pyserini's."""

    kind: ClassVar[str] = "vectors"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Vector]:
        for where, record in read_json_lines(path):
            if not isinstance(record, dict) or "vector" not in record:
                raise DataError(f"{where}: an object with id, contents and vector was expected", code="not-an-object")
            conversion.drop_unread_fields(where, record, ("id", "docid", "contents", "content", "vector"))
            yield _parse_record(record, where)

    def write(self, items: Iterator[Vector], path: Path, conversion: Conversion) -> int:
        return write_json_lines(map(_to_record, items), path)


def _parse_record(record: dict[str, Any], where: str) -> Vector:
    name = texts.parse_id(record.get("id", record.get("docid")), where)
    contents, vector = record.get("contents", record.get("content")) or "", record["vector"]
    numbers = list(vector.values()) if isinstance(vector, dict) else vector
    if not isinstance(contents, str):
        raise DataError(f"{where}: contents is not a string", code="text-not-a-string")
    if not isinstance(numbers, list) or not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise DataError(f"{where}: vector is neither an object of terms with weights nor a list of numbers", code="not-a-list")
    for number in numbers:
        parse_float32(repr(number), where)
    return Vector(name, terms=vector, contents=contents) if isinstance(vector, dict) else Vector(name, numbers=numbers, contents=contents)


def _to_record(vector: Vector) -> dict[str, Any]:
    if vector.terms is not None:
        return {
            "id": vector.id,
            "contents": vector.contents,
            "vector": {name: _shortest_float32(weight) for name, weight in vector.terms.items()},
        }
    return {"id": vector.id, "contents": vector.contents, "vector": [_shortest_float32(number) for number in vector.numbers or ()]}


def _shortest_float32(number: float) -> float:
    """The shortest decimal number that float32 reads back unchanged."""
    return float(runs.format_score(number))
