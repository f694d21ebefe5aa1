"""Anserini's and Pyserini's collections, texts and vectors."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import ArtifactError, DataError
from moeir.formats.base import Collection, Conversion, Format, Vector, flatten_title, optional_fields
from moeir.formats.qrels import TrecQrels, read_qrels_splits, write_collection
from moeir.formats.texts import TextFormat, Tsv, chain_texts
from moeir.records import runs, texts
from moeir.records.texts import Text
from moeir.records.trec_columns import parse_float32


class Anserini(Format):
    """A folder of corpus/*.jsonl {"id", "contents"}, topics.tsv and qrels.SPLIT.txt: what Anserini and Pyserini index and search."""

    kind = "collection"
    is_folder = True
    keeps_fields = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = [file for file in sorted((path / "corpus").glob("*")) if ".json" in file.name]
        topics = sorted(path.glob("topics*.tsv*"))
        if not files or not topics:
            raise ArtifactError(f"{path}: no {'topics.tsv' if files else 'corpus/*.jsonl'}; expected corpus/*.jsonl and topics.tsv")
        qrels = read_qrels_splits(path, "qrels.", (".txt", ".tsv"))
        yield Collection(chain_texts(files, conversion), chain_texts(topics, conversion), qrels)

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        writers = {"corpus/documents.jsonl": AnseriniTexts(), "topics.tsv": Tsv(), "qrels.SPLIT.txt": TrecQrels()}
        return write_collection(next(items), path, conversion, writers)


class AnseriniTexts(TextFormat, Format):
    """JSON lines {"id", "contents"}: Anserini's and Pyserini's JsonCollection."""

    keeps_fields = True

    def to_record(self, item: Text, conversion: Conversion) -> dict[str, Any]:
        where = f"text {item.id!r}"
        record = {"id": item.id, "contents": flatten_title(replace(item, url=""), where, conversion)}
        return conversion.add_fields(where, record | optional_fields(item), item.extra)


class AnseriniVectors(Format):
    """JSON lines {"id", "contents", "vector"}, the vector as term weights or as numbers: Anserini's and Pyserini's."""

    kind = "vectors"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Vector]:
        for where, record in texts.read_json_lines(path):
            if not isinstance(record, dict) or "vector" not in record:
                raise DataError(f"{where}: an object with id, contents and vector was expected", code="not-an-object")
            conversion.drop_unread_fields(where, record, ("id", "docid", "contents", "content", "vector"))
            yield _parse_vector(record, where)

    def to_record(self, item: Vector, conversion: Conversion) -> dict[str, Any]:
        vector: Any = [_shortest_float32(number) for number in item.numbers or ()]
        if item.terms is not None:
            vector = {name: _shortest_float32(weight) for name, weight in item.terms.items()}
        return {"id": item.id, "contents": item.contents, "vector": vector}


def _parse_vector(record: dict[str, Any], where: str) -> Vector:
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


def _shortest_float32(number: float) -> float:
    """The shortest decimal number that float32 reads back unchanged."""
    return float(runs.format_score(number))
