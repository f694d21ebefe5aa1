"""Why documents were found, for a page: what `search --explain` says, its strings told once for each query.

Of an expert with terms, each document has the largest of them; of one with tokens, the best token of the document for each of the query.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from moeir.errors import DataError

MOST_TERMS = 10
Explanation = Mapping[str, Any]


class Reasons:
    """Explanations by query and document; those `wanted` only, others pass by. The lines of a query stand together."""

    def __init__(self, explanations: Iterable[Explanation] = (), documents_of: Callable[[str], Sequence[str]] = lambda query: ()) -> None:
        self._packed: dict[str, str] = {}  # as text, a query at a time: a tenth of what lists of numbers take
        self.documents = 0
        for query, group in groupby(explanations, key=lambda line: str(line["query"])):
            if query in self._packed:
                raise DataError(f"explanations of query {query!r} stand in two places; expected all of a query together")
            names = documents_of(query)
            experts_of: dict[str, Mapping[str, Any]] = {
                line["document"]: line["experts"] for line in group if line["document"] in set(names)
            }
            self.documents += len(experts_of)
            self._packed[query] = json.dumps(_columns([experts_of.get(name) for name in names]) if experts_of else {})

    def of(self, query: str) -> dict[str, Any]:
        """By document the parts `p` of experts `x` in the fused score, terms `t` and tokens `k` by expert, with the words `w` they name.

        Terms are lists of word, weight; the weights in the query, `q`, stand apart. Tokens are lists of word, word in the document
        (-1 where it is not known), similarity.
        """
        return dict(json.loads(self._packed.get(query, "{}")))


def _columns(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """What experts say of the documents of a query, None where nothing is said, its strings told once."""
    words: dict[str, int] = {}
    experts = list(dict.fromkeys(expert for row in rows if row for expert in row))
    columns: dict[str, Any] = {"x": experts}
    if any(evidence.get("part") is not None for row in rows if row for evidence in row.values()):
        columns["p"] = [row and [_digits(row.get(expert, {}).get("part"), 4) for expert in experts] for row in rows]
    for expert in experts:
        evidence = [row.get(expert, {}) if row else {} for row in rows]
        if any("terms" in entry for entry in evidence):
            columns.setdefault("t", {})[expert] = _terms(evidence, words)
        if any("tokens" in entry for entry in evidence):
            columns.setdefault("k", {})[expert] = [_tokens(entry["tokens"], words) if "tokens" in entry else None for entry in evidence]
    return columns | {"w": list(words)}


def _terms(evidence: Sequence[Mapping[str, Any]], words: dict[str, int]) -> dict[str, Any]:
    query_weights: dict[int, float] = {}
    documents: list[list[float] | None] = []
    for entry in evidence:
        flat: list[float] = []
        for term in entry.get("terms", ())[:MOST_TERMS]:
            word = words.setdefault(term["term"], len(words))
            query_weights[word] = _digits(term["query"])
            flat += [word, _digits(term["document"])]
        documents.append(flat if "terms" in entry else None)
    return {"q": [number for pair in query_weights.items() for number in pair], "d": documents}


def _tokens(tokens: Sequence[Mapping[str, Any]], words: dict[str, int]) -> list[float]:
    flat: list[float] = []
    for token in tokens:
        query_word, document_word = (
            -1 if name is None else words.setdefault(name, len(words)) for name in (token["query"], token.get("document"))
        )
        flat += [query_word, document_word, _digits(token["similarity"])]
    return flat


def _digits(number: Any, count: int = 3) -> Any:
    """As a reader needs it; a whole number without its point, None as it is."""
    if number is None:
        return None
    short = float(f"{number:.{count}g}")
    return int(short) if short.is_integer() else short


def checked(line: Any, where: str) -> Explanation:
    """A line of an explanation as `search --explain` writes it; DataError for another."""
    fields = {"query": str, "document": str, "experts": dict}
    if not isinstance(line, dict) or not all(isinstance(line.get(name), kind) for name, kind in fields.items()):
        raise DataError(f"{where}: expected a line of search --explain, an object with query, document and experts")
    try:
        _columns([line["experts"]])
    except (KeyError, TypeError, ValueError, AttributeError):
        expected = "expected of each expert its rank, score and part, terms or tokens, as search --explain writes them"
        raise DataError(f"{where}: {expected}") from None
    return line
