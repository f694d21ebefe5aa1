"""FlagEmbedding's training examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import ANSWERS, IDS, PROVENANCE, Conversion, Format, flatten_title, text_digest, title_and_text, unread_fields
from moeir.records import examples, texts
from moeir.records.examples import Example, group_by_query

_FIELDS = ("query", "pos", "neg", "pos_scores", "neg_scores")
_SIDES = {"positive": "pos", "negative": "neg"}


class Flagembedding(Format):
    """JSON lines {"query", "pos", "neg"} of texts, with teacher scores `pos_scores` and `neg_scores`: FlagEmbedding's.

    A text's id is its digest. Lines of the same query are merged.
    """

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        """The examples; lines of the same query become one."""

        def rows() -> Iterator[tuple[str, Example]]:
            for where, record in texts.read_objects(path):
                conversion.drop_fields(where, unread_fields(record, _FIELDS))
                yield where, _parse_record(record, where)

        return group_by_query(rows(), conversion.drop_or_refuse)

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        where, fields = f"query {item.query_id!r}", examples.teacher_fields(item)
        query, passages = conversion.look_up_texts(item, [PROVENANCE, ANSWERS, IDS])
        record: dict[str, Any] = {"query": title_and_text(query)}
        for name, ids in (("pos", item.positive_ids), ("neg", item.negative_ids)):
            record[name] = [flatten_title(passages[document], where, conversion) for document in ids]
        return record | {f"{name}_scores": fields[f"{side}_scores"] for side, name in _SIDES.items() if item.positive_scores}


def _parse_record(record: dict[str, Any], where: str) -> Example:
    if not isinstance(query := record.get("query"), str):
        raise DataError(f"{where}: an object with query, pos and neg was expected")
    has_scores = record.get("pos_scores") or record.get("neg_scores")
    converted: dict[str, Any] = {"query": query, "query_id": text_digest(query)}
    for side, name in _SIDES.items():
        words = record.get(name)
        words = [] if words is None else words
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{where}: {name} is not a list of strings")
        converted[f"{side}_passages"] = [{"docid": text_digest(text), "text": text} for text in words]
        if has_scores and record.get(f"{name}_scores") is not None:  # its miner writes empty lists
            converted[f"{side}_scores"] = record[f"{name}_scores"]
    return examples.parse_example(converted, where, provenance=False, unique=False)
