"""FlagEmbedding's training examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, flatten_title, optional_fields, title_and_text, unread_fields
from moeir.formats.examples import OWN_FIELDS, has_digest_id, text_digest
from moeir.records import examples, texts
from moeir.records.examples import Example, group_by_query

_ID_FIELDS = ("query_id", "pos_id", "neg_id")
_FIELDS = ("query", "pos", "neg", "pos_scores", "neg_scores", "answers", *_ID_FIELDS, *OWN_FIELDS)
_SIDES = {"positive": "pos", "negative": "neg"}


class Flagembedding(Format):
    """JSON lines {"query", "pos", "neg"} of texts, with teacher scores `pos_scores` and `neg_scores`: FlagEmbedding's.

    Ids are kept in `query_id`, `pos_id` and `neg_id`, which its trainer ignores; without them a text's id is its digest. Lines of the
    same query are merged.
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
        where = f"query {item.query_id!r}"
        query, passages = conversion.look_up_texts(item, [])
        record: dict[str, Any] = {"query": title_and_text(query)}
        for name, ids in (("pos", item.positive_ids), ("neg", item.negative_ids)):
            record[name] = [flatten_title(passages[document], where, conversion) for document in ids]
        if not all(map(has_digest_id, (query, *passages.values()))):
            record |= dict(zip(_ID_FIELDS, (item.query_id, list(item.positive_ids), list(item.negative_ids)), strict=True))
        own = examples.teacher_fields(item)
        scores = {f"{name}_scores": own.pop(f"{side}_scores") for side, name in _SIDES.items() if item.positive_scores}
        return record | scores | optional_fields(query) | own


def _parse_record(record: dict[str, Any], where: str) -> Example:
    if not isinstance(query := record.get("query"), str):
        raise DataError(f"{where}: an object with query, pos and neg was expected")
    query_id, has_scores = record.get("query_id"), record.get("pos_scores") or record.get("neg_scores")
    converted: dict[str, Any] = {"query": query, "query_id": text_digest(query) if query_id in (None, "") else query_id}
    for side, name in _SIDES.items():
        words = record.get(name)
        words = [] if words is None else words
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{where}: {name} is not a list of strings")
        ids = record.get(f"{name}_id") or list(map(text_digest, words))
        if not isinstance(ids, list) or len(ids) != len(words):
            raise DataError(f"{where}: {name}_id does not have {len(words)} entries, as many as {name}")
        converted[f"{side}_passages"] = [{"docid": document, "text": text} for document, text in zip(ids, words, strict=True)]
        if has_scores and record.get(f"{name}_scores") is not None:  # its miner writes empty lists
            converted[f"{side}_scores"] = record[f"{name}_scores"]
    converted |= {name: record[name] for name in ("negative_provenance", "answers") if name in record}
    return examples.parse_example(converted, where, provenance=True, unique=False)
