"""DPR's files: a JSON array of questions with answers and contexts, and lines of a question and its answers.

A question's id is its `question_id`, or its position in the file from 0, so that queries, answers and examples read from one file agree.
An array is read entry by entry: memory holds one entry, however large the file, unless it is a single line.
"""

import ast
import csv
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from moeir.errors import DataError

NumberedLines = Iterator[tuple[int, str]]

_ARRAY_START = re.compile(r"\s*\[\s*(\{|$)")
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder()
_BLOCK_CHARACTERS = 1 << 20
QUESTION_ID_FIELDS = ("question_id", "_id", "id", "query_id", "qid")
CONTEXT_ID_FIELDS = ("passage_id", "psg_id", "docid", "_id", "id")


def is_array(line: str) -> bool:
    """Whether the first line of a file opens an array of objects.

    >>> is_array("["), is_array(' [ {"question": "who?"'), is_array("[1, 2]")
    (True, True, False)
    """
    return _ARRAY_START.match(line) is not None


def read_array(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`file:line` and value of each object of an array; `numbered` are the file's numbered lines, with or without blank ones.

    >>> list(read_array("dev.json", iter([(1, '[{"a": 1},'), (3, '{"b": 2}]')])))
    [('dev.json:1', {'a': 1}), ('dev.json:3', {'b': 2})]
    """
    array = _ArrayReader(name, numbered)
    array.take("[")
    mark = array.take("]") if array.peek() == "]" else ","
    while mark == ",":
        if array.peek() != "{":
            raise array.error("an object")
        yield f"{name}:{array.line}", array.read_object()
        mark = array.take(",]")
    if array.peek():
        raise array.error("nothing after the array")


def read_questions(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`file:line` and text record of each entry of an array, as by `question_record`."""
    return ((where, question_record(entry, position)) for position, (where, entry) in enumerate(read_array(name, numbered)))


def read_example_records(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`file:line` and example record of each entry of an array that has a positive, as by `example_record`."""
    for position, (where, entry) in enumerate(read_array(name, numbered)):
        if (record := example_record(entry, position, where)) is not None:
            yield where, record


def question_record(entry: dict[str, Any], position: int) -> dict[str, Any]:
    """An entry as a text record: with an id, if it has a question.

    >>> question_record({"question": "who?", "answers": ["she"]}, 7)["_id"]
    7
    """
    return {**entry, "_id": _question_id(entry, position)} if "question" in entry else entry


def example_record(entry: dict[str, Any], position: int, where: str) -> dict[str, Any] | None:
    """An entry as an example record with its texts; None if it has no positive.

    Negatives are the hard ones, or the others if there are none. A context without an id, or with the id of another text of the entry,
    gets a digest of its title and text as id. Duplicates count once, and a positive is never a negative.
    """
    if "positive_ctxs" not in entry:
        return entry
    if not isinstance(entry.get("question"), str):
        raise DataError(f"{where}: no question; expected a string")
    passages: dict[str, dict[str, Any]] = {}
    positives = _read_passages(entry, "positive_ctxs", passages, frozenset(), where)
    positive_ids = frozenset(passages)
    hard_negatives = _read_passages(entry, "hard_negative_ctxs", passages, positive_ids, where)
    negatives = hard_negatives or _read_passages(entry, "negative_ctxs", passages, positive_ids, where)
    if not positives:
        return None
    sides = {"positive_passages": positives, "negative_passages": negatives}
    return {"query_id": _question_id(entry, position), "query": entry["question"], **sides}


def has_answers(line: str) -> bool:
    """Whether a line is a question, a tab and a list of answers.

    >>> has_answers("who was it?\\t['she', \\"O'Hara\\"]"), has_answers("q1\\t['she']"), has_answers("who was it?\\tshe")
    (True, False, False)
    """
    columns = split_csv_line(line)
    return len(columns) == 2 and len(columns[0].split()) > 1 and _parse_string_list(columns[1]) is not None


def read_question_rows(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """Text records of lines of a question, a tab and a JSON or Python list of answers, quoted as in CSV."""
    for position, (number, line) in enumerate(numbered):
        columns = split_csv_line(line)
        answers = _parse_string_list(columns[1]) if len(columns) == 2 else None
        if answers is None:
            raise DataError(f"{name}:{number}: expected a question, a tab and a list of answers, as on the first line")
        yield f"{name}:{number}", {"_id": position, "question": columns[0], "answers": answers}


def json_error(fault: Exception, where: str, expected: str, column: str = "") -> DataError:
    """The error for JSON that cannot be decoded."""
    if isinstance(fault, UnicodeEncodeError):
        return DataError(f"{where}: broken JSON: an escape is half a character (a lone surrogate)")
    reason = fault.msg if isinstance(fault, json.JSONDecodeError) else str(fault)
    return DataError(f"{where}: broken JSON{column}: {reason}; expected {expected}")


class _ArrayReader:
    """Buffer of the array being read: whole lines, and the position decoded so far."""

    def __init__(self, name: str, numbered: NumberedLines) -> None:
        self.name, self.numbered_lines = name, numbered
        self.text, self.position, self.line, self.next_line = "", 0, 1, 1

    def peek(self) -> str:
        """The next character that is not white space, not consumed; empty at the end of the file."""
        while True:
            white = _SPACE.match(self.text, self.position)
            assert white is not None
            self._advance(white.end())
            if self.position < len(self.text):
                return self.text[self.position]
            if not self._read_more():
                return ""

    def take(self, expected: str) -> str:
        """Consume one of the expected characters and return it."""
        if not (character := self.peek()) or character not in expected:
            raise self.error(" or ".join(expected))
        self.position += 1
        return character

    def read_object(self) -> dict[str, Any]:
        """Consume and return the object that begins here."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.position)
                if _SURROGATE.search(self.text, self.position, end):
                    json.dumps(value, ensure_ascii=False).encode()
                self._advance(end)
                return dict(value)
            except json.JSONDecodeError as fault:
                line = self.line + self.text.count("\n", self.position, fault.pos)
                if fault.pos >= len(self.text.rstrip()) - 1 and self._read_more():
                    continue
                raise json_error(fault, f"{self.name}:{line}", "an array of objects") from None
            except (ValueError, RecursionError) as fault:
                raise json_error(fault, f"{self.name}:{self.line}", "an array of objects") from None

    def error(self, expected: str) -> DataError:
        """The error for an unexpected character."""
        return DataError(f"{self.name}:{self.line}: expected {expected} in the array, found {self.peek() or 'the end of the file'}")

    def _advance(self, end: int) -> None:
        self.line += self.text.count("\n", self.position, end)
        self.position = end

    def _read_more(self) -> bool:
        rest = self.text[self.position :]
        parts, characters = [rest], 0
        for number, line in self.numbered_lines:
            parts.append("\n" * (number - self.next_line) + line + "\n")  # blank lines that were dropped count too
            self.next_line = number + 1
            characters += len(line) + 1
            if characters >= max(_BLOCK_CHARACTERS, len(rest)):
                break
        self.text, self.position = "".join(parts), 0
        return characters > 0


def _question_id(entry: dict[str, Any], position: int) -> Any:
    return next((entry[field] for field in QUESTION_ID_FIELDS if entry.get(field) is not None), position)


def _read_passages(
    entry: dict[str, Any], field: str, by_id: dict[str, dict[str, Any]], excluded: frozenset[str], where: str
) -> list[dict[str, Any]]:
    contexts = entry.get(field)
    if contexts is None:
        return []
    if not isinstance(contexts, list):
        raise DataError(f"{where}: {field} is not a list")
    passages = []
    for context in contexts:
        if not isinstance(context, dict) or not isinstance(context.get("text"), str) or not isinstance(context.get("title") or "", str):
            raise DataError(f"{where}: {field}: expected contexts with a text and a title, both strings")
        title, text = context.get("title") or "", context["text"]
        digest = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:16]
        context_id = next((context[key] for key in CONTEXT_ID_FIELDS if context.get(key) not in (None, "")), digest)
        if isinstance(context_id, bool) or not isinstance(context_id, str | int):
            raise DataError(f"{where}: {field}: id of a context is not a string: {context_id!r}")
        passage = {"docid": str(context_id), "title": title, "text": text}
        if passage["docid"] in excluded:
            continue
        if by_id.get(passage["docid"], passage) != passage:
            passage["docid"] = digest
        if passage["docid"] not in by_id:
            by_id[passage["docid"]] = passage
            passages.append(passage)
    return passages


def split_csv_line(line: str) -> list[str]:
    """The tab-separated columns of a line, quoted as csv writes them; none if they are not."""
    try:
        return next(csv.reader([line], delimiter="\t", strict=True), [])
    except csv.Error:
        return []


def _parse_string_list(text: str) -> list[str] | None:
    for reader in (json.loads, ast.literal_eval):
        try:
            value = reader(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, list) and all(isinstance(answer, str) for answer in value):
            return value
    return None
