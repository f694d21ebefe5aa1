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
            per_dataset = len(self.sets) > 1 and len(files) > 1
            earlier: dict[str, int] | None = {} if len(files) > 1 and not per_dataset else None
            for number, file in enumerate(files):
                yield from self._filed(side, file, (number,) if per_dataset else tuple(range(len(self.sets))), earlier)

    def _filed(self, side: str, file: Path, members: tuple[int, ...], earlier: dict[str, int] | None) -> Iterator[Found]:
        """The texts of a collection that some set names; `earlier` knows those of the files before, if there may be the same again."""
        texts_read = self._held.get(file)
        texts_to_keep: list[Text] | None = [] if texts_read is None and _streamed(file) else None
        for text in texts.read(file, keep_empty=self.keep_empty) if texts_read is None else texts_read:
            members_needing = tuple(number for number in members if text.id in self.rows[number].of(side))
            if not members_needing:
                continue
            if texts_to_keep is not None:
                texts_to_keep.append(text)
            content = text.fielded if self.fielded and side == "document" else text.content
            if earlier is not None:
                earlier_fingerprint, fingerprint = earlier.get(text.id), hash(content)
                if earlier_fingerprint == fingerprint:
                    continue
                if earlier_fingerprint is not None:
                    raise DataError(f"{file}: {text.id!r} has another text in an earlier file; different texts need other ids")
                earlier[text.id] = fingerprint
            yield Found(side, members_needing, text.id, content)
        if texts_to_keep is not None:
            self._held[file] = texts_to_keep


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
    stream = Needed(sets, places, {"query": queries, "document": corpora}, keep_empty, fielded)
    _check_named(stream)
    digest, first_texts = hashlib.sha256(), dict[str, str]()
    for row, text in enumerate(stream.walk()):
        for number in text.sets:
            stream.rows[number].of(text.side)[text.id] = row
            if text.side == "query":
                stream.queries[number][text.id] = text.content
        if text.side == "document" and text.sets[0] == 0 and (len(first_texts) < FIRST or text.id in first_texts):
            first_texts[text.id] = text.content
        digest.update(text.sealed)
        stream.count = row + 1
    for index in stream.rows:
        for rows in (index.queries, index.documents):
            for name in [name for name, row in rows.items() if row == ABSENT]:
                del rows[name]
    stream.first, stream.digest = list(first_texts.values()), digest.hexdigest()
    return stream


def bare(examples: Sequence[Example]) -> list[Example]:
    """Examples without the texts they bring."""
    return [one if one.query is None and not one.passages else replace(one, query=None, passages=()) for one in examples]


def _check_named(needed: Needed) -> None:
    """UsageError if an example names a text that it does not bring, and there is no collection."""
    for examples, place in zip(needed.sets, needed.places, strict=True):
        inline_ids = {passage.id for example in examples for passage in example.passages}
        named_ids = (document for example in examples for document in (*example.positive_ids, *example.negative_ids))
        is_inline = {"query": all(example.query for example in examples), "document": all(document in inline_ids for document in named_ids)}
        for side, flag in (("query", "--queries"), ("document", "--corpus")):
            if not needed.files[side] and not is_inline[side]:
                raise UsageError(f"{place}: its examples name texts by id; say where they are with {flag}")


def _brought(number: int, examples: Sequence[Example], place: str, fielded: bool) -> Iterator[Found]:
    """Queries and passages inside the examples of a set."""
    fingerprints: dict[str, int] = {}
    for example in examples:
        if example.query is not None:
            yield Found("query", (number,), example.query.id, example.query.content)
        for passage in example.passages:
            content = passage.fielded if fielded else passage.content
            earlier_fingerprint, fingerprint = fingerprints.get(passage.id), hash(content)
            if earlier_fingerprint is None:
                fingerprints[passage.id] = fingerprint
                yield Found("document", (number,), passage.id, content)
            elif earlier_fingerprint != fingerprint:
                raise DataError(f"{place}: passage {passage.id!r} has two texts; different passages need other ids")


def _streamed(file: Path) -> bool:
    """Whether a file can be read once only: standard input, or a pipe."""
    return str(file) == "-" or (file.exists() and not file.is_file())
