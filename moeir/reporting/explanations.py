"""Explanations of documents for an HTML page, in columns, with each string stored once per query.

Each document has the largest terms of an expert with terms, and its best token for each query token of an expert with tokens.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

MAX_TERMS = 10
ExplanationLine = Mapping[str, Any]


class Explanations:
    """Explanations by query and document, of the documents in `documents_of(query)` only. Those of a query come one after another."""

    def __init__(
        self, explanations: Iterable[ExplanationLine] = (), documents_of: Callable[[str], Sequence[str]] = lambda query: ()
    ) -> None:
        self._packed: dict[str, str] = {}  # as JSON text per query: a tenth of the memory of lists
        self.document_count = 0
        for query, group in groupby(explanations, key=lambda line: str(line["query"])):
            names = documents_of(query)
            experts_of: dict[str, Mapping[str, Any]] = {
                line["document"]: line["experts"] for line in group if line["document"] in set(names)
            }
            self.document_count += len(experts_of)
            self._packed[query] = json.dumps(_pack_columns([experts_of.get(name) for name in names]) if experts_of else {})

    def for_query(self, query: str) -> dict[str, Any]:
        """By document the parts `p` of experts `x` in the fused score, terms `t` and tokens `k` by expert, with their words `w`.

        Terms are lists of word, weight in the query and in the document; tokens of query word, document word (-1 if unknown), similarity.
        """
        return dict(json.loads(self._packed.get(query, "{}")))


def _pack_columns(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Explanations of the documents of a query in columns, None for documents without one, each string once."""
    codes: dict[str, int] = {}

    def encode(word: str | None) -> int:
        return -1 if word is None else codes.setdefault(word, len(codes))

    def encode_fields(entries: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> list[float]:
        values = (entry.get(field) for entry in entries for field in fields)
        return [encode(value) if isinstance(value, str | None) else _round_digits(value) for value in values]

    experts = list(dict.fromkeys(expert for row in rows for expert in row or ()))
    columns: dict[str, Any] = {"x": experts}
    if any(evidence.get("part") is not None for row in rows for evidence in (row or {}).values()):
        columns["p"] = [row and [_round_digits(row.get(expert, {}).get("part"), 4) for expert in experts] for row in rows]
    for expert in experts:
        evidence = [(row or {}).get(expert, {}) for row in rows]
        terms = [encode_fields(entry.get("terms", ())[:MAX_TERMS], ("term", "query", "document")) for entry in evidence]
        tokens = [encode_fields(entry.get("tokens", ()), ("query", "document", "similarity")) for entry in evidence]
        for name, lists in (("t", terms), ("k", tokens)):
            if any(lists):
                columns.setdefault(name, {})[expert] = lists
    return columns | {"w": list(codes)}


def _round_digits(number: Any, count: int = 3) -> Any:
    """Round to `count` significant digits; a whole number becomes an int, None stays."""
    if number is None:
        return None
    short = float(f"{number:.{count}g}")
    return int(short) if short.is_integer() else short
