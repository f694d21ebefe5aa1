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

    def __init__(self, explanations: Iterable[Explanation] = (), wanted: Callable[[str], Sequence[str]] = lambda query: ()) -> None:
        self._packed: dict[str, str] = {}  # as text, a query at a time: a tenth of what lists of numbers take
        self.documents = 0
        for query, group in groupby(explanations, key=lambda one: str(one["query"])):
            if query in self._packed:
                raise DataError(f"explanations of query {query!r} stand in two places; expected all of a query together")
            names = wanted(query)
            held: dict[str, Mapping[str, Any]] = {one["document"]: one["experts"] for one in group if one["document"] in set(names)}
            self.documents += len(held)
            self._packed[query] = json.dumps(_columns([held.get(name) for name in names]) if held else {})

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
    found: dict[str, Any] = {"x": experts}
    if any(said.get("part") is not None for row in rows if row for said in row.values()):
        found["p"] = [row and [_digits(row.get(expert, {}).get("part"), 4) for expert in experts] for row in rows]
    for expert in experts:
        said = [row.get(expert, {}) if row else {} for row in rows]
        if any("terms" in one for one in said):
            found.setdefault("t", {})[expert] = _terms(said, words)
        if any("tokens" in one for one in said):
            found.setdefault("k", {})[expert] = [_tokens(one["tokens"], words) if "tokens" in one else None for one in said]
    return found | {"w": list(words)}


def _terms(said: Sequence[Mapping[str, Any]], words: dict[str, int]) -> dict[str, Any]:
    asked: dict[int, float] = {}
    documents: list[list[float] | None] = []
    for one in said:
        flat: list[float] = []
        for term in one.get("terms", ())[:MOST_TERMS]:
            place = words.setdefault(term["term"], len(words))
            asked[place] = _digits(term["query"])
            flat += [place, _digits(term["document"])]
        documents.append(flat if "terms" in one else None)
    return {"q": [number for pair in asked.items() for number in pair], "d": documents}


def _tokens(tokens: Sequence[Mapping[str, Any]], words: dict[str, int]) -> list[float]:
    flat: list[float] = []
    for one in tokens:
        asked, met = (-1 if name is None else words.setdefault(name, len(words)) for name in (one["query"], one.get("document")))
        flat += [asked, met, _digits(one["similarity"])]
    return flat


def _digits(number: Any, count: int = 3) -> Any:
    """As a reader needs it; a whole number without its point, None as it is."""
    if number is None:
        return None
    short = float(f"{number:.{count}g}")
    return int(short) if short.is_integer() else short


def checked(said: Any, where: str) -> Explanation:
    """A line of an explanation as `search --explain` writes it; DataError for another."""
    fields = {"query": str, "document": str, "experts": dict}
    if not isinstance(said, dict) or not all(isinstance(said.get(name), kind) for name, kind in fields.items()):
        raise DataError(f"{where}: expected a line of search --explain, an object with query, document and experts")
    try:
        _columns([said["experts"]])
    except (KeyError, TypeError, ValueError, AttributeError):
        words = "expected of each expert its rank, score and part, terms or tokens, as search --explain writes them"
        raise DataError(f"{where}: {words}") from None
    return said
