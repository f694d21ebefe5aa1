"""DPR's files: a JSON array of questions with answers and contexts, and lines of a question and its answers.

A question's id is its `question_id`, or its position in the file from 0, so that queries, answers and examples read from one file agree.
An array is read entry by entry: memory holds one entry, however large the file, unless it is a single line.
"""

import ast
import csv
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from moeir.errors import DataError

log = logging.getLogger(__name__)
NumberedLines = Iterator[tuple[int, str]]

_ARRAY_START = re.compile(r"\s*\[\s*(\{|$)")
_SPACE = re.compile(r"\s*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder()
_BLOCK_CHARACTERS = 1 << 20
_FOLLOWERS = {"": ("[",), "[": ("{", "]"), "{": (",", "]"), ",": ("{",), "]": ("",)}  # what may stand behind what in an array
QUESTION_ID_FIELDS = ("question_id", "_id", "id", "query_id", "qid")
_CONTEXT_SCORES = ("score", "title_score")  # of the retrieval that found a context, not a teacher's
CONTEXT_ID_FIELDS = ("passage_id", "psg_id", "docid", "_id", "id")


def is_array(line: str) -> bool:
    """Whether the first line of a file opens an array of objects.

    >>> is_array("["), is_array(' [ {"question": "who?"'), is_array("[1, 2]")
    (True, True, False)
    """
    return _ARRAY_START.match(line) is not None


def read_array(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`file:line` and value of each object of an array, of which the file's numbered lines are given.

    >>> list(read_array("dev.json", iter([(1, '[{"a": 1},'), (2, ""), (3, '{"b": 2}]')])))
    [('dev.json:1', {'a': 1}), ('dev.json:3', {'b': 2})]
    """
    previous = ""
    for line, token in _read_tokens(name, numbered):
        kind = "{" if isinstance(token, dict) else token
        if kind not in _FOLLOWERS[previous]:
            expected = " or ".join(_FOLLOWERS[previous]) or "nothing more"
            raise DataError(f"{name}:{line}: expected {expected} in the array, found {kind or 'the end of the file'}")
        if kind == "{":
            yield f"{name}:{line}", token
        previous = kind


def read_questions(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`file:line` and text record of each entry of an array: with an id, if it has a question."""
    for position, (where, entry) in enumerate(read_array(name, numbered)):
        yield where, {**entry, "_id": _question_id(entry, position)} if "question" in entry else entry


def read_example_records(name: str, numbered: NumberedLines) -> Iterator[tuple[str, dict[str, Any]]]:
    """`file:line` and example record of each entry of an array that has a positive, as by `example_record`."""
    skipped = 0
    for position, (where, entry) in enumerate(read_array(name, numbered)):
        if (record := example_record(entry, position, where)) is None:
            skipped += 1
        else:
            yield where, record
    if skipped:
        log.warning("%s: %s questions without a positive context are left out", name, f"{skipped:,}")


def example_record(entry: dict[str, Any], position: int, where: str) -> dict[str, Any] | None:
    """An entry as an example record with its texts and its other fields; None if it has no positive.

    Negatives are the hard ones, or the others if there are none. A context without an id, or with the id of another text of the entry,
    gets a digest of its title and text as id. Duplicates count once, and a positive is never a negative.
    """
    if "positive_ctxs" not in entry:
        return entry
    if not isinstance(entry.get("question"), str):
        raise DataError(f"{where}: no question; expected a string")
    passages: dict[str, dict[str, Any]] = {}
    positives = _read_passages(entry, "positive_ctxs", passages, frozenset(), where)
    if not positives:
        return None
    positive_ids, read_fields = frozenset(passages), {"question", "positive_ctxs", "hard_negative_ctxs", *QUESTION_ID_FIELDS}
    negatives = _read_passages(entry, "hard_negative_ctxs", passages, positive_ids, where)
    if not negatives:  # or all are positives
        negatives = _read_passages(entry, "negative_ctxs", passages, positive_ids, where)
        read_fields.add("negative_ctxs")
    record = {name: value for name, value in entry.items() if name not in read_fields}
    sides = {"positive_passages": positives, "negative_passages": negatives}
    return {**record, "query_id": _question_id(entry, position), "query": entry["question"], **sides}


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


def _read_tokens(name: str, numbered: NumberedLines) -> Iterator[tuple[int, Any]]:
    """Line and value of each object in the text, line and character of what is none, and last an empty string."""
    line, text = next(numbered, (1, ""))
    position = 0
    while True:
        white = _SPACE.match(text, position)
        assert white is not None
        begin = white.end()
        line += text.count("\n", position, begin)
        token, end, fault = text[begin : begin + 1], begin + 1, None
        if token == "{":
            try:
                token, end = _DECODER.raw_decode(text, begin)
                if _SURROGATE.search(text, begin, end):
                    json.dumps(token, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as problem:
                fault = problem
        is_cut = token == "" or (isinstance(fault, json.JSONDecodeError) and fault.pos >= len(text.rstrip()) - 1)
        if is_cut and (block := _read_block(numbered, len(text) - begin)):
            text, position = text[begin:] + block, 0
            continue
        if fault is not None:
            fault_line = line + text.count("\n", begin, getattr(fault, "pos", begin))
            raise json_error(fault, f"{name}:{fault_line}", "an array of objects") from None
        yield line, token
        if token == "":
            return
        line += text.count("\n", begin, end)
        position = end


def _read_block(numbered: NumberedLines, minimum: int) -> str:
    """Lines of at least so many characters, each behind a newline; empty at the end of the file."""
    parts, characters = list[str](), 0
    for _, line in numbered:
        parts.append("\n" + line)
        characters += len(line) + 1
        if characters >= max(_BLOCK_CHARACTERS, minimum):
            break
    return "".join(parts)


def _question_id(entry: dict[str, Any], position: int) -> Any:
    return next((entry[field] for field in QUESTION_ID_FIELDS if entry.get(field) is not None), position)


def _read_passages(
    entry: dict[str, Any], field: str, by_id: dict[str, dict[str, Any]], excluded: frozenset[str], where: str
) -> list[dict[str, Any]]:
    contexts = entry.get(field)
    if not isinstance(contexts, list | None):
        raise DataError(f"{where}: {field} is not a list")
    passages = []
    for context in contexts or ():
        if not isinstance(context, dict) or not isinstance(context.get("text"), str) or not isinstance(context.get("title") or "", str):
            raise DataError(f"{where}: {field}: expected contexts with a text and a title, both strings")
        passage = {name: value for name, value in context.items() if name not in (*CONTEXT_ID_FIELDS, *_CONTEXT_SCORES)}
        passage["title"] = context.get("title") or ""
        digest = hashlib.sha256(f"{passage['title']}\n{passage['text']}".encode()).hexdigest()[:16]
        context_id = next((context[key] for key in CONTEXT_ID_FIELDS if context.get(key) not in (None, "")), digest)
        if isinstance(context_id, bool) or not isinstance(context_id, str | int):
            raise DataError(f"{where}: {field}: id of a context is not a string: {context_id!r}")
        passage["docid"] = str(context_id)
        if passage["docid"] in excluded:
            continue
        if any(by_id.get(passage["docid"], passage)[name] != passage[name] for name in ("title", "text")):
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
