"""DPR's training files: one JSON array of questions with contexts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.formats.base import Conversion, Format, title_and_text
from moeir.formats.examples import OWN_FIELDS, own_fields
from moeir.records import dpr, examples, lines
from moeir.records.examples import Example
from moeir.records.texts import Text

_SIDES = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")


class Dpr(Format):
    """One JSON array of {"question", "answers", "positive_ctxs", "hard_negative_ctxs"}, each a title and a text: DPR's training files."""

    kind = "examples"
    keeps_fields = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        with lines.open_lines(path) as numbered:
            nonempty_lines = ((number, line) for number, line in numbered if line.strip())
            for position, (where, entry) in enumerate(dpr.read_array(lines.source_name(path), nonempty_lines)):
                record = dpr.example_record(entry, position, where)
                if record is None:
                    conversion.drop_or_refuse(where, "a question without a positive context")
                    continue
                if entry.get("hard_negative_ctxs") and entry.get("negative_ctxs"):
                    conversion.drop_or_refuse(where, "field 'negative_ctxs' beside 'hard_negative_ctxs'")
                own = {name: entry[name] for name in (*OWN_FIELDS, "answers") if name in entry}
                example = examples.parse_example(record | own, where, provenance=True)
                extra = conversion.collect_fields(where, entry, ("question", "answers", *OWN_FIELDS, *_SIDES, *dpr.QUESTION_ID_FIELDS))
                yield replace(example, passages=_collect_contexts(where, entry, example, conversion), extra=extra)

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.open_writer(path) as output:
            output.write("[")
            for example in items:
                output.write((",\n" if count else "\n") + json.dumps(_to_entry(example, conversion), ensure_ascii=False))
                count += 1
            output.write("\n]\n")
        return count


def _collect_contexts(where: str, entry: dict[str, Any], example: Example, conversion: Conversion) -> tuple[Text, ...]:
    """The passages of an example with the fields of their contexts that are not read, such as scores."""
    known = ("title", "text", "url", *dpr.CONTEXT_ID_FIELDS)
    by_text: dict[tuple[Any, Any], tuple[str, dict[str, Any] | None]] = {}
    for context in (context for side in _SIDES for context in entry.get(side) or [] if isinstance(context, dict)):
        key = (context.get("title") or "", context.get("text"))
        by_text.setdefault(key, (context.get("url") or "", conversion.collect_fields(where, context, known)))
    passages = [(passage, *by_text[passage.title, passage.text]) for passage in example.passages]
    return tuple(replace(passage, url=url, extra=extra) for passage, url, extra in passages)


def _to_entry(example: Example, conversion: Conversion) -> dict[str, Any]:
    where, (query, passages) = f"query {example.query_id!r}", conversion.look_up_texts(example, [])

    def contexts(ids: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        for passage in map(passages.__getitem__, ids):
            context = {"title": passage.title, "text": passage.text, "passage_id": passage.id}
            yield conversion.add_fields(where, context | ({"url": passage.url} if passage.url else {}), passage.extra)

    entry = {
        "question_id": example.query_id,
        "question": title_and_text(query),
        "answers": list(query.answers),
        "positive_ctxs": list(contexts(example.positive_ids)),
        "negative_ctxs": [],
        "hard_negative_ctxs": list(contexts(example.negative_ids)),
    }
    return conversion.add_fields(where, entry | own_fields(example), example.extra)
