"""Explanations of `search --explain` for an HTML page, in columns, with each string stored once per query.

Each document has the largest terms of an expert with terms, and its best token for each query token of an expert with tokens.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from moeir.errors import DataError

MAX_TERMS = 10
ExplanationLine = Mapping[str, Any]


class Explanations:
    """Explanations by query and document, of the documents in `documents_of(query)` only. Lines of a query must be contiguous."""

    def __init__(
        self, explanations: Iterable[ExplanationLine] = (), documents_of: Callable[[str], Sequence[str]] = lambda query: ()
    ) -> None:
        self._packed: dict[str, str] = {}  # as JSON text per query: a tenth of the memory of lists
        self.document_count = 0
        for query, group in groupby(explanations, key=lambda line: str(line["query"])):
            if query in self._packed:
                raise DataError(f"explanations of query {query!r} are not contiguous; expected all lines of a query together")
            names = documents_of(query)
            experts_of: dict[str, Mapping[str, Any]] = {
                line["document"]: line["experts"] for line in group if line["document"] in set(names)
            }
            self.document_count += len(experts_of)
            self._packed[query] = json.dumps(_pack_columns([experts_of.get(name) for name in names]) if experts_of else {})

    def for_query(self, query: str) -> dict[str, Any]:
        """By document the parts `p` of experts `x` in the fused score, terms `t` and tokens `k` by expert, with their words `w`.

        Terms are lists of word, weight; query weights are apart in `q`. Tokens are lists of query word, document word (-1 if
        unknown), similarity.
        """
        return dict(json.loads(self._packed.get(query, "{}")))


def _pack_columns(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Explanations of the documents of a query in columns, None for documents without one, each string once."""
    words: dict[str, int] = {}
    experts = list(dict.fromkeys(expert for row in rows if row for expert in row))
    columns: dict[str, Any] = {"x": experts}
    if any(evidence.get("part") is not None for row in rows if row for evidence in row.values()):
        columns["p"] = [row and [_round_digits(row.get(expert, {}).get("part"), 4) for expert in experts] for row in rows]
    for expert in experts:
        evidence = [row.get(expert, {}) if row else {} for row in rows]
        if any("terms" in entry for entry in evidence):
            columns.setdefault("t", {})[expert] = _pack_terms(evidence, words)
        if any("tokens" in entry for entry in evidence):
            columns.setdefault("k", {})[expert] = [
                _pack_tokens(entry["tokens"], words) if "tokens" in entry else None for entry in evidence
            ]
    return columns | {"w": list(words)}


def _pack_terms(evidence: Sequence[Mapping[str, Any]], words: dict[str, int]) -> dict[str, Any]:
    query_weights: dict[int, float] = {}
    documents: list[list[float] | None] = []
    for entry in evidence:
        flat: list[float] = []
        for term in entry.get("terms", ())[:MAX_TERMS]:
            word = words.setdefault(term["term"], len(words))
            query_weights[word] = _round_digits(term["query"])
            flat += [word, _round_digits(term["document"])]
        documents.append(flat if "terms" in entry else None)
    return {"q": [number for pair in query_weights.items() for number in pair], "d": documents}


def _pack_tokens(tokens: Sequence[Mapping[str, Any]], words: dict[str, int]) -> list[float]:
    flat: list[float] = []
    for token in tokens:
        query_word, document_word = (
            -1 if name is None else words.setdefault(name, len(words)) for name in (token["query"], token.get("document"))
        )
        flat += [query_word, document_word, _round_digits(token["similarity"])]
    return flat


def _round_digits(number: Any, count: int = 3) -> Any:
    """Round to `count` significant digits; a whole number becomes an int, None stays."""
    if number is None:
        return None
    short = float(f"{number:.{count}g}")
    return int(short) if short.is_integer() else short


def check_explanation(line: Any, where: str) -> ExplanationLine:
    """Return the line if it has the form that `search --explain` writes; else raise DataError."""
    fields = {"query": str, "document": str, "experts": dict}
    if not isinstance(line, dict) or not all(isinstance(line.get(name), kind) for name, kind in fields.items()):
        raise DataError(f"{where}: expected a line of search --explain, an object with query, document and experts")
    try:
        _pack_columns([line["experts"]])
    except (KeyError, TypeError, ValueError, AttributeError):
        expected = "expected of each expert its rank, score and part, terms or tokens, as search --explain writes them"
        raise DataError(f"{where}: {expected}") from None
    return line
