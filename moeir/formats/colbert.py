"""ColBERT's training files: triples of numbers, and the collection and queries that they number."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TextIO

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.formats.base import Conversion, Format, one_line
from moeir.formats.reading import Grouped, json_lines, rows
from moeir.records import lines, runs, texts
from moeir.records.examples import Example
from moeir.records.texts import Text

TRIPLES = ("triples.jsonl", "triples.tsv")
NAMES = {"collection.tsv": "document-ids.txt", "queries.tsv": "query-ids.txt"}


class Colbert(Format):
    """A folder of triples.jsonl [query, positive, negative, …], queries.tsv and collection.tsv, numbered from 0: ColBERT's.

    Ids that are other than these numbers stand in document-ids.txt and query-ids.txt, a line for each number.
    """

    kind: ClassVar[str] = "examples"
    folder: ClassVar[bool] = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        triples = next((path / name for name in TRIPLES if (path / name).is_file()), None)
        if triples is None:
            raise ArtifactError(f"{path}: no triples.jsonl; expected a folder of triples.jsonl, queries.tsv and collection.tsv")
        passages, queries = (_numbered(path / name) for name in NAMES)
        grouped, taught = Grouped(conversion), dict[str, dict[str, float]]()
        for where, row in _triples(triples):
            query, *found = (_entry(entry, where) for entry in row)
            documents = [_looked_up(passages, number, where, "collection.tsv") for number, _ in found]
            asked = _looked_up(queries, query[0], where, "queries.tsv")
            grouped.add(where, asked, documents[0], documents[1:])
            scores = {text.id: score for text, (_, score) in zip(documents, found, strict=True) if score is not None}
            taught.setdefault(asked.id, {}).update(scores)
        for example in grouped.examples():
            known = taught[example.query_id]
            sides = [tuple(known[one] for one in ids if one in known) for ids in (example.positive_ids, example.negative_ids)]
            whole = len(sides[0]) + len(sides[1]) == len(example.positive_ids) + len(example.negative_ids)
            if known and not whole:
                conversion.lose(f"query {example.query_id!r}", "scores that only some passages have")
            yield replace(example, positive_scores=sides[0], negative_scores=sides[1]) if whole else example

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        with ExitStack() as stack:
            passages, queries = (_Numbers(stack.enter_context(lines.writer(path / name)), conversion) for name in NAMES)
            for text in (conversion.corpus or {}).values():
                passages.number(text)
            output = stack.enter_context(lines.writer(path / TRIPLES[0]))
            count = 0
            for example in items:
                count += 1
                output.writelines(json.dumps(row) + "\n" for row in _rows(example, conversion, passages, queries))
        for numbers, name in ((passages, NAMES["collection.tsv"]), (queries, NAMES["queries.tsv"])):
            if any(one != str(number) for one, number in numbers.known.items()):
                with lines.writer(path / name) as output:
                    output.writelines(f"{one}\n" for one in numbers.known)
        return count


class _Numbers:
    """Texts numbered from 0 as they come, and written as they are."""

    def __init__(self, output: TextIO, conversion: Conversion) -> None:
        self.known: dict[str, int] = {}
        self._output, self._conversion = output, conversion

    def number(self, text: Text) -> int:
        if text.id not in self.known:
            self.known[text.id] = len(self.known)
            where = f"text {text.id!r}"
            if text.url or text.answers:
                self._conversion.lose(where, "field 'url'" if text.url else "field 'answers'")
            words = [one_line(part, where, self._conversion) for part in (text.text, *([text.title] if text.title else []))]
            self._output.write("\t".join([str(self.known[text.id]), *words]) + "\n")
        return self.known[text.id]


def _rows(example: Example, conversion: Conversion, passages: _Numbers, queries: _Numbers) -> Iterator[list[Any]]:
    """A row for each positive, with all negatives; a document is a pair with its score where a teacher gave one."""
    where = f"query {example.query_id!r}"
    example = conversion.with_texts(example, where)
    assert example.query is not None
    if example.provenance:
        conversion.lose(where, "field 'negative_provenance'")
    texts_of, taught = {passage.id: passage for passage in example.passages}, example.taught
    query = queries.number(example.query)

    def entry(document: str) -> Any:
        number = passages.number(texts_of[document])
        return [number, float(runs.score_text(taught[document]))] if taught else number

    for positive in example.positive_ids:
        yield [query, entry(positive), *(entry(negative) for negative in example.negative_ids)]


def _triples(path: Path) -> Iterator[tuple[str, list[Any]]]:
    if path.suffix == ".tsv":
        yield from ((where, list(row)) for where, row in rows(path, 3, "query, positive, negative"))
        return
    for where, row in json_lines(path):
        if not isinstance(row, list) or len(row) < 2:
            raise DataError(f"{where}: a list of a query, a positive and negatives was expected")
        yield where, row


def _entry(entry: Any, where: str) -> tuple[str, float | None]:
    """The number of a text, and the score beside it."""
    number, score = (entry[0], entry[1]) if isinstance(entry, list) and len(entry) == 2 else (entry, None)
    if score is not None:
        score = runs.score_of(str(score), where)
    return texts.identifier(number, where), score


def _numbered(path: Path) -> dict[str, Text]:
    """The texts of a file by the number that triples call them, with the ids that they had before."""
    names: list[str] | None = None
    if (given := path.with_name(NAMES[path.name])).is_file():
        with lines.opened(given) as numbered:
            names = [texts.identifier(line, f"{given}:{number}") for number, line in numbered if line]
    found: dict[str, Text] = {}
    with lines.opened(path) as numbered:
        for number, line in numbered:
            if not line:
                continue
            one, *parts = line.split("\t")
            if len(parts) not in (1, 2):
                raise DataError(
                    f"{path}:{number}: a number, a text and maybe a title between tabs expected, {len(parts) + 1} columns found"
                )
            if names is not None and len(names) <= len(found):
                raise UsageError(f"{given}: has {len(names)} ids, and {path.name} has more texts")
            name = texts.identifier(one, f"{path}:{number}") if names is None else names[len(found)]
            found[one] = Text(name, parts[0], parts[1] if len(parts) == 2 else "")
    return found


def _looked_up(known: dict[str, Text], number: str, where: str, name: str) -> Text:
    if number not in known:
        raise DataError(f"{where}: {number} is not in {name}")
    return known[number]
