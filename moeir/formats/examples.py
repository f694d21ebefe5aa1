"""moeir's training examples; parts shared by formats of examples: ids for texts without one, and rows grouped by query."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats import base
from moeir.formats.base import Conversion, Format, title_and_text
from moeir.records import examples, texts
from moeir.records.examples import Example
from moeir.records.texts import Text

OWN_FIELDS = ("positive_scores", "negative_scores", "negative_provenance")  # of moeir's examples, which other tools do not read
IDS_AND_PASSAGES = ("query_id", *(f"{side}_{what}" for side in ("positive", "negative") for what in ("ids", "document_ids", "passages")))


class Examples(Format):
    """JSON lines {"query_id", "positive_ids", "negative_ids"}, or inline texts as Tevatron's; scores, provenance: moeir's examples."""

    kind = "examples"
    keeps_fields = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        for where, record, example in examples.read_examples_with_records(path):
            known = (*IDS_AND_PASSAGES, *OWN_FIELDS, *(("query", "answers") if "positive_passages" in record else ()))
            yield collect_all_fields(where, record, example, known, conversion)

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        return conversion.add_fields(f"query {item.query_id!r}", examples.example_to_record(item), item.extra)


class ExampleLines(base.Format):
    """One JSON object per query; `key` is the field that tells it from others, `form` names its main fields for messages."""

    kind = "examples"
    keeps_fields = True
    key: ClassVar[str]
    form: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]

    @abstractmethod
    def parse_record(self, record: dict[str, Any], where: str, conversion: Conversion) -> Example:
        """The example of a line."""

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        """The examples; DataError where a query has two."""
        query_ids: set[str] = set()
        for where, record in texts.read_json_lines(path):
            if not isinstance(record, dict) or self.key not in record:
                raise DataError(f"{where}: an object with {self.form} was expected", code="not-an-object")
            example = self.parse_record(record, where, conversion)
            example = collect_all_fields(where, record, example, (*self.fields, *OWN_FIELDS), conversion)
            if example.query_id in query_ids:
                raise DataError(f"{where}: duplicate query id {example.query_id!r}; expected one line per query", code="duplicate-id")
            query_ids.add(example.query_id)
            yield example


def own_fields(example: Example) -> dict[str, Any]:
    """The provenance of an example's negatives and a teacher's scores, under moeir's names."""
    record = examples.example_to_record(replace(example, query=None))
    return {name: record[name] for name in OWN_FIELDS if name in record}


def collect_all_fields(where: str, record: Mapping[str, Any], example: Example, known: Iterable[str], conversion: Conversion) -> Example:
    """The example with the fields, and its passages with the fields, that are not read."""
    by_id: dict[str, dict[str, Any]] = {}
    for side in ("positive_passages", "negative_passages") if example.passages else ():
        for passage in record.get(side) or ():
            if extra := conversion.collect_fields(where, passage, (*texts.KNOWN_FIELDS, "score")):
                by_id[texts.parse_text(passage, where).id] = extra
    if by_id:
        example = replace(example, passages=tuple(replace(passage, extra=by_id.get(passage.id)) for passage in example.passages))
    extra = conversion.collect_fields(where, record, known)
    return example if extra is None else replace(example, extra=extra)


def text_digest(text: str) -> str:
    """An id for a text without one: equal texts get equal ids.

    >>> text_digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_digest_id(text: Text) -> bool:
    """Whether a text's id is its digest, so that dropping it loses nothing."""
    return text.id == text_digest(title_and_text(text))


def validate_example(example: Example, where: str) -> Example:
    """Check an example as every reader does (a positive, no document twice or on both sides) and return it."""
    record = {"query_id": example.query_id, "positive_ids": list(example.positive_ids), "negative_ids": list(example.negative_ids)}
    examples.parse_example(record, where, provenance=False)
    return example


class GroupByQuery:
    """Rows of (query, positive, negatives) grouped into one example per query, in order of first appearance.

    An example has one list of negatives, so every positive of a query must have the same ones; else the difference is lost.
    """

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._queries: dict[str, dict[str, list[str]]] = {}
        self._texts: dict[str, Text] = {}
        self._where: dict[str, str] = {}

    def add(self, where: str, query: Text, positive: Text, negatives: Iterable[Text]) -> None:
        """Add one row."""
        self._where.setdefault(query.id, where)
        row_negatives = self._queries.setdefault(query.id, {}).setdefault(positive.id, [])
        for text in (query, positive, *(negatives := list(negatives))):
            self._texts[text.id] = text
        row_negatives += [negative.id for negative in negatives if negative.id not in row_negatives]

    def examples(self) -> Iterator[Example]:
        """One example per query."""
        for query, groups in self._queries.items():
            where = self._where[query]
            negatives = list(dict.fromkeys(negative for group in groups.values() for negative in group))
            if any(set(group) != set(negatives) for group in groups.values()):
                self._conversion.drop_or_refuse(where, "which negatives belong to which positive")
            if overlap := [negative for negative in negatives if negative in groups]:
                self._conversion.drop_or_refuse(where, "a positive that is a negative elsewhere")
                negatives = [negative for negative in negatives if negative not in overlap]
            passages = tuple(self._texts[document] for document in (*groups, *negatives))
            example = Example(query, tuple(groups), tuple(negatives), query=self._texts[query], passages=passages)
            yield validate_example(example, where)
