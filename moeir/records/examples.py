"""Training examples: a query, its positives and negatives, the provenance of each negative, and a teacher's scores.

An example refers to its texts by id, as our own lines and Tevatron's newer ones do; the texts then come from the corpus
and the queries. Where a line has the texts inline (Tevatron's `positive_passages`), the same `Example` has them too,
in `query` and `passages`, so that code that uses examples handles one form.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.records import dpr, lines, remote_rows, runs, texts
from moeir.records.texts import Text

log = logging.getLogger(__name__)
_SIDES = ("positive", "negative")
MAX_SCORE = 3e38  # of float32, in which scores are compared


@dataclass(frozen=True, slots=True)
class Provenance:
    """The run that retrieved a document, its rank there (from 1) and its score."""

    run: str
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its positives and negatives; `provenance` is empty or has one entry per negative.

    A teacher's scores are in the order of the ids, for all documents or for none. `extra` are other fields of its record, which only
    `convert` reads.
    """

    query_id: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    provenance: tuple[tuple[Provenance, ...], ...] = ()
    query: Text | None = None
    passages: tuple[Text, ...] = ()
    positive_scores: tuple[float, ...] = ()
    negative_scores: tuple[float, ...] = ()
    extra: Mapping[str, Any] | None = field(default=None, compare=False)

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
    for item in _parse_unique(_read_records(path), provenance):
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
    """Merge files into one example per query: the union of positives, then of the other negatives, in order of first appearance.

    A teacher's scores are kept where every document of a query has one; a document's first score counts. Provenance is dropped.

    >>> first, second = Example("q", ("a",), ("b", "c")), Example("q", ("b",), ("d", "c"))
    >>> merge_examples([[first], [second]], ["1", "2"])[0].positive_ids, merge_examples([[first], [second]], ["1", "2"])[0].negative_ids
    (('a', 'b'), ('c', 'd'))
    """
    if len(files) == 1:
        return list(files[0])
    merged, dropped = dict[str, Example](), 0
    for examples, path in zip(files, paths, strict=True):
        for example in examples:
            earlier = merged.get(example.query_id)
            merged[example.query_id] = example if earlier is None else _merge_pair(earlier, example, str(path))
            if earlier is not None:
                dropped += len(earlier.negative_ids) + len({*example.negative_ids} - {*earlier.negative_ids})
                dropped -= len(merged[example.query_id].negative_ids)
    if dropped:
        log.warning("%s: %s negatives are left out, which another file calls positives of their query", paths[0], f"{dropped:,}")
    return list(merged.values())


def _merge_pair(first: Example, second: Example, path: str) -> Example:
    if first.query is not None and second.query is not None and first.query != second.query:
        raise DataError(f"{path}: query {first.query_id!r} has two texts in the files; different queries need other ids")
    passages = {passage.id: passage for passage in first.passages}
    for passage in second.passages:
        if passages.setdefault(passage.id, passage) != passage:
            problem = f"passage {passage.id!r} has two texts in the files; different passages need other ids"
            raise DataError(f"{path}: {problem}")
    positives = tuple(dict.fromkeys((*first.positive_ids, *second.positive_ids)))
    negatives = tuple(document for document in dict.fromkeys((*first.negative_ids, *second.negative_ids)) if document not in positives)
    teacher = second.teacher_scores | first.teacher_scores
    scores = [tuple(teacher[document] for document in ids if document in teacher) for ids in (positives, negatives)]
    if len(scores[0]) + len(scores[1]) < len(positives) + len(negatives):
        scores = [(), ()]
    return Example(first.query_id, positives, negatives, (), first.query or second.query, tuple(passages.values()), scores[0], scores[1])


def write_examples(examples: Iterable[Example], path: Path | str) -> None:
    """Write one JSON line per example: by id, or with its texts if it has them; DataError for what `read_examples` refuses."""
    name = lines.source_name(path, "standard output")
    records = ((f"{name}: example {number}", example_to_record(example)) for number, example in enumerate(examples, 1))
    texts.write_json_lines((record for _, record, _ in _parse_unique(records, provenance=True)), path)


def _read_records(path: Path | str) -> Iterator[tuple[str, Any]]:
    if remote_rows.is_columnar(path):
        yield from remote_rows.read_columnar(path)
        return
    name = lines.source_name(path)
    with lines.open_lines(path) as all_lines:
        numbered = ((number, line) for number, line in all_lines if line.strip())
        for first in numbered:
            if dpr.is_array(first[1]):
                yield from dpr.read_example_records(name, chain([first], numbered))
            else:
                where = f"{name}:{first[0]}"
                yield where, texts.parse_json(first[1], where)


def example_to_record(example: Example) -> dict[str, Any]:
    """An example as the object of its JSON line."""
    fields: dict[str, Any] = {"query_id": example.query_id}
    if example.query is None:
        fields |= {"positive_ids": list(example.positive_ids), "negative_ids": list(example.negative_ids)}
    else:
        passage = {text.id: _to_passage(text) for text in example.passages}
        if missing := {*example.positive_ids, *example.negative_ids} - passage.keys():
            raise DataError(f"query {example.query_id!r}: has no text of document {min(map(str, missing))!r}")
        fields["query"] = example.query.content if example.query.title else example.query.text
        if example.query.answers:
            fields["answers"] = list(example.query.answers)
        fields["positive_passages"] = [passage[document] for document in example.positive_ids]
        fields["negative_passages"] = [passage[document] for document in example.negative_ids]
    if example.positive_scores:
        fields["positive_scores"] = [float(runs.format_score(score)) for score in example.positive_scores]
        fields["negative_scores"] = [float(runs.format_score(score)) for score in example.negative_scores]
    if example.provenance:
        fields["negative_provenance"] = [
            [{"run": entry.run, "rank": entry.rank, "score": float(runs.format_score(entry.score))} for entry in sources]
            for sources in example.provenance
        ]
    return fields


def _to_passage(text: Text) -> dict[str, Any]:
    url = {"url": text.url} if text.url else {}
    return {"docid": text.id, "title": text.title, "text": text.text, **url, **(text.extra or {})}


def parse_example(record: Any, where: str, *, provenance: bool) -> Example:
    """An example from a record in our form or Tevatron's; `where` starts the message of an error."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object")
    if "query_id" not in record:
        fields = ", ".join(map(str, record)) or "no field"
        raise DataError(f"{where}: no query_id, found {fields}; moeir convert --to examples reads other formats")
    query_id = texts.parse_id(record["query_id"], where)
    inline = "positive_passages" in record
    passages: dict[str, Text] = {}
    if inline:
        if not isinstance(record.get("query"), str):
            raise DataError(f"{where}: no query text beside the passages; the field query is missing or not a string")
        positives, negatives = (_parse_passages(record, side, passages, where) for side in _SIDES)
    else:
        positives, negatives = (_parse_ids(record, side, where) for side in _SIDES)
    if not positives:
        raise DataError(f"{where}: query {query_id!r} has no positive")
    if both := set(positives) & set(negatives):
        problem = f"document {min(both)!r} is a positive and a negative of query {query_id!r}"
        raise DataError(f"{where}: {problem}")
    query = texts.parse_text({"_id": query_id, "query": record["query"], "answers": record.get("answers")}, where) if inline else None
    entries = _parse_provenance(record, len(negatives), where) if provenance else ()
    if inline and all(passage.get("score") is not None for side in _SIDES for passage in record[f"{side}_passages"]):
        record = {f"{side}_scores": [passage["score"] for passage in record[f"{side}_passages"]] for side in _SIDES} | record
    positive_scores, negative_scores = _parse_teacher_scores(record, {"positive": len(positives), "negative": len(negatives)}, where)
    return Example(query_id, positives, negatives, entries, query, tuple(passages.values()), positive_scores, negative_scores)


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


def _parse_ids(record: dict[str, Any], side: str, where: str) -> tuple[str, ...]:
    names = (f"{side}_ids", f"{side}_document_ids", f"{side}_passages")
    field = next((name for name in names if name in record), None)
    if field is None:
        raise DataError(f"{where}: no {side}s; expected one of {', '.join(names)}")
    ids = tuple(sys.intern(texts.parse_id(value, where)) for value in _list_field(record, field, where))
    _check_unique(ids, field, where)
    return ids


def _parse_passages(record: dict[str, Any], side: str, passages: dict[str, Text], where: str) -> tuple[str, ...]:
    field = f"{side}_passages"
    passage_texts = [texts.parse_text(passage, f"{where}: {field}") for passage in _list_field(record, field, where)]
    for text in passage_texts:
        if passages.setdefault(text.id, text) != text:
            raise DataError(f"{where}: passage {text.id!r} has two texts")
    ids = tuple(text.id for text in passage_texts)
    _check_unique(ids, field, where)
    return ids


def _check_unique(ids: tuple[str, ...], field: str, where: str) -> None:
    if len(set(ids)) < len(ids):
        raise DataError(f"{where}: document {max(ids, key=ids.count)!r} is listed twice in {field}")


def _list_field(record: dict[str, Any], field: str, where: str) -> list[Any]:
    if not isinstance(values := record.get(field), list):
        raise DataError(f"{where}: {field} is not a list" if field in record else f"{where}: no {field}")
    return values


def _parse_provenance(record: dict[str, Any], negatives: int, where: str) -> tuple[tuple[Provenance, ...], ...]:
    if "negative_provenance" not in record:
        return ()
    entries = _list_field(record, "negative_provenance", where)
    if len(entries) != negatives:
        raise DataError(f"{where}: {negatives} negatives, but negative_provenance has {len(entries)} entries")
    try:
        return tuple(tuple(Provenance(str(one["run"]), int(one["rank"]), float(one["score"])) for one in entry) for entry in entries)
    except (TypeError, KeyError, ValueError, OverflowError):
        raise DataError(f'{where}: negative_provenance is not a list of lists of {{"run", "rank", "score"}}') from None
