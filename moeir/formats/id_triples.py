"""Training files of MS MARCO by id, whose texts are in a collection: triples, and hard negatives by the systems that found them."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format
from moeir.formats.colbert import parse_entry, read_triples
from moeir.formats.examples import GroupByQuery, read_objects
from moeir.records import texts
from moeir.records.examples import Example


class IdTriples(Format):
    """Tab-separated ids of a query, a positive and a negative (MS MARCO's qidpidtriples), or JSON lists, with scores as ColBERT's."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = GroupByQuery(conversion)
        for where, row in read_triples(path):
            (query, _), (positive, score), *negatives = (parse_entry(entry, where) for entry in row)
            scores = {name: number for name, number in ((positive, score), *negatives) if number is not None}
            grouped.add(where, query, positive, [name for name, _ in negatives], scores)
        yield from grouped.examples()


class MsmarcoHardNegatives(Format):
    """JSON lines {"qid", "pos", "neg"} of ids, the negatives by system: sentence-transformers' msmarco-hard-negatives."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = GroupByQuery(conversion)
        for where, record in read_objects(path):
            query, positives, systems = (record.get(name) for name in ("qid", "pos", "neg"))
            lists = [positives, *(systems.values() if isinstance(systems, dict) else [systems])]
            if not all(isinstance(ids, list) for ids in lists):
                raise DataError(f"{where}: expected qid, pos and neg, lists of ids or, of neg, a list by system")
            losses = {"a query without a positive": not positives, "which system found a negative": len(lists) > 2}
            conversion.drop_nonempty(where, losses)
            conversion.drop_unread_fields(where, record, ("qid", "pos", "neg"))
            negatives = [texts.parse_id(document, where) for document in chain.from_iterable(lists[1:])]
            for positive in lists[0]:
                grouped.add(where, texts.parse_id(query, where), texts.parse_id(positive, where), negatives)
        yield from grouped.examples()
