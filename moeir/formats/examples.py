"""moeir's training examples; parts shared by formats of examples: rows of files, ids for texts without one, and rows grouped by query."""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, title_and_text
from moeir.records import examples, remote_rows, texts
from moeir.records.examples import Example
from moeir.records.texts import Text

Scores: TypeAlias = Mapping[str, float]  # a teacher's, by document
NO_SCORES: Scores = MappingProxyType({})
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


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location of each row (file:line), and its values by column: of JSON lines, parquet, or an `hf:` source."""
    if remote_rows.is_columnar(path):
        yield from remote_rows.read_columnar(path)
    else:
        for where, record in texts.read_json_lines(path):
            if not isinstance(record, dict):
                raise DataError(f"{where}: a JSON object was expected")
            yield where, record


def own_fields(example: Example) -> dict[str, Any]:
    """The provenance of an example's negatives and a teacher's scores, under moeir's names."""
    record = examples.example_to_record(replace(example, query=None))
    return {name: record[name] for name in OWN_FIELDS if name in record}


def collect_all_fields(where: str, record: Mapping[str, Any], example: Example, known: Iterable[str], conversion: Conversion) -> Example:
    """The example with the fields, and its passages with the fields, that are not read."""
    by_id: dict[str, dict[str, Any]] = {}
    for side in ("positive_passages", "negative_passages") if example.passages else ():
        for passage in record.get(side) or ():
            if extra := conversion.collect_fields(where, passage, (*texts.KNOWN_FIELDS, *["score"] * bool(example.positive_scores))):
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


class GroupByQuery:
    """Rows of (query, positive, negatives), as texts or ids, grouped into one example per query, in order of first appearance.

    An example has one list of negatives, so every positive of a query must have the same ones; else the difference is lost.
    """

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._queries: dict[str, dict[str, dict[str, None]]] = {}
        self._texts: dict[tuple[bool, str], Text] = {}
        self._where: dict[str, str] = {}
        self._scores: dict[str, dict[str, float]] = {}

    def add(self, where: str, query: Text | str, positive: Text | str, negatives: Iterable[Text | str], scores: Scores = NO_SCORES) -> None:
        """Add one row; `scores` are a teacher's, by id."""
        query_id = self._add_text(query, where, is_query=True)
        positive_id, *negative_ids = (self._add_text(text, where) for text in (positive, *negatives))
        self._where.setdefault(query_id, where)
        self._queries.setdefault(query_id, {}).setdefault(positive_id, {}).update(dict.fromkeys(negative_ids))
        earlier = self._scores.setdefault(query_id, {}) if scores else {}
        if [name for name, score in scores.items() if earlier.setdefault(name, score) != score]:
            self._conversion.drop_or_refuse(where, "another score of a passage than on an earlier line")

    def _add_text(self, text: Text | str, where: str, *, is_query: bool = False) -> str:
        """The id of a text, which is stored; DataError if it has another text on another line."""
        if isinstance(text, str):
            return sys.intern(text)
        if self._texts.setdefault((is_query, text.id), text).content != text.content:
            raise DataError(f"{where}: {text.id!r} has another text on an earlier line; different texts need other ids")
        return text.id

    def examples(self) -> Iterator[Example]:
        """One example per query."""
        for query, groups in self._queries.items():
            where, scores = self._where[query], self._scores.get(query, {})
            negatives = list(dict.fromkeys(negative for group in groups.values() for negative in group))
            if any(len(group) != len(negatives) for group in groups.values()):
                self._conversion.drop_or_refuse(where, "which negatives belong to which positive")
            if any(negative in groups for negative in negatives):
                self._conversion.drop_or_refuse(where, "a positive that is a negative elsewhere")
                negatives = [negative for negative in negatives if negative not in groups]
            if not (has_scores := all(document in scores for document in (*groups, *negatives))) and scores:
                self._conversion.drop_or_refuse(where, "the scores of a query of which only some passages have one")
            sides = [tuple(scores[document] for document in side) if has_scores else () for side in (groups, negatives)]
            passages = tuple(self._texts[False, document] for document in (*groups, *negatives) if (False, document) in self._texts)
            yield Example(query, tuple(groups), tuple(negatives), (), self._texts.get((True, query)), passages, sides[0], sides[1])
