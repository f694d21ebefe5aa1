"""Training files of MS MARCO by id, whose texts are in a collection: triples, and hard negatives by the systems that found them."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, unread_fields
from moeir.formats.colbert import read_triples
from moeir.records import texts
from moeir.records.examples import Example, group_by_query


class IdTriples(Format):
    """Tab-separated ids of a query, a positive and a negative (MS MARCO's qidpidtriples), or JSON lists, with scores as ColBERT's."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        return group_by_query(read_triples(path), conversion.drop_or_refuse)


class MsmarcoHardNegatives(Format):
    """JSON lines {"qid", "pos", "neg"} of ids, the negatives by system: sentence-transformers' msmarco-hard-negatives."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        def rows() -> Iterator[tuple[str, Example]]:
            for where, record in texts.read_objects(path):
                systems = record.get("neg")
                lists = [record.get("pos"), *(systems.values() if isinstance(systems, dict) else [systems])]
                if not all(isinstance(ids, list) for ids in lists):
                    raise DataError(f"{where}: expected qid, pos and neg, lists of ids or, of neg, a list by system")
                losses = {"a query without a positive": not lists[0], "which system found a negative": len(lists) > 2}
                conversion.drop_nonempty(where, losses)
                positives, negatives = (
                    tuple(texts.parse_id(document, where) for document in side) for side in (lists[0], chain.from_iterable(lists[1:]))
                )
                if positives:
                    extra = unread_fields(record, ("qid", "pos", "neg"))
                    yield where, Example(texts.parse_id(record.get("qid"), where), positives, negatives, extra=extra)

        return group_by_query(rows(), conversion.drop_or_refuse)
