"""ColBERT's training files: triples of text numbers, with the numbered collection and queries."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from moeir import data_sources
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.formats.base import ANSWERS, PROVENANCE, URL, Conversion, Format, collapse_whitespace
from moeir.formats.examples import GroupByQuery
from moeir.records import lines, runs, texts
from moeir.records.examples import Example
from moeir.records.texts import Text
from moeir.records.trec_columns import parse_float32

TRIPLE_FILES = ("triples.jsonl", "triples.tsv")
ID_FILES = {"collection.tsv": "document-ids.txt", "queries.tsv": "query-ids.txt"}


class Colbert(Format):
    """A folder of triples.jsonl [query, positive, negative, …], queries.tsv and collection.tsv, numbered from 0: ColBERT's.

    Where ids differ from these numbers, document-ids.txt and query-ids.txt hold them, one line per number.
    """

    kind = "examples"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        triples = data_sources.find_file(path, *TRIPLE_FILES)
        if triples is None:
            raise ArtifactError(f"{path}: no triples.jsonl; expected a folder of triples.jsonl, queries.tsv and collection.tsv")
        passages, queries = (_read_numbered_texts(path / name) for name in ID_FILES)
        grouped = GroupByQuery(conversion)
        for where, row in read_triples(triples):
            query, *entries = (parse_entry(entry, where) for entry in row)
            documents = [_look_up_number(passages, number, where, "collection.tsv") for number, _ in entries]
            query_text = _look_up_number(queries, query[0], where, "queries.tsv")
            scores = {text.id: score for text, (_, score) in zip(documents, entries, strict=True) if score is not None}
            grouped.add(where, query_text, documents[0], documents[1:], scores)
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        with ExitStack() as stack:
            passages, queries = (_NumberedTexts(stack.enter_context(lines.open_writer(path / name)), conversion) for name in ID_FILES)
            for text in (conversion.corpus or {}).values():
                passages.add(text)
            output = stack.enter_context(lines.open_writer(path / TRIPLE_FILES[0]))
            count = 0
            for example in items:
                count += 1
                output.writelines(json.dumps(row) + "\n" for row in _to_rows(example, conversion, passages, queries))
        for numbered, name in ((passages, ID_FILES["collection.tsv"]), (queries, ID_FILES["queries.tsv"])):
            if any(text_id != str(number) for text_id, number in numbered.numbers.items()):
                lines.write_lines(numbered.numbers, path / name)
        return count


class _NumberedTexts:
    """Texts numbered from 0 in order of appearance, each written when it is first seen."""

    def __init__(self, output: TextIO, conversion: Conversion) -> None:
        self.numbers: dict[str, int] = {}
        self._output, self._conversion = output, conversion

    def add(self, text: Text) -> int:
        if text.id not in self.numbers:
            self.numbers[text.id] = len(self.numbers)
            where = f"text {text.id!r}"
            self._conversion.drop_nonempty(where, {URL: text.url} if text.url else {ANSWERS: text.answers})
            words = [collapse_whitespace(part, where, self._conversion) for part in (text.text, *([text.title] if text.title else []))]
            self._output.write("\t".join([str(self.numbers[text.id]), *words]) + "\n")
        return self.numbers[text.id]


def _to_rows(example: Example, conversion: Conversion, passages: _NumberedTexts, queries: _NumberedTexts) -> Iterator[list[Any]]:
    """One row per positive, with all negatives; a document with a teacher score is a pair (number, score)."""
    query_text, passages_by_id = conversion.look_up_texts(example, [PROVENANCE])
    teacher_scores, query = example.teacher_scores, queries.add(query_text)

    def entry(document: str) -> Any:
        number = passages.add(passages_by_id[document])
        return [number, float(runs.format_score(teacher_scores[document]))] if teacher_scores else number

    for positive in example.positive_ids:
        yield [query, entry(positive), *(entry(negative) for negative in example.negative_ids)]


def read_triples(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """The location and the entries of each row of tab-separated triples, or of JSON lines of a query, a positive and negatives."""
    rows: Iterator[tuple[str, Any]] = texts.read_json_lines(path)
    if lines.strip_compression_suffix(path).suffix not in (".jsonl", ".json"):
        rows = _read_tab_rows(path)
    for where, row in rows:
        if not isinstance(row, list) or len(row) < 2:
            raise DataError(f"{where}: expected a query, a positive and negatives, as a list or between tabs")
        yield where, row


def _read_tab_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    with lines.open_lines(path) as numbered:
        yield from ((f"{path}:{number}", line.split("\t")) for number, line in numbered if line.strip())


def parse_entry(entry: Any, where: str) -> tuple[str, float | None]:
    """The id of an entry, and its score if it is a pair of both."""
    number, score = (entry[0], entry[1]) if isinstance(entry, list) and len(entry) == 2 else (entry, None)
    if score is not None:
        score = parse_float32(str(score), where)
    return texts.parse_id(number, where), score


def _read_numbered_texts(path: Path) -> dict[str, Text]:
    """The texts of a file by their number in the triples, with their original ids."""
    names: list[str] | None = None
    if (ids_path := path.with_name(ID_FILES[path.name])).is_file():
        with lines.open_lines(ids_path) as numbered:
            names = [texts.parse_id(line, f"{ids_path}:{number}") for number, line in numbered if line]
    numbered_texts: dict[str, Text] = {}
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if not line:
                continue
            own_number, *columns = line.split("\t")
            if len(columns) not in (1, 2):
                problem = f"expected tab-separated number, text and optional title, found {len(columns) + 1} columns"
                raise DataError(f"{path}:{number}: {problem}")
            if names is not None and len(names) <= len(numbered_texts):
                raise UsageError(f"{ids_path}: has {len(names)} ids, but {path.name} has more texts")
            name = texts.parse_id(own_number, f"{path}:{number}") if names is None else names[len(numbered_texts)]
            numbered_texts[own_number] = Text(name, columns[0], columns[1] if len(columns) == 2 else "")
    return numbered_texts


def _look_up_number(numbered_texts: dict[str, Text], number: str, where: str, file_name: str) -> Text:
    if number not in numbered_texts:
        raise DataError(f"{where}: {number} is not in {file_name}")
    return numbered_texts[number]
