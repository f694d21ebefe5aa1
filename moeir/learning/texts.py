"""The texts a training needs, from the examples themselves and from the collections they name, and no others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir.errors import DataError, UsageError
from moeir.records import texts
from moeir.records.examples import Example


@dataclass
class Texts:
    """The texts a plan draws from, by id."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]


def gathered(
    sets: Sequence[Iterable[Example]],
    places: Sequence[str],
    *,
    queries: Sequence[Path],
    corpora: Sequence[Path],
    keep_empty: bool = False,
) -> list[Texts]:
    """The texts of each set of examples: those they bring, and those they name.

    One set reads every file of `queries` and `corpora`; of several sets each reads the one all share, or its own: equal ids in two
    collections are then two texts.
    """
    asked: list[set[str]] = []
    named: list[set[str]] = []
    found = []
    for examples, place in zip(sets, places, strict=True):
        found.append(_brought(examples, place))
        asked.append({example.query_id for example in examples})
        named.append({document for example in examples for document in (*example.positive_ids, *example.negative_ids)})
    for side, files, wanted in (("queries", queries, asked), ("documents", corpora, named)):
        held = [getattr(one, side) for one in found]
        flag = "--queries" if side == "queries" else "--corpus"
        for number, place in enumerate(places):
            if not files and not wanted[number] <= held[number].keys():
                raise UsageError(f"{place}: its examples name texts by id; say where they are with {flag}")
        own = len(sets) > 1 and len(files) > 1
        filed: list[dict[str, str]] = [{} for _ in sets]
        for number, file in enumerate(files):
            _read(file, [number] if own else range(len(sets)), wanted, filed, keep_empty=keep_empty)
        for one, more in zip(held, filed, strict=True):
            one |= more
    return found


def _brought(examples: Iterable[Example], place: str) -> Texts:
    """Queries and passages inside the examples."""
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    for example in examples:
        if example.query is not None:
            queries[example.query.id] = example.query.content
        for passage in example.passages:
            if documents.setdefault(passage.id, passage.content) != passage.content:
                raise DataError(f"{place}: passage {passage.id!r} has two texts; different passages need other ids")
    return Texts(queries, documents)


def _read(file: Path, members: Iterable[int], wanted: Sequence[set[str]], held: Sequence[dict[str, str]], *, keep_empty: bool) -> None:
    """Hand the texts of a collection to the sets that name them."""
    members = list(members)
    for text in texts.read(file, keep_empty=keep_empty):
        for number in members:
            if text.id in wanted[number] and held[number].setdefault(text.id, text.content) != text.content:
                raise DataError(f"{file}: {text.id!r} has another text in an earlier file; different texts need other ids")
