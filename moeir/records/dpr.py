"""DPR's files: a JSON array of questions with answers and contexts.

A question's id is its `question_id`, or its position in the file from 0, so that queries, answers and examples read from one file agree.
An array is read entry by entry: memory holds one entry, however large the file, unless it is a single line.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from moeir.errors import DataError
from moeir.parsing import preview

log = logging.getLogger(__name__)
NumberedLines = Iterator[tuple[int, str]]

_ARRAY_START = re.compile(r"\s*\[\s*(\{|$)")
_SEPARATORS = re.compile(r"[\s,]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder()
_BLOCK_CHARACTERS = 1 << 20
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
    line, text = next(numbered)
    position = text.find("[") + 1
    while True:
        separators = _SEPARATORS.match(text, position)
        assert separators is not None
        line, position = line + separators[0].count("\n"), separators.end()
        if text.startswith("]", position):
            break
        try:
            entry, end = _DECODER.raw_decode(text, position)
            if _SURROGATE.search(text, position, end):
                json.dumps(entry, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as fault:
            offset = getattr(fault, "pos", position)
            is_cut = isinstance(fault, json.JSONDecodeError) and offset >= len(text.rstrip()) - 1
            if is_cut and (block := _read_block(numbered, len(text) - position)):
                text, position = text[position:] + block, 0
                continue
            line += text.count("\n", position, offset)
            raise json_error(fault, f"{name}:{line}", "an array of objects") from None
        if not isinstance(entry, dict):
            raise DataError(f"{name}:{line}: expected an object in the array, found {preview(entry)}")
        yield f"{name}:{line}", entry
        line, position = line + text.count("\n", position, end), end
    if text[position + 1 :].strip() or any(following.strip() for _, following in numbered):
        raise DataError(f"{name}:{line}: expected nothing more behind the array")


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
    gets a digest of its title and text as id. Duplicates count once, and what has the id or the text of a positive is no negative.
    """
    if "positive_ctxs" not in entry:
        return entry
    if not isinstance(entry.get("question"), str):
        raise DataError(f"{where}: no question; expected a string")
    passages: dict[str, dict[str, Any]] = {}
    positives = _read_passages(entry, "positive_ctxs", passages, frozenset(), where)
    if not positives:
        return None
    excluded = frozenset(passages) | set(map(_hash_passage, positives))
    read_fields = {"question", "positive_ctxs", "hard_negative_ctxs", *QUESTION_ID_FIELDS}
    negatives = _read_passages(entry, "hard_negative_ctxs", passages, excluded, where)
    if not negatives:  # or all are positives
        negatives = _read_passages(entry, "negative_ctxs", passages, excluded, where)
        read_fields.add("negative_ctxs")
    record = {name: value for name, value in entry.items() if name not in read_fields}
    sides = {"positive_passages": positives, "negative_passages": negatives}
    return {**record, "query_id": _question_id(entry, position), "query": entry["question"], **sides}


def json_error(fault: Exception, where: str, expected: str, column: str = "") -> DataError:
    """The error for JSON that cannot be decoded."""
    if isinstance(fault, UnicodeEncodeError):
        return DataError(f"{where}: broken JSON: an escape is half a character (a lone surrogate)")
    reason = fault.msg if isinstance(fault, json.JSONDecodeError) else str(fault)
    return DataError(f"{where}: broken JSON{column}: {reason}; expected {expected}")


def _read_block(numbered: NumberedLines, minimum: int) -> str:
    """Lines of at least so many characters, each behind a newline; empty at the end of the file."""
    parts, characters = list[str](), 0
    for _, line in numbered:
        parts.append("\n" + line)
        characters += len(line) + 1
        if characters >= max(_BLOCK_CHARACTERS, minimum):
            break
    return "".join(parts)


def _hash_passage(passage: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{passage['title']}\n{passage['text']}".encode()).hexdigest()[:16]


def _question_id(entry: dict[str, Any], position: int) -> Any:
    return next((entry[field] for field in QUESTION_ID_FIELDS if entry.get(field) is not None), position)


def _read_passages(
    entry: dict[str, Any], field: str, by_id: dict[str, dict[str, Any]], excluded: frozenset[str], where: str
) -> list[dict[str, Any]]:
    """The passages of a field of an entry, without those whose id or digest is `excluded`; all of the entry so far are in `by_id`."""
    contexts = entry.get(field)
    if not isinstance(contexts, list | None):
        raise DataError(f"{where}: {field} is not a list")
    passages = []
    for context in contexts or ():
        if not isinstance(context, dict) or not isinstance(context.get("text"), str) or not isinstance(context.get("title") or "", str):
            raise DataError(f"{where}: {field}: expected contexts with a text and a title, both strings")
        passage = {name: value for name, value in context.items() if name not in (*CONTEXT_ID_FIELDS, *_CONTEXT_SCORES)}
        passage["title"] = context.get("title") or ""
        digest = _hash_passage(passage)
        context_id = next((context[key] for key in CONTEXT_ID_FIELDS if context.get(key) not in (None, "")), digest)
        if isinstance(context_id, bool) or not isinstance(context_id, str | int):
            raise DataError(f"{where}: {field}: id of a context is not a string: {context_id!r}")
        passage["docid"] = str(context_id)
        if passage["docid"] in excluded or digest in excluded:
            continue
        if any(by_id.get(passage["docid"], passage)[name] != passage[name] for name in ("title", "text")):
            passage["docid"] = digest
        if passage["docid"] not in by_id:
            by_id[passage["docid"]] = passage
            passages.append(passage)
    return passages
