"""Row files shared by several formats: JSON lines, TSV, named columns, run rows, files of collections; rows grouped by query.

Rows with named columns, sentence-transformers' training data: JSON lines, TSV or CSV with a header, by the suffix.

Rows of other tools' runs: hits by query, with scores or only ranks.

Files of collection folders: compressed or not, one file of judgements per split.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import ArtifactError, DataError
from moeir.formats.base import Conversion, collapse_whitespace, flatten_title, title_and_text
from moeir.records import examples, lines, qrels, texts
from moeir.records.examples import Example
from moeir.records.qrels import Qrels
from moeir.records.runs import Run
from moeir.records.texts import Text


def read_unique_texts(source: Path | str, conversion: Conversion) -> Iterator[Text]:
    """Texts of any form with unique ids; fields that are not read are dropped or refused."""
    seen_ids: set[str] = set()
    for where, record in texts.read_records(str(source)):
        text = texts.parse_text(record, where)
        if text.id in seen_ids:
            raise DataError(f"{where}: duplicate id {text.id!r}; moeir check --fix keeps the first")
        seen_ids.add(text.id)
        conversion.drop_unread_fields(where, record, (*texts.ID_FIELDS, *texts.TEXT_FIELDS, "title", "url", "answers"))
        yield text
    if not seen_ids:
        raise DataError(f"{lines.source_name(source)}: holds no text")


def read_json_lines(path: Path | str) -> Iterator[tuple[str, Any]]:
    """The location of each JSON value (file:line), and the value."""
    name = lines.source_name(path)
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if line.strip():
                yield f"{name}:{number}", texts.parse_json(line, f"{name}:{number}")


def write_json_lines(records: Iterable[Any], path: Path | str) -> int:
    """Write one JSON value per line and return their number."""
    count = 0
    with lines.open_writer(path) as output:
        for record in records:
            output.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_rows(path: Path | str, width: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """The location of each line (file:line), and its tab-separated columns."""
    name = lines.source_name(path)
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if not line.strip():
                continue
            columns = line.split("\t")
            if len(columns) != width:
                raise DataError(f"{name}:{number}: {width} columns between tabs expected ({form}), {len(columns)} found")
            yield f"{name}:{number}", columns


def write_rows(row_values: Iterable[Iterable[object]], path: Path | str) -> int:
    """Write tab-separated columns and return the number of lines."""
    count = 0
    with lines.open_writer(path) as output:
        for row in row_values:
            output.write("\t".join(map(str, row)) + "\n")
            count += 1
    return count


def parse_string_list(record: dict[str, Any], name: str, where: str) -> list[str]:
    """A field that is a list of strings; empty if the field is absent."""
    values = record.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: {name} is not a list of strings")
    return values


def text_digest(text: str) -> str:
    """An id for a text without one: equal texts get equal ids.

    >>> text_digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_with_digest_id(text: str) -> Text:
    """A `Text` whose id is the digest of the text.

    >>> text_with_digest_id("An owl.") == Text(text_digest("An owl."), "An owl.")
    True
    """
    return Text(text_digest(text), text)


def has_digest_id(text: Text) -> bool:
    """Whether a text's id is the one of `text_with_digest_id`, so that dropping it loses nothing."""
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

    def examples(self, *, inline: bool = True) -> Iterator[Example]:
        """One example per query."""
        for query, groups in self._queries.items():
            where = self._where[query]
            negatives = list(dict.fromkeys(negative for group in groups.values() for negative in group))
            if any(set(group) != set(negatives) for group in groups.values()):
                self._conversion.drop_or_refuse(where, "which negatives belong to which positive")
            if overlap := [negative for negative in negatives if negative in groups]:
                self._conversion.drop_or_refuse(where, "a positive that is a negative elsewhere")
                negatives = [negative for negative in negatives if negative not in overlap]
            example = Example(query, tuple(groups), tuple(negatives))
            if inline:
                passages = tuple(self._texts[document] for document in (*groups, *negatives))
                example = replace(example, query=self._texts[query], passages=passages)
            yield validate_example(example, where)


_DELIMITERS = {".tsv": "\t", ".csv": ","}
ANCHOR_COLUMNS = ("anchor", "query", "question", "sentence1")
POSITIVE_COLUMNS = ("positive", "answer", "pos", "passage", "sentence2")


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location of each row (file:line), and its values by column name, in column order."""
    delimiter = _DELIMITERS.get(lines.strip_compression_suffix(path).suffix.lower())
    if delimiter is None:
        for where, record in read_json_lines(path):
            if not isinstance(record, dict):
                raise DataError(f"{where}: a JSON object was expected")
            yield where, record
        return
    with lines.open_lines(path) as numbered:
        reader = csv.reader((line + "\n" for _, line in numbered), delimiter=delimiter)
        header = next(reader, [])
        for row in reader:
            if len(row) != len(header):
                expected = f"{len(header)} columns expected ({', '.join(header)})"
                raise DataError(f"{path}:{reader.line_num}: {expected}, found {len(row)}")
            yield f"{path}:{reader.line_num}", dict(zip(header, row, strict=True))


def write_table(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> int:
    """Write rows with their column names and return the number of rows."""
    delimiter, count = _DELIMITERS.get(_suffix(path)), 0
    with lines.open_writer(path) as output:
        table = None if delimiter is None else csv.writer(output, delimiter=delimiter, lineterminator="\n")
        if table is not None:
            table.writerow(header)
        for row in rows:
            count += 1
            if table is not None:
                table.writerow(row)
            else:
                output.write(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n")
    return count


def _suffix(path: Path) -> str:
    return lines.strip_compression_suffix(str(path).removesuffix(".partial")).suffix.lower()  # an output is written as PATH.partial first


def first_text_column(record: dict[str, Any], names: Sequence[str], where: str) -> str:
    """The text of the first column of `names` that the row has."""
    name = next((column for column in names if column in record), None)
    if name is None or not isinstance(record[name], str):
        raise DataError(f"{where}: no text column {' or '.join(names)} among {', '.join(record)}")
    return str(record[name])


def flatten_example(example: Example, conversion: Conversion, path: Path) -> tuple[str, list[str], list[str]]:
    """The texts of an example's query, positives and negatives; fields without a column are dropped or refused."""
    where = f"query {example.query_id!r}"
    example = conversion.inline_texts(example, where)
    assert example.query is not None
    for what, present in (
        ("field 'negative_provenance'", example.provenance),
        ("field 'answers'", example.query.answers),
        ("ids", not (has_digest_id(example.query) and all(map(has_digest_id, example.passages)))),
    ):
        if present:
            conversion.drop_or_refuse(where, what)
    passages = {passage.id: flatten_title(passage, where, conversion) for passage in example.passages}
    query, sides = title_and_text(example.query), (example.positive_ids, example.negative_ids)
    if _suffix(path) == ".tsv":
        query = collapse_whitespace(query, where, conversion)
        passages = {name: collapse_whitespace(text, where, conversion) for name, text in passages.items()}
    return query, *([passages[document] for document in ids] for ids in sides)  # type: ignore[return-value]


def drop_teacher_scores(example: Example, conversion: Conversion) -> None:
    """Drop or refuse teacher scores, for which rows have no column."""
    if example.positive_scores:
        conversion.drop_or_refuse(f"query {example.query_id!r}", "a teacher's scores")


LocatedHit = tuple[str, str, str, float]  # location, query, document, score


def run_from_hits(hits: Iterable[LocatedHit], name: str, tag: str = "moeir") -> Run:
    """Build a run from hits in any order."""
    queries: dict[str, int] = {}
    names: dict[str, int] = {}
    locations, query_codes, document_codes, scores = list[str](), list[int](), list[int](), list[float]()
    for where, query, document, score in hits:
        locations.append(where)
        query_codes.append(queries.setdefault(query, len(queries)))
        document_codes.append(names.setdefault(document, len(names)))
        scores.append(score)
    if not locations:
        raise DataError(f"{name}: has no hits")
    return Run.from_columns(list(queries), query_codes, list(names), document_codes, scores, tag, location=locations.__getitem__)


def scores_from_ranks(hits: Iterable[tuple[str, str, str, int]]) -> Iterator[LocatedHit]:
    """Scores for hits that have only ranks, in any order: a query's last hit gets 1, each better one 1 more."""
    lists: dict[str, list[tuple[int, str, str]]] = {}
    for where, query, document, rank in hits:
        lists.setdefault(query, []).append((rank, where, document))
    for query, ranked_hits in lists.items():
        ranked_hits.sort(key=lambda hit: hit[0])
        for position, (rank, where, document) in enumerate(ranked_hits):
            if position and ranked_hits[position - 1][0] == rank:
                raise DataError(f"{where}: rank {rank} appears twice in the list of query {query!r}")
            yield where, query, document, float(len(ranked_hits) - position)


def iter_hits(run: Run) -> Iterator[tuple[str, str, int, float]]:
    """Query, document, rank and score of every hit."""
    for query in run.queries:
        for rank, (document, score) in enumerate(run.hits(query), 1):
            yield query, document, rank, score


def drop_scores(run: Run, conversion: Conversion) -> None:
    """Drop or refuse scores; nothing is lost where they are only counted ranks."""
    for query in run.queries:
        hits = run.hits(query)
        if any(score != len(hits) - position for position, (_, score) in enumerate(hits)):
            conversion.drop_or_refuse(f"query {query!r}", "the scores")
            return


def drop_tag(run: Run, conversion: Conversion) -> None:
    """Drop or refuse the run's tag, unless it is the default."""
    if run.tag != "moeir":
        conversion.drop_or_refuse(f"tag {run.tag!r}", "the tag of the run")


def parse_whole_number(word: str, what: str, where: str) -> int:
    """Parse a non-negative whole number."""
    if not word.isdecimal():
        raise DataError(f"{where}: {what} is not a whole number: {word!r}")
    return int(word)


def find_file(folder: Path, *names: str) -> Path:
    """The first existing file of these names, compressed or not."""
    for name in names:
        for compression in ("", ".gz", ".zst"):
            if (folder / f"{name}{compression}").is_file():
                return folder / f"{name}{compression}"
    raise ArtifactError(f"{folder}: no {' or '.join(names)}; expected a folder in this format's layout")


def read_qrels_splits(folder: Path, prefix: str, suffixes: tuple[str, ...]) -> dict[str, Qrels]:
    """Judgements by split, from every file named `prefixSPLITsuffix`, in the order of file names."""
    splits = {}
    for file in sorted(folder.glob(f"{prefix}*")) if folder.is_dir() else ():
        name = lines.strip_compression_suffix(file).name
        for suffix in suffixes:
            if file.is_file() and name.endswith(suffix) and len(name) > len(prefix) + len(suffix):
                splits[name[len(prefix) : -len(suffix)]] = qrels.read_qrels(file)
                break
    return splits


def chain_texts(files: list[Path], conversion: Conversion) -> Iterator[Text]:
    """The texts of several files; of equal ids, the first."""
    seen_ids: set[str] = set()
    for file in files:
        for text in read_unique_texts(file, conversion):
            if text.id not in seen_ids:
                seen_ids.add(text.id)
                yield text
