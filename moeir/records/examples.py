"""Training examples: a query, its positives and negatives, the provenance of each negative, and a teacher's scores.

An example refers to its texts by id, as our own lines and Tevatron's newer ones do; the texts then come from the corpus
and the queries. Where a line has the texts inline (Tevatron's `positive_passages`), the same `Example` has them too,
in `query` and `passages`, so that code that uses examples handles one form.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.records import lines, runs, texts
from moeir.records.texts import Text

log = logging.getLogger(__name__)
_SIDES = ("positive", "negative")
MAX_SCORE = 3e38  # of float32, in which scores are compared
POSITIVE_ELSEWHERE = "a positive that is a negative elsewhere"
LOST_PROVENANCE = "field 'negative_provenance' of a query of several rows"


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its positives and negatives; `provenance` is empty or has for each negative a list of {"run", "rank", "score"}: the runs
    that retrieved it.

    A teacher's scores are in the order of the ids, for all documents or for none.
    """

    query_id: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    provenance: tuple[Any, ...] = ()
    query: Text | None = None
    passages: tuple[Text, ...] = ()
    positive_scores: tuple[float, ...] = ()
    negative_scores: tuple[float, ...] = ()

    @property
    def teacher_scores(self) -> dict[str, float]:
        """The teacher's score of each document; empty without a teacher."""
        pairs = zip((*self.positive_ids, *self.negative_ids), (*self.positive_scores, *self.negative_scores), strict=False)
        return dict(pairs) if self.positive_scores else {}


def read_examples(path: Path | str, *, provenance: bool = True) -> Iterator[Example]:
    """Read examples from JSON lines, parquet or DPR's array, by id or with inline texts; `provenance=False` skips it, as in training."""
    return (example for _, _, example in read_examples_with_records(path, provenance=provenance))


def read_examples_with_records(path: Path | str, *, provenance: bool = True) -> Iterator[tuple[str, dict[str, Any], Example]]:
    """Location, record and example of each record of a file."""
    is_empty = True
    for item in _parse_unique(texts.read_objects(path, dpr_examples=True), provenance):
        is_empty = False
        yield item
    if is_empty:
        raise DataError(f"{lines.source_name(path)}: holds no example")


def _parse_unique(records: Iterable[tuple[str, Any]], provenance: bool) -> Iterator[tuple[str, dict[str, Any], Example]]:
    query_ids: set[str] = set()
    for where, record in records:
        example = parse_example(record, where, provenance=provenance)
        if example.query_id in query_ids:
            raise DataError(f"{where}: duplicate query id {example.query_id!r}; expected one line per query")
        query_ids.add(example.query_id)
        yield where, record, example


def merge_examples(files: Sequence[Iterable[Example]], paths: Sequence[Path | str]) -> list[Example]:
    """Merge files into one example per query, as by `group_by_query`.

    >>> first, second = Example("q", ("a",), ("b", "c")), Example("q", ("b",), ("d", "c"))
    >>> merge_examples([[first], [second]], ["1", "2"])[0].positive_ids, merge_examples([[first], [second]], ["1", "2"])[0].negative_ids
    (('a', 'b'), ('c', 'd'))
    """
    if len(files) == 1:
        return list(files[0])
    losses = Counter[str]()
    rows = ((str(path), example) for examples, path in zip(files, paths, strict=True) for example in examples)
    merged = list(group_by_query(rows, lambda _, what: losses.update([what])))
    if dropped := losses[POSITIVE_ELSEWHERE]:
        log.warning("%s: %s negatives are left out, which another file calls positives of their query", paths[0], f"{dropped:,}")
    for what in losses.keys() - {POSITIVE_ELSEWHERE, LOST_PROVENANCE}:
        log.warning("%s: left out for %s queries, as the files are merged: %s", paths[0], f"{losses[what]:,}", what)
    return merged


def group_by_query(rows: Iterable[tuple[str, Example]], lose: Callable[[str, str], object]) -> Iterator[Example]:
    """One example per query, in order of first appearance: the union of the positives of its rows, then of their other negatives.

    A teacher's scores are kept where every document of a query has one; a document's first score counts. `lose` is called with the
    location of a row, and with what of it is left out.
    """
    groups: dict[str, _Group] = {}
    for where, row in rows:
        if (group := groups.get(row.query_id)) is None:
            group = groups[row.query_id] = _Group(where, row)
        group.add(where, row, lose)
    for group in groups.values():
        yield group.merge(lose)


@dataclass(slots=True)
class _Group:
    """The rows of a query; `where` and `first` are those of the first one."""

    where: str
    first: Example
    rows: int = 0
    query: Text | None = None
    positives: dict[str, None] = field(default_factory=dict)
    negatives: dict[str, None] = field(default_factory=dict)
    passages: dict[str, Text] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def add(self, where: str, row: Example, lose: Callable[[str, str], object]) -> None:
        self.rows += 1
        self.query = self.query or row.query
        pairs = [(text, self.passages.setdefault(text.id, text)) for text in row.passages]
        if row.query is not None and self.query is not None:
            pairs.insert(0, (row.query, self.query))
        for text, earlier in pairs:
            if earlier.content != text.content:
                raise DataError(f"{where}: {text.id!r} has another text before; different texts need other ids")
        self.positives |= dict.fromkeys(row.positive_ids)
        self.negatives |= dict.fromkeys(row.negative_ids)
        scored = zip((*row.positive_ids, *row.negative_ids), (*row.positive_scores, *row.negative_scores), strict=False)
        if [name for name, score in scored if self.scores.setdefault(name, score) != score]:
            lose(where, "another score of a passage than on an earlier line")
        if self.rows > 1 and row.provenance:
            lose(where, LOST_PROVENANCE)

    def merge(self, lose: Callable[[str, str], object]) -> Example:
        positives, negatives = tuple(self.positives), tuple(name for name in self.negatives if name not in self.positives)
        if self.rows == 1 and (positives, negatives) == (self.first.positive_ids, self.first.negative_ids):
            return self.first
        if self.first.provenance:
            lose(self.where, LOST_PROVENANCE)
        for _ in range(len(self.negatives) - len(negatives)):
            lose(self.where, POSITIVE_ELSEWHERE)
        has_scores = all(document in self.scores for document in (*positives, *negatives))
        if self.scores and not has_scores:
            lose(self.where, "the scores of a query of which only some passages have one")
        scores = [tuple(self.scores[document] for document in side) if has_scores else () for side in (positives, negatives)]
        passages = tuple(self.passages[document] for document in (*positives, *negatives) if document in self.passages)
        return Example(self.first.query_id, positives, negatives, (), self.query, passages, scores[0], scores[1])


def write_examples(examples: Iterable[Example], path: Path | str) -> None:
    """Write one JSON line per example: by id, or with its texts if it has them; DataError for what `read_examples` refuses."""
    name = lines.source_name(path, "standard output")
    records = ((f"{name}: example {number}", example_to_record(example)) for number, example in enumerate(examples, 1))
    texts.write_json_lines((record for _, record, _ in _parse_unique(records, provenance=True)), path)


def example_to_record(example: Example) -> dict[str, Any]:
    """An example as the object of its JSON line."""
    fields: dict[str, Any] = {"query_id": example.query_id}
    if example.query is None:
        fields |= {"positive_ids": list(example.positive_ids), "negative_ids": list(example.negative_ids)}
    else:
        passages = {text.id: text for text in example.passages}
        if missing := {*example.positive_ids, *example.negative_ids} - passages.keys():
            raise DataError(f"query {example.query_id!r}: has no text of document {min(map(str, missing))!r}")
        fields["query"] = example.query.content if example.query.title else example.query.text
        if example.query.answers:
            fields["answers"] = list(example.query.answers)
        for side, ids in (("positive", example.positive_ids), ("negative", example.negative_ids)):
            fields[f"{side}_passages"] = [_passage_to_record(passages[document]) for document in ids]
    return fields | teacher_fields(example)


def _passage_to_record(text: Text) -> dict[str, Any]:
    record = {"docid": text.id, "title": text.title, "text": text.text}
    return record | ({"url": text.url} if text.url else {})


def teacher_fields(example: Example) -> dict[str, Any]:
    """The fields of a teacher's scores and of the provenance of the negatives, where an example has them."""
    fields: dict[str, Any] = {}
    if example.positive_scores:
        for side, scores in (("positive", example.positive_scores), ("negative", example.negative_scores)):
            fields[f"{side}_scores"] = [trim_score(score) for score in scores]
    if example.provenance:
        fields["negative_provenance"] = list(example.provenance)
    return fields


def trim_score(score: float) -> float:
    """The number that a score is in a file."""
    return float(runs.format_score(score))


def parse_example(record: Any, where: str, *, provenance: bool, unique: bool = True) -> Example:
    """An example from a record in our form or Tevatron's; `where` starts the message of an error.

    Without `unique` a document may be listed twice, or on both sides: `group_by_query` decides.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object")
    if "query_id" not in record:
        fields = ", ".join(map(str, record)) or "no field"
        raise DataError(f"{where}: no query_id, found {fields}; moeir convert --to examples reads other formats")
    query_id, query = texts.parse_id(record["query_id"], where), None
    if inline := "positive_passages" in record:
        query = texts.parse_text({"_id": query_id, "query": record.get("query"), "answers": record.get("answers")}, where)
    passages: dict[str, Text] = {}
    positives, negatives = (_parse_side(record, side, inline, passages, where, unique) for side in _SIDES)
    if not positives:
        raise DataError(f"{where}: query {query_id!r} has no positive")
    if unique and (both := set(positives) & set(negatives)):
        raise DataError(f"{where}: document {min(both)!r} is a positive and a negative of query {query_id!r}")
    entries: list[Any] = []
    if provenance and "negative_provenance" in record:
        entries = _list_field(record, "negative_provenance", where)
        if len(entries) != len(negatives):
            raise DataError(f"{where}: {len(negatives)} negatives, but negative_provenance has {len(entries)} entries")
    if inline and all(passage.get("score") is not None for side in _SIDES for passage in record[f"{side}_passages"]):
        record = {f"{side}_scores": [passage["score"] for passage in record[f"{side}_passages"]] for side in _SIDES} | record
    positive_scores, negative_scores = _parse_teacher_scores(record, {"positive": len(positives), "negative": len(negatives)}, where)
    return Example(query_id, positives, negatives, tuple(entries), query, tuple(passages.values()), positive_scores, negative_scores)


def _parse_side(record: dict[str, Any], side: str, inline: bool, passages: dict[str, Text], where: str, unique: bool) -> tuple[str, ...]:
    """The ids of a side; its texts, if they are inline, are added to `passages`."""
    names = (f"{side}_passages",) if inline else (f"{side}_ids", f"{side}_document_ids")
    field = next((name for name in names if name in record), None)
    if field is None:
        raise DataError(f"{where}: no {side}s; expected one of {side}_ids, {side}_document_ids, {side}_passages")
    ids = []
    for value in _list_field(record, field, where):
        if inline:
            text = texts.parse_text(value, f"{where}: {field}")
            if passages.setdefault(text.id, text) != text:
                raise DataError(f"{where}: passage {text.id!r} has two texts")
        ids.append(sys.intern(text.id if inline else texts.parse_id(value, where)))
    if unique and len(set(ids)) < len(ids):
        raise DataError(f"{where}: document {max(ids, key=ids.count)!r} is listed twice in {field}")
    return tuple(ids)


def _parse_teacher_scores(record: dict[str, Any], counts: dict[str, int], where: str) -> Iterator[tuple[float, ...]]:
    """The teacher's scores of positives and of negatives, one per document; empty tuples without a teacher."""
    has_teacher = any(f"{side}_scores" in record for side in _SIDES)
    for side, count in counts.items():
        values = _list_field(record, f"{side}_scores", where) if has_teacher else []
        if has_teacher and len(values) != count:
            raise DataError(f"{where}: {count} {side}s, but {side}_scores has {len(values)} entries")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MAX_SCORE:
                raise DataError(f"{where}: {side}_scores: expected finite numbers, found {value!r}")
        yield tuple(map(float, values))


def _list_field(record: dict[str, Any], field: str, where: str) -> list[Any]:
    if not isinstance(values := record.get(field), list):
        raise DataError(f"{where}: {field} is not a list" if field in record else f"{where}: no {field}")
    return values
