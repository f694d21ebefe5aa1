"""Corpora and queries: JSON lines, TSV, DPR's questions, `hf:` and `irds:` sources as one stream of `Text`.

Ids are strings, unique and without white space; a faulty record raises DataError with its file and line.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from moeir import data_sources
from moeir.errors import DataError
from moeir.parsing import preview
from moeir.records import dpr, lines, qrels, remote_rows
from moeir.records.ids import parse_id as parse_id

Item = TypeVar("Item")
Contents: TypeAlias = Iterator[tuple[str, Any]]
ID_FIELDS = ("_id", "id", "docid", "query_id", "qid", "doc_id", "pid")
TEXT_FIELDS = ("text", "contents", "content", "query", "question", "query_text", "document_text", "passage", "body")
SYNONYMS = (ID_FIELDS, TEXT_FIELDS)  # of each the first that a record has is read
KNOWN_FIELDS = (*ID_FIELDS, *TEXT_FIELDS, "title", "url", "answers")
DOCUMENT_FIELDS = ("url", "title", "text")  # of a document, in reading order
_OTHER_COLUMNS = {"title", "url", "document", "abstract", "sentence", "answer", "answers", "topic", "number", "description", "narrative"}
FIELD_SEPARATOR = "\x1f"  # ASCII's unit separator, between the fields of `Text.joined_fields`
_JSON_SUFFIXES, _TSV_SUFFIXES = {".jsonl", ".json", ".ndjson"}, {".tsv", ".txt"}


@dataclass(frozen=True, slots=True)
class Text:
    """A document or a query; `extra` are other fields of its record, which only `convert` reads."""

    id: str
    text: str
    title: str = ""
    url: str = ""
    answers: tuple[str, ...] = ()
    extra: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def content(self) -> str:
        """Title, then text: what is encoded and indexed.

        >>> Text("d1", "Owls hunt at night.", title="Owl").content
        'Owl Owls hunt at night.'
        """
        return f"{self.title} {self.text}".strip()

    @property
    def joined_fields(self) -> str:
        """Url, title and text, joined by a separator that none of them contains: for models that read fields apart."""
        return FIELD_SEPARATOR.join(getattr(self, part).replace(FIELD_SEPARATOR, " ").strip() for part in DOCUMENT_FIELDS)


def read_texts(source: Path | str, *, keep_empty: bool | None = None, plain_lines: bool = False) -> Iterator[Text]:
    """Read the texts of a file, a pipe, `hf:NAME[/CONFIG][@SPLIT]`, `hf:FOLDER`, or `irds:NAME#docs|#queries`, one at a time.

    `TEXTS#QRELS`, as in `queries.jsonl#qrels/test.tsv`, are the texts of a source that are judged in another. With `plain_lines`, a file
    whose first line is neither JSON nor has a tab holds a text per line, with the ids 1, 2, … An empty text is a DataError but with
    `keep_empty`, which is None where no flag of a command keeps it.
    """
    for where, _, text in read_texts_with_records(source, plain_lines=plain_lines):
        if not text.content and not keep_empty:
            advice = "moeir check lists such texts" if keep_empty is None else "--keep-empty keeps such texts, moeir check lists them"
            raise DataError(f"{where}: the text of {text.id!r} is empty; {advice}")
        yield text


def read_texts_with_records(source: Path | str, *, plain_lines: bool = False) -> Iterator[tuple[str, dict[str, Any], Text]]:
    """Location, record and text of each record of a source, the empty ones too; ids are unique, and there is a text."""
    return _parse_unique(read_records(str(source), plain_lines=plain_lines), lines.source_name(source))


def _parse_unique(records: Iterable[tuple[str, Any]], name: str) -> Iterator[tuple[str, dict[str, Any], Text]]:
    ids: set[str] = set()
    for where, record in records:
        text = parse_text(record, where)
        if text.id in ids:
            raise DataError(f"{where}: duplicate id {text.id!r}; ids must be unique")
        ids.add(text.id)
        yield where, record, text
    if not ids:
        raise DataError(f"{name}: holds no text")


def read_texts_by_id(source: Path | str, *, keep_empty: bool | None = None) -> dict[str, Text]:
    """Read all texts of a source, by id."""
    return {text.id: text for text in read_texts(source, keep_empty=keep_empty)}


def read_field(source: Path | str, field: str) -> dict[str, str]:
    """Read one field of every record, by id, such as a question's relation; DataError for a record without it, or unprintable."""
    values = {}
    for where, record in read_records(str(source)):
        text, value = parse_text(record, where), record.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip() or not str(value).isprintable():
            problem = f"field {field!r} of {text.id!r} is not a printable string or a whole number: {preview(value)}"
            raise DataError(f"{where}: {problem}")
        values[text.id] = str(value)
    return values


def write_texts(texts: Iterable[Text], path: Path | str) -> None:
    """Write JSON lines with `_id`, `title`, `text`, and `url` and `answers` where present; DataError for what `read_texts` refuses."""
    name = lines.source_name(path, "standard output")
    records = ((f"{name}: text {number}", to_record(text)) for number, text in enumerate(texts, 1))
    write_json_lines((to_record(text) for _, _, text in _parse_unique(records, name)), path)


def to_record(text: Text) -> dict[str, Any]:
    """A text as the object of its JSON line."""
    values = {"_id": text.id, "title": text.title, "text": text.text, "url": text.url, "answers": list(text.answers)}
    return {name: value for name, value in values.items() if value or name not in ("url", "answers")}


def parse_text(record: Any, where: str) -> Text:
    """A text from a record with any of the usual names for id and text; `where` starts the message of an error."""
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a JSON object, found {preview(record)}")
    if record and all(isinstance(value, dict) for value in record.values()):
        raise DataError(f"{where}: expected a text, found judgements or a run as JSON, {{query: {{document: …}}}}")
    name = _find_field(record, TEXT_FIELDS, "text", where)
    text = parse_string(record[name], f"{where}: {name}")
    answers = record.get("answers")
    if answers is not None and not (isinstance(answers, list | tuple) and all(isinstance(answer, str) for answer in answers)):
        raise DataError(f"{where}: answers is not a list of strings: {preview(answers)}")
    text_id = parse_id(record[_find_field(record, ID_FIELDS, "id", where)], where)
    title, url = (
        parse_string(value, f"{where}: {field}") if (value := record.get(field)) is not None else "" for field in ("title", "url")
    )
    if name == "contents" and title and text.startswith(title) and not text[len(title) : len(title) + 1].strip():
        text = text[len(title) + 1 :]  # Lucene's `contents` are what is searched, the title among them
    return Text(text_id, text, title, url, tuple(answers or ()))


def parse_string(value: Any, where: str) -> str:
    """A text as it is, or an error: texts are strings, without halves of characters."""
    if not isinstance(value, str):
        raise DataError(f"{where} is not a string: {preview(value)}")
    return lines.check_characters(value, where)


def read_id_list(path: Path | str) -> list[str]:
    """The ids of a file with one in each line, each once; DataError for a line that is no id, or if there is none."""
    name = lines.source_name(path)
    with lines.open_lines(path) as numbered:
        ids = dict.fromkeys(parse_id(line.strip(), f"{name}:{number}") for number, line in numbered if line.strip())
    if not ids:
        raise DataError(f"{name}: holds no id; expected one in each line")
    return list(ids)


def parse_json(line: str, where: str) -> Any:
    """The JSON value of a line; DataError if it is broken."""
    try:
        value = json.loads(line)
        if "\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as fault:
        column = f" at column {fault.colno}" if isinstance(fault, json.JSONDecodeError) else ""
        raise dpr.json_error(fault, where, "one object per line", column) from None
    return value


def write_json_lines(values: Iterable[Any], path: Path | str) -> int:
    """Write one JSON value per line and return their number."""
    return lines.write_lines((json.dumps(value, ensure_ascii=False) for value in values), path)


def read_objects(source: Path | str, *, dpr_examples: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location and the fields of each object of JSON lines, of one JSON array, parquet, or an `hf:` source.

    With `dpr_examples` the entries of an array are example records, as by `dpr.read_example_records`.
    """
    if remote_rows.is_columnar(source):
        yield from remote_rows.read_columnar(source)
        return
    name, read_array = lines.source_name(source), dpr.read_example_records if dpr_examples else dpr.read_array
    with lines.open_lines(source) as numbered:
        if (first := next(((number, line) for number, line in numbered if line.strip()), None)) is not None:
            read = read_array if dpr.is_array(first[1]) else _parse_json_lines
            for where, value in read(name, chain([first], numbered)):
                if not isinstance(value, dict):
                    raise DataError(f"{where}: expected a JSON object, found {preview(value)}")
                yield where, value


def _parse_json_lines(name: str, numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
    for number, line in numbered:
        if line.strip():
            yield f"{name}:{number}", parse_json(line, f"{name}:{number}")


def _find_field(record: dict[str, Any], names: Sequence[str], what: str, where: str) -> str:
    field = next((name for name in names if name in record), None)
    if field is None:
        present = ", ".join(map(repr, record)) or "no field at all"
        raise DataError(f"{where}: no {what}; expected one of {', '.join(names)} among {present}")
    return field


def read_records(source: str, *, plain_lines: bool = False) -> Iterator[tuple[str, Any]]:
    """Location and raw value of each record of a source; of `TEXTS#QRELS`, the judged records; `plain_lines` as in `read_texts`."""
    texts_source, qrels_source = data_sources.split_judged(source)
    if qrels_source is not None:
        judged = qrels.read_qrels(qrels_source)
        yield from ((where, record) for where, record in read_records(texts_source) if parse_text(record, where).id in judged)
    elif data_sources.is_remote(source):
        for where, record in remote_rows.read_hf(source) if source.startswith("hf:") else _read_irds(source):
            for name in [name for name in ID_FIELDS if name in record][:1]:
                parse_id(record[name], f"{where}, column {name!r}")
            yield where, record
    else:
        with lines.open_lines(source) as numbered:
            names, contents = split_records(source, numbered, plain_lines=plain_lines)
            yield from ((where, parse_record(content, names, where)) for where, content in contents)


def parse_record(content: Any, names: Sequence[str], where: str) -> Any:
    """The record of a line of JSON, of the columns of a row with these names, or of an object; DataError if it is broken."""
    if isinstance(content, str):
        return parse_json(content, where)
    if not isinstance(content, list):
        return content
    if len(content) != len(names):
        actual = lines.describe_markup(content[0]) or len(content)
        advice = "; other columns need a first line that names them, such as id, text, title"
        if actual == 1:
            advice += "; texts alone are read from standard input, as in --queries - < FILE"
        raise DataError(f"{where}: expected {len(names)} tab-separated columns ({', '.join(names)}), found {actual}{advice}")
    return dict(zip(names, content, strict=True))


def split_records(source: Path | str, numbered: Iterator[tuple[int, str]], *, plain_lines: bool = False) -> tuple[Sequence[str], Contents]:
    """The names of the columns of a file of texts, and each record with its location: a line of JSON, the columns of a row, or an object.

    A table with a header is read as csv writes it, such as DPR's `psgs_w100.tsv`; without one, the columns are read as they stand.
    """
    name, nonempty = lines.source_name(source), ((number, line) for number, line in numbered if line.strip())
    if (first := next(nonempty, None)) is None:
        return (), iter(())
    suffix, all_lines = lines.strip_compression_suffix(source).suffix.lower(), chain([first], nonempty)
    if suffix not in _TSV_SUFFIXES and dpr.is_array(first[1]):
        return (), dpr.read_questions(name, chain([first], numbered))
    if suffix in _JSON_SUFFIXES or (suffix not in _TSV_SUFFIXES and first[1].lstrip().startswith("{")):
        return (), ((f"{name}:{number}", line) for number, line in all_lines)
    if plain_lines and "\t" not in first[1]:
        return (), ((f"{name}:{number}", {"id": str(row), "text": line.strip()}) for row, (number, line) in enumerate(all_lines, 1))
    if names := parse_header(first[1], f"{name}:{first[0]}"):
        return names, islice(lines.read_csv(chain([first], numbered), name), 1, None)
    return ("id", "text"), ((f"{name}:{number}", line.split("\t")) for number, line in all_lines)


def parse_header(first: str, where: str) -> list[str]:
    """The names of the columns if the first line is a header; none if it is a text; DataError if it is a header without an id and a text.

    >>> parse_header("ID\\tText\\ttitle", "c.tsv:1"), parse_header("cat\\tmeow", "c.tsv:1")
    (['id', 'text', 'title'], [])
    """
    names = [name.strip().strip('"').lower() for name in first.split("\t")]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if set(names) & set(ID_FIELDS) and set(names) & set(TEXT_FIELDS) and repeated is None:
        return names
    has_id = any(re.fullmatch(r"docno|doc(ument)?id|\w*[_-]id", name) for name in names)
    known_count = sum(name in KNOWN_FIELDS or name in _OTHER_COLUMNS for name in names)
    if len(names) > 1 and all(re.fullmatch(r"[\w.-]+", name) for name in names) and (has_id or known_count > 1):
        problem = f"the first line looks like a header, {', '.join(names)}" + (f", with two columns {repeated!r}" if repeated else "")
        expected = f"expected one of {', '.join(ID_FIELDS)} and one of {', '.join(TEXT_FIELDS)}"
        raise DataError(f"{where}: {problem}; {expected}; rename the columns, or delete the line if they are id and text")
    return []


def _read_irds(source: str) -> Iterator[tuple[str, Any]]:
    """Rows as records whose title and text together are ir_datasets' default text; those of a class without one by their fields."""
    for where, row in remote_rows.read_irds(source, ("docs", "queries")):
        record = {name: value for name, value in row._asdict().items() if name in KNOWN_FIELDS}
        if getattr(row, "default_text", None) is not None:
            missing = {name: "" for name, value in row._asdict().items() if value is None}  # else it is the word None in the text
            text, title = row._replace(**missing).default_text(), record.pop("title", None) or ""
            record = {name: value for name, value in record.items() if name not in TEXT_FIELDS} | {"text": text}
            if text.startswith(f"{title} "):
                record |= {"title": title, "text": text[len(title) + 1 :]}
        yield where, record


def count_texts(path: Path | str, *, keep_empty: bool | None = None) -> int:
    """The number of texts in a file, which is read for it."""
    return sum(1 for _ in read_texts(path, keep_empty=keep_empty))


def split_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items; the last may be shorter."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
