"""The interface of a format, and the context of a conversion: texts to look up, and whether information may be dropped."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError, UsageError
from moeir.records.examples import Example
from moeir.records.qrels import Qrels
from moeir.records.texts import Text

TextsById = Mapping[str, Text]


@dataclass
class Conversion:
    """Texts by id (None without a file), the checkpoint of vectors, and whether information that the target cannot hold may be dropped."""

    source: str
    target: str
    corpus: TextsById | None = None
    queries: TextsById | None = None
    model: Path | None = None
    lossy: bool = False
    dropped_counts: dict[str, int] = field(default_factory=dict)
    encodings_manifest: dict[str, Any] = field(default_factory=dict)  # facts for the manifest of encodings

    def drop_or_refuse(self, where: str, what: str) -> None:
        """Count information that the target cannot hold; UsageError unless the conversion is lossy."""
        if not self.lossy:
            way = "" if self.source == self.target else f" from {self.source} to {self.target}"
            raise UsageError(f"{where}: {what} would be lost{way}; --lossy leaves it out")
        self.dropped_counts[what] = self.dropped_counts.get(what, 0) + 1

    def drop_unread_fields(self, where: str, record: Mapping[str, Any], known: Iterable[str]) -> None:
        """`drop_or_refuse` for each field of a record that is not in `known` and not empty."""
        for name in record.keys() - set(known):
            if record[name] not in (None, "", [], {}):
                self.drop_or_refuse(where, f"field {name!r}")

    def drop_nonempty(self, where: str, values: Mapping[str, object]) -> None:
        """`drop_or_refuse` for each value that is not empty."""
        for what, value in values.items():
            if value:
                self.drop_or_refuse(where, what)

    def look_up_texts(self, example: Example, where: str) -> tuple[Text, dict[str, Text]]:
        """The query of an example and its passages by id, looked up where the example has no texts."""
        if example.query is not None:
            return example.query, {passage.id: passage for passage in example.passages}
        query = look_up_text(self.queries, example.query_id, "--queries", where, self.target)
        ids = (*example.positive_ids, *example.negative_ids)
        return query, {document: look_up_text(self.corpus, document, "--corpus", where, self.target) for document in ids}

    def strip_texts(self, example: Example, where: str) -> Example:
        """The example without its passages; their text is lost unless the corpus has it."""
        if any(passage.id not in (self.corpus or {}) for passage in example.passages):
            self.drop_or_refuse(where, "the text of passages (name the corpus that has them with --corpus)")
        return replace(example, passages=())


@dataclass(frozen=True)
class Collection:
    """Documents, queries, and the judgements of each split; documents and queries can be iterated once."""

    corpus: Iterable[Text]
    queries: Iterable[Text]
    qrels: Mapping[str, Qrels]


@dataclass(frozen=True)
class Vector:
    """One text's term weights (sparse) or numbers (dense); `contents` is its text where known."""

    id: str
    terms: Mapping[str, float] | None = None
    numbers: Sequence[float] | None = None
    contents: str = ""


class Format(ABC):
    """One file format of one kind of data. The keyword-only parameters of a subclass are its options."""

    kind: ClassVar[str]  # what is converted: formats of a kind convert into one another
    is_folder: ClassVar[bool] = False

    @abstractmethod
    def read(self, path: Path, conversion: Conversion) -> Iterator[Any]:
        """Yield texts, examples, (query, document, grade), one Run, or one Collection."""

    @abstractmethod
    def write(self, items: Iterator[Any], path: Path, conversion: Conversion) -> int:
        """Write items to `path`, a file or an empty folder, and return their number."""


def look_up_text(texts: TextsById | None, text_id: str, flag: str, where: str, target: str) -> Text:
    """A text by its id; `flag` is the command-line flag of the file that should have it."""
    if texts is None:
        raise UsageError(f"{target}: stores texts inline, but {where} has only the id {text_id!r}; name the file that has them with {flag}")
    if text_id not in texts:
        raise DataError(
            f"{where}: {text_id!r} is not in the file of {flag}", code="unknown-query" if flag == "--queries" else "unknown-document"
        )
    return texts[text_id]


def title_and_text(text: Text) -> str:
    """Title and text as one string; a text without a title is returned unchanged, trailing spaces included.

    >>> title_and_text(Text("a", "An owl. ")), title_and_text(Text("a", "An owl.", "Owl"))
    ('An owl. ', 'Owl An owl.')
    """
    return text.content if text.title else text.text


def flatten_title(passage: Text, where: str, conversion: Conversion) -> str:
    """Title and text in one string; the boundary between them is lost."""
    conversion.drop_nonempty(where, {"the title as a field of its own": passage.title, "field 'url'": passage.url})
    return title_and_text(passage)


def collapse_whitespace(text: str, where: str, conversion: Conversion) -> str:
    """A text for a tab-separated column: tabs and line breaks within it become spaces."""
    if any(character in text for character in "\t\n\r"):
        conversion.drop_or_refuse(where, "a tab or a line break within a text")
        return " ".join(text.split())
    return text
