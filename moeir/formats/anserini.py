"""Anserini's and Pyserini's collections, texts and vectors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeir.errors import ArtifactError, DataError
from moeir.formats.base import Collection, Conversion, Format, Vector, flatten_title
from moeir.formats.qrels import TrecQrels, iter_judgements, read_qrels_splits
from moeir.formats.row_files import read_json_lines, write_json_lines
from moeir.formats.texts import Tsv, chain_texts, read_unique_texts
from moeir.records import runs, texts
from moeir.records.texts import Text
from moeir.records.trec_columns import parse_float32


class Anserini(Format):
    """A folder of corpus/*.jsonl {"id", "contents"}, topics.tsv and qrels.SPLIT.txt: what Anserini and Pyserini index and search."""

    kind = "collection"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Collection]:
        files = [file for file in sorted((path / "corpus").glob("*")) if ".json" in file.name]
        topics = sorted(path.glob("topics*.tsv*"))
        if not files or not topics:
            raise ArtifactError(f"{path}: no {'topics.tsv' if files else 'corpus/*.jsonl'}; expected corpus/*.jsonl and topics.tsv")
        yield Collection(
            chain_texts(files, conversion), chain_texts(topics, conversion), read_qrels_splits(path, "qrels.", (".txt", ".tsv"))
        )

    def write(self, items: Iterator[Collection], path: Path, conversion: Conversion) -> int:
        collection = next(items)
        (path / "corpus").mkdir()
        count = AnseriniTexts().write(iter(collection.corpus), path / "corpus" / "documents.jsonl", conversion)
        Tsv().write(iter(collection.queries), path / "topics.tsv", conversion)
        for split, grades in collection.qrels.items():
            TrecQrels().write(iter_judgements(grades), path / f"qrels.{split}.txt", conversion)
        return count


class AnseriniTexts(Format):
    """JSON lines {"id", "contents"}: Anserini's and Pyserini's JsonCollection."""

    kind = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_json_lines((_text_to_record(text, conversion) for text in items), path)


class AnseriniVectors(Format):
    """JSON lines {"id", "contents", "vector"}, the vector as term weights or as numbers: Anserini's and Pyserini's."""

    kind = "vectors"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Vector]:
        for where, record in read_json_lines(path):
            if not isinstance(record, dict) or "vector" not in record:
                raise DataError(f"{where}: an object with id, contents and vector was expected", code="not-an-object")
            conversion.drop_unread_fields(where, record, ("id", "docid", "contents", "content", "vector"))
            yield _parse_vector(record, where)

    def write(self, items: Iterator[Vector], path: Path, conversion: Conversion) -> int:
        return write_json_lines(map(_vector_to_record, items), path)


def _text_to_record(text: Text, conversion: Conversion) -> dict[str, str]:
    where = f"text {text.id!r}"
    if text.answers:
        conversion.drop_or_refuse(where, "field 'answers'")
    return {"id": text.id, "contents": flatten_title(text, where, conversion)}


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


def _vector_to_record(vector: Vector) -> dict[str, Any]:
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
