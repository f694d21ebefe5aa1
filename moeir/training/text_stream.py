"""The texts of the training examples, from the examples themselves and from the collections that they refer to, and no others.

Texts are streamed anew each time and not kept in memory; each data set keeps the rows of its texts in the stream.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moeir.errors import DataError
from moeir.records import texts
from moeir.records.examples import Example
from moeir.records.texts import Text

HEAD_FIT_DOCUMENTS = 4000  # documents kept in memory, to fit a vocabulary head that the weights lack
UNSEEN = -1


@dataclass(frozen=True)
class RowIndex:
    """Row in the stream of each text of a data set, by id; and of ids with the same text a number that they share."""

    queries: dict[str, int]
    documents: dict[str, int]
    query_duplicates: dict[str, int] = field(default_factory=dict)
    document_duplicates: dict[str, int] = field(default_factory=dict)

    def by_side(self, side: str) -> dict[str, int]:
        """The rows of one side."""
        return self.queries if side == "query" else self.documents


class StreamedText(NamedTuple):
    """A text of the stream, and the numbers of the data sets that use it. A query may have a `prompt` of this name, not the prefix."""

    side: str
    datasets: tuple[int, ...]
    id: str
    content: str
    prompt: str = ""

    @property
    def digest_bytes(self) -> bytes:
        """Input of the digest of the stream."""
        content = self.content.encode()
        return f"{self.side} {self.prompt + ' ' if self.prompt else ''}{len(content)} ".encode() + content


class TextStream:
    """The texts of each data set: those inside its examples, and those that they refer to by id.

    `rows` has the rows of each set's texts in the stream of `count` texts with a `digest`, `queries` its queries by id, `first_documents`
    the first documents of the first set. A single data set reads every file of `queries` and `corpora`; several sets share one file, or
    each reads its own: equal ids in two collections are then two texts. Each pass reads the collections again; texts from a pipe are kept
    in memory. With `fielded` documents come with title and text apart. `prompts` name that of the queries of each data set, if they are not
    the query prefix.
    """

    def __init__(
        self,
        datasets: Sequence[Sequence[Example]],
        sources: Sequence[str],
        *,
        queries: Sequence[Path],
        corpora: Sequence[Path],
        keep_empty: bool = False,
        fielded: bool = False,
        prompts: Sequence[str] = (),
    ) -> None:
        self.datasets, self.sources, self.files = datasets, sources, {"query": queries, "document": corpora}
        self.keep_empty, self.fielded, self.prompts = keep_empty, fielded, prompts
        self._piped_texts: dict[Path, list[Text]] = {}
        self.queries: list[dict[str, str]] = [{} for _ in datasets]
        self.rows = [
            RowIndex(
                dict.fromkeys((example.query_id for example in examples), UNSEEN),
                dict.fromkeys((document for example in examples for document in (*example.positive_ids, *example.negative_ids)), UNSEEN),
            )
            for examples in datasets
        ]
        digest, first_texts, hashes = hashlib.sha256(), dict[str, str](), array("q")
        for row, text in enumerate(self.stream()):
            for number in text.datasets:
                self.rows[number].by_side(text.side)[text.id] = row
                if text.side == "query":
                    self.queries[number][text.id] = text.content
            if text.side == "document" and text.datasets[0] == 0 and (len(first_texts) < HEAD_FIT_DOCUMENTS or text.id in first_texts):
                first_texts[text.id] = text.content
            digest.update(text.digest_bytes)
            hashes.append(hash((text.side, text.content)))
        self.count, self.first_documents, self.digest = len(hashes), list(first_texts.values()), digest.hexdigest()
        _, numbers, counts = np.unique(np.array(hashes), return_inverse=True, return_counts=True)
        for index in self.rows:
            for rows, duplicates in ((index.queries, index.query_duplicates), (index.documents, index.document_duplicates)):
                for name in [name for name, row in rows.items() if row == UNSEEN]:
                    del rows[name]
                duplicates |= {name: int(numbers[row]) for name, row in rows.items() if counts[numbers[row]] > 1}

    def stream(self) -> Iterator[StreamedText]:
        """Every text, always in the same order; collections come after the texts inside examples, and take precedence."""
        for number, (examples, source) in enumerate(zip(self.datasets, self.sources, strict=True)):
            yield from _inline_texts(number, examples, source, self.fielded, self._prompt_of("query", number))
        for side, files in self.files.items():
            per_dataset = len(self.datasets) > 1 and len(files) > 1
            earlier: dict[str, int] | None = {} if len(files) > 1 and not per_dataset else None
            for number, file in enumerate(files):
                yield from self._stream_file(side, file, (number,) if per_dataset else tuple(range(len(self.datasets))), earlier)

    def _prompt_of(self, side: str, dataset: int) -> str:
        return self.prompts[dataset] if self.prompts and side == "query" else ""

    def _stream_file(self, side: str, file: Path, members: tuple[int, ...], earlier: dict[str, int] | None) -> Iterator[StreamedText]:
        """The texts of a collection that a data set refers to; `earlier` has those of the files before, where ids may repeat."""
        if file not in self._piped_texts and (str(file) == "-" or (file.exists() and not file.is_file())):  # can be read only once
            piped = texts.read_texts(file, keep_empty=self.keep_empty)
            self._piped_texts[file] = [text for text in piped if any(text.id in self.rows[number].by_side(side) for number in members)]
        for text in self._piped_texts[file] if file in self._piped_texts else texts.read_texts(file, keep_empty=self.keep_empty):
            if not (needed_by := tuple(number for number in members if text.id in self.rows[number].by_side(side))):
                continue
            content = text.joined_fields if self.fielded and side == "document" else text.content
            error = f"{file}: {text.id!r} has another text in an earlier file"
            if earlier is None or _is_new(text.id, content, earlier, error):
                prompts = [self._prompt_of(side, number) for number in needed_by]
                for prompt in dict.fromkeys(prompts):
                    own = tuple(number for number, name in zip(needed_by, prompts, strict=True) if name == prompt)
                    yield StreamedText(side, own, text.id, content, prompt)


def without_texts(examples: Sequence[Example]) -> list[Example]:
    """Examples with ids only."""
    return [one if one.query is None and not one.passages else replace(one, query=None, passages=()) for one in examples]


def _inline_texts(number: int, examples: Sequence[Example], source: str, fielded: bool, prompt: str) -> Iterator[StreamedText]:
    """Queries and passages inside the examples of a data set."""
    earlier: dict[str, int] = {}
    for example in examples:
        if example.query is not None:
            yield StreamedText("query", (number,), example.query.id, example.query.content, prompt)
        for passage in example.passages:
            content = passage.joined_fields if fielded else passage.content
            if _is_new(passage.id, content, earlier, f"{source}: passage {passage.id!r} has two texts"):
                yield StreamedText("document", (number,), passage.id, content)


def _is_new(text_id: str, content: str, earlier: dict[str, int], error: str) -> bool:
    """Whether no earlier text had this id; DataError if one had it with another content."""
    if text_id not in earlier:
        earlier[text_id] = hash(content)
        return True
    if earlier[text_id] != hash(content):
        raise DataError(f"{error}; different texts need other ids")
    return False
