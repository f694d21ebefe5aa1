"""DPR's training files: one JSON array of questions with contexts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.formats.base import PROVENANCE, TEACHER_SCORES, URL, Conversion, Format, title_and_text
from moeir.records import dpr, examples, lines, texts
from moeir.records.examples import Example

_SIDES = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")


class Dpr(Format):
    """One JSON array of {"question", "answers", "positive_ctxs", "hard_negative_ctxs"}, each a title and a text: DPR's training files."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        with lines.open_lines(path) as numbered:
            nonempty_lines = ((number, line) for number, line in numbered if line.strip())
            for position, (where, entry) in enumerate(dpr.read_array(lines.source_name(path), nonempty_lines)):
                record = dpr.example_record(entry, position, where)
                if record is None:
                    conversion.drop_or_refuse(where, "a question without a positive context")
                    continue
                _drop_unread(entry, where, conversion)
                example = examples.parse_example(record, where, provenance=False)
                assert example.query is not None
                answers = texts.parse_text({"id": "q", "text": "", "answers": entry.get("answers")}, where).answers
                yield replace(example, query=replace(example.query, answers=answers))

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.open_writer(path) as output:
            output.write("[")
            for example in items:
                output.write((",\n" if count else "\n") + json.dumps(_to_entry(example, conversion), ensure_ascii=False))
                count += 1
            output.write("\n]\n")
        return count


def _drop_unread(entry: dict[str, Any], where: str, conversion: Conversion) -> None:
    """Drop or refuse unread parts of an entry: other fields, scores of contexts, and easy negatives where there are hard ones."""
    conversion.drop_unread_fields(where, entry, ("question", "answers", *_SIDES, *dpr.QUESTION_ID_FIELDS))
    if entry.get("hard_negative_ctxs") and entry.get("negative_ctxs"):
        conversion.drop_or_refuse(where, "field 'negative_ctxs' beside 'hard_negative_ctxs'")
    for side in _SIDES:
        for context in entry.get(side) or []:
            conversion.drop_unread_fields(where, context, ("title", "text", *dpr.CONTEXT_ID_FIELDS))


def _to_entry(example: Example, conversion: Conversion) -> dict[str, Any]:
    query, passages = conversion.look_up_texts(example, [PROVENANCE, TEACHER_SCORES, URL])

    def contexts(ids: tuple[str, ...]) -> list[dict[str, str]]:
        return [{"title": passages[document].title, "text": passages[document].text, "passage_id": document} for document in ids]

    return {
        "question_id": example.query_id,
        "question": title_and_text(query),
        "answers": list(query.answers),
        "positive_ctxs": contexts(example.positive_ids),
        "negative_ctxs": [],
        "hard_negative_ctxs": contexts(example.negative_ids),
    }
