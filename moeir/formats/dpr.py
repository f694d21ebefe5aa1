"""DPR's training files: one JSON array of questions with contexts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeir.formats.base import Conversion, Format, title_and_text
from moeir.formats.examples import Examples
from moeir.records import examples, lines
from moeir.records.examples import Example


class Dpr(Examples, Format):
    """One JSON array of {"question", "answers", "positive_ctxs", "hard_negative_ctxs"}, each a title and a text: DPR's training files."""

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.open_writer(path) as output:
            output.write("[")
            for example in items:
                output.write((",\n" if count else "\n") + json.dumps(_to_entry(example, conversion), ensure_ascii=False))
                count += 1
            output.write("\n]\n")
        return count


def _to_entry(example: Example, conversion: Conversion) -> dict[str, Any]:
    query, passages = conversion.look_up_texts(example, [])

    def contexts(ids: tuple[str, ...]) -> list[dict[str, Any]]:
        return [
            {"title": passage.title, "text": passage.text, "passage_id": passage.id} | ({"url": passage.url} if passage.url else {})
            for passage in map(passages.__getitem__, ids)
        ]

    entry = {
        "question_id": example.query_id,
        "question": title_and_text(query),
        "answers": list(query.answers),
        "positive_ctxs": contexts(example.positive_ids),
        "negative_ctxs": [],
        "hard_negative_ctxs": contexts(example.negative_ids),
    }
    return entry | examples.teacher_fields(example)
