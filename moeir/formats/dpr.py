"""DPR's training files: one JSON array of questions with contexts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from moeir.formats.base import Conversion, Format, whole
from moeir.records import dpr, examples, lines, texts
from moeir.records.examples import Example

_FIELDS = (
    *("question", "answers", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs", "dataset"),
    *("question_id", "_id", "id", "query_id", "qid"),
)
_CONTEXT = ("title", "text", "passage_id", "psg_id", "docid", "_id", "id")


class Dpr(Format):
    """One JSON array of {"question", "answers", "positive_ctxs", "hard_negative_ctxs"}, each a title and a text: DPR's training files."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        with lines.opened(path) as numbered:
            nonempty_lines = ((number, line) for number, line in numbered if line.strip())
            for position, (where, entry) in enumerate(dpr.entries(lines.label(path), nonempty_lines)):
                record = dpr.example(entry, position, where)
                if record is None:
                    conversion.lose(where, "a question without a positive context")
                    continue
                _lose(entry, where, conversion)
                example = examples.parsed(record, where, provenance=False)
                assert example.query is not None
                answers = texts.parsed({"id": "q", "text": "", "answers": entry.get("answers")}, where).answers
                yield replace(example, query=replace(example.query, answers=answers))

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.writer(path) as output:
            output.write("[")
            for example in items:
                output.write((",\n" if count else "\n") + json.dumps(_entry(example, conversion), ensure_ascii=False))
                count += 1
            output.write("\n]\n")
        return count


def _lose(entry: dict[str, Any], where: str, conversion: Conversion) -> None:
    """Drop or refuse unread parts of an entry: other fields, scores of contexts, and easy negatives where there are hard ones."""
    conversion.lose_fields(where, entry, _FIELDS)
    if entry.get("dataset"):
        conversion.lose(where, "field 'dataset'")
    if entry.get("hard_negative_ctxs") and entry.get("negative_ctxs"):
        conversion.lose(where, "field 'negative_ctxs' beside 'hard_negative_ctxs'")
    for side in ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs"):
        for context in entry.get(side) or []:
            conversion.lose_fields(where, context, _CONTEXT)


def _entry(example: Example, conversion: Conversion) -> dict[str, Any]:
    where = f"query {example.query_id!r}"
    example = conversion.with_texts(example, where)
    assert example.query is not None
    for what, present in (
        ("field 'negative_provenance'", example.provenance),
        ("a teacher's scores", example.positive_scores),
        ("field 'url'", any(passage.url for passage in example.passages)),
    ):
        if present:
            conversion.lose(where, what)
    passages = {passage.id: passage for passage in example.passages}

    def contexts(ids: tuple[str, ...]) -> list[dict[str, str]]:
        return [{"title": passages[document].title, "text": passages[document].text, "passage_id": document} for document in ids]

    return {
        "question_id": example.query_id,
        "question": whole(example.query),
        "answers": list(example.query.answers),
        "positive_ctxs": contexts(example.positive_ids),
        "negative_ctxs": [],
        "hard_negative_ctxs": contexts(example.negative_ids),
    }
