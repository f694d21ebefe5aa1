"""The texts a training needs, from the examples themselves and from the collections they name, and no others.

They are walked as often as they are asked for, and not held: a set of examples holds rows, the places of its texts in the walk.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from moeir.errors import DataError, UsageError
from moeir.records import texts
from moeir.records.examples import Example
from moeir.records.texts import Text

FIRST = 4000  # documents kept, on which a vocabulary head that the weights lack is fitted
ABSENT = -1


@dataclass(frozen=True)
class Rows:
    """Where in the walk the texts of a set stand, by id."""

    queries: dict[str, int]
    documents: dict[str, int]

    def of(self, side: str) -> dict[str, int]:
        """The rows of one side."""
        return self.queries if side == "query" else self.documents


class Found(NamedTuple):
    """A text of the walk, and the sets that need it."""

    side: str
    sets: tuple[int, ...]
    id: str
    content: str

    @property
    def sealed(self) -> bytes:
        """What a digest of the walk is made of."""
        content = self.content.encode()
        return f"{self.side} {len(content)} ".encode() + content


@dataclass
class Needed:
    """The texts of sets of examples: `rows` of each set, the texts of its `queries` by id, the `first` documents of the first set.

    `count` texts in the walk, which `digest` names. A walk reads the collections again; what comes from a stream is held. Documents
    are walked with their parts apart (`fielded`) for a reader that wants them so.
    """

    sets: Sequence[Sequence[Example]]
    places: Sequence[str]
    files: Mapping[str, Sequence[Path]]
    keep_empty: bool
    fielded: bool = False
    rows: list[Rows] = field(init=False)
    queries: list[dict[str, str]] = field(init=False)
    first: list[str] = field(init=False, default_factory=list)
    digest: str = field(init=False, default="")
    count: int = field(init=False, default=0)
    _held: dict[Path, list[Text]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.queries = [{} for _ in self.sets]
        self.rows = [
            Rows(
                dict.fromkeys((example.query_id for example in examples), ABSENT),
                dict.fromkeys((document for example in examples for document in (*example.positive_ids, *example.negative_ids)), ABSENT),
            )
            for examples in self.sets
        ]

    def walk(self) -> Iterator[Found]:
        """Every text, in an order that is always the same; a collection's text comes after one that an example has brought, and counts."""
        for number, (examples, place) in enumerate(zip(self.sets, self.places, strict=True)):
            yield from _brought(number, examples, place, self.fielded)
        for side, files in self.files.items():
            own = len(self.sets) > 1 and len(files) > 1
            earlier: dict[str, int] | None = {} if len(files) > 1 and not own else None
            for number, file in enumerate(files):
                yield from self._filed(side, file, (number,) if own else tuple(range(len(self.sets))), earlier)

    def _filed(self, side: str, file: Path, members: tuple[int, ...], earlier: dict[str, int] | None) -> Iterator[Found]:
        """The texts of a collection that some set names; `earlier` knows those of the files before, if there may be the same again."""
        held = self._held.get(file)
        kept: list[Text] | None = [] if held is None and _streamed(file) else None
        for text in texts.read(file, keep_empty=self.keep_empty) if held is None else held:
            asking = tuple(number for number in members if text.id in self.rows[number].of(side))
            if not asking:
                continue
            if kept is not None:
                kept.append(text)
            content = text.fielded if self.fielded and side == "document" else text.content
            if earlier is not None:
                before, mark = earlier.get(text.id), hash(content)
                if before == mark:
                    continue
                if before is not None:
                    raise DataError(f"{file}: {text.id!r} has another text in an earlier file; different texts need other ids")
                earlier[text.id] = mark
            yield Found(side, asking, text.id, content)
        if kept is not None:
            self._held[file] = kept


def gathered(
    sets: Sequence[Sequence[Example]],
    places: Sequence[str],
    *,
    queries: Sequence[Path],
    corpora: Sequence[Path],
    keep_empty: bool = False,
    fielded: bool = False,
) -> Needed:
    """The texts of each set of examples: those they bring, and those they name.

    One set reads every file of `queries` and `corpora`; of several sets each reads the one all share, or its own: equal ids in two
    collections are then two texts.
    """
    needed = Needed(sets, places, {"query": queries, "document": corpora}, keep_empty, fielded)
    _check_named(needed)
    digest, first = hashlib.sha256(), dict[str, str]()
    for row, found in enumerate(needed.walk()):
        for number in found.sets:
            needed.rows[number].of(found.side)[found.id] = row
            if found.side == "query":
                needed.queries[number][found.id] = found.content
        if found.side == "document" and found.sets[0] == 0 and (len(first) < FIRST or found.id in first):
            first[found.id] = found.content
        digest.update(found.sealed)
        needed.count = row + 1
    for one in needed.rows:
        for rows in (one.queries, one.documents):
            for name in [name for name, row in rows.items() if row == ABSENT]:
                del rows[name]
    needed.first, needed.digest = list(first.values()), digest.hexdigest()
    return needed


def bare(examples: Sequence[Example]) -> list[Example]:
    """Examples without the texts they bring."""
    return [one if one.query is None and not one.passages else replace(one, query=None, passages=()) for one in examples]


def _check_named(needed: Needed) -> None:
    """UsageError if an example names a text that it does not bring, and there is no collection."""
    for examples, place in zip(needed.sets, needed.places, strict=True):
        brought = {passage.id for example in examples for passage in example.passages}
        named = (document for example in examples for document in (*example.positive_ids, *example.negative_ids))
        bring = {"query": all(example.query for example in examples), "document": all(document in brought for document in named)}
        for side, flag in (("query", "--queries"), ("document", "--corpus")):
            if not needed.files[side] and not bring[side]:
                raise UsageError(f"{place}: its examples name texts by id; say where they are with {flag}")


def _brought(number: int, examples: Sequence[Example], place: str, fielded: bool) -> Iterator[Found]:
    """Queries and passages inside the examples of a set."""
    known: dict[str, int] = {}
    for example in examples:
        if example.query is not None:
            yield Found("query", (number,), example.query.id, example.query.content)
        for passage in example.passages:
            content = passage.fielded if fielded else passage.content
            before, mark = known.get(passage.id), hash(content)
            if before is None:
                known[passage.id] = mark
                yield Found("document", (number,), passage.id, content)
            elif before != mark:
                raise DataError(f"{place}: passage {passage.id!r} has two texts; different passages need other ids")


def _streamed(file: Path) -> bool:
    """Whether a file can be read once only: standard input, or a pipe."""
    return str(file) == "-" or (file.exists() and not file.is_file())
