"""The interface of a format, and the context of a conversion: texts to look up, and whether information may be dropped."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError, UsageError
from moeir.records import texts
from moeir.records.examples import Example
from moeir.records.qrels import Qrels
from moeir.records.texts import Text

TextsById = Mapping[str, Text]
PROVENANCE, TEACHER_SCORES = "field 'negative_provenance'", "a teacher's scores"  # parts of data, as messages call them
EMPTY: tuple[Any, ...] = (None, "", [], {})  # values of a field that hold nothing
ANSWERS, URL, IDS = "field 'answers'", "field 'url'", "ids"


@dataclass
class Conversion:
    """Texts by id (None without a file), and whether information that the target cannot hold may be dropped."""

    source: str
    target: str
    corpus: TextsById | None = None
    queries: TextsById | None = None
    lossy: bool = False
    dropped_counts: dict[str, int] = field(default_factory=dict)

    def drop_or_refuse(self, where: str, what: str) -> None:
        """Count information that the target cannot hold; UsageError unless the conversion is lossy."""
        if not self.lossy:
            way = "" if self.source == self.target else f" from {self.source} to {self.target}"
            raise UsageError(f"{where}: {what} would be lost{way}; --lossy leaves it out")
        self.dropped_counts[what] = self.dropped_counts.get(what, 0) + 1

    def drop_fields(self, where: str, extra: Mapping[str, Any] | None) -> None:
        """`drop_or_refuse` for each field that is not read."""
        for name in extra or ():
            self.drop_or_refuse(where, f"field {name!r}")

    def drop_nonempty(self, where: str, values: Mapping[str, object]) -> None:
        """`drop_or_refuse` for each value that is not empty."""
        for what, value in values.items():
            if value:
                self.drop_or_refuse(where, what)

    def look_up_text(self, source: str, text_id: str, where: str) -> Text:
        """A text of the `corpus` or of the `queries` by its id."""
        texts_by_id = self.queries if source == "queries" else self.corpus
        if texts_by_id is None:
            problem = f"stores texts inline, but {where} has only the id {text_id!r}"
            raise UsageError(f"{self.target}: {problem}; name the file that has them with --{source}")
        if text_id not in texts_by_id:
            raise DataError(f"{where}: {text_id!r} is not in the file of --{source}")
        return texts_by_id[text_id]

    def look_up_texts(self, example: Example, losses: Iterable[str]) -> tuple[Text, dict[str, Text]]:
        """The query of an example and its passages by id, looked up where the example has no texts; `losses` are dropped or refused."""
        where, query, passages = f"query {example.query_id!r}", example.query, example.passages
        if query is None:
            ids = (*example.positive_ids, *example.negative_ids)
            query = self.look_up_text("queries", example.query_id, where)
            passages = tuple(self.look_up_text("corpus", document, where) for document in ids)
        values = {
            PROVENANCE: example.provenance,
            TEACHER_SCORES: example.positive_scores,
            ANSWERS: query.answers,
            URL: any(passage.url for passage in passages),
            IDS: not all(map(has_digest_id, (query, *passages))),
        }
        self.drop_nonempty(where, {what: values[what] for what in losses})
        return query, {passage.id: passage for passage in passages}


@dataclass(frozen=True)
class Collection:
    """Documents, queries, and the judgements of each split; documents and queries can be iterated once."""

    corpus: Iterable[Text]
    queries: Iterable[Text]
    qrels: Mapping[str, Qrels]


class Format(ABC):
    """One file format of one kind of data. The keyword-only parameters of a subclass are its options."""

    kind: ClassVar[str]  # what is converted: formats of a kind convert into one another
    is_folder: ClassVar[bool] = False

    @abstractmethod
    def read(self, path: Path, conversion: Conversion) -> Iterator[Any]:
        """Yield texts, examples, (query, document, grade), one Run, or one Collection."""

    def write(self, items: Iterator[Any], path: Path, conversion: Conversion) -> int:
        """Write items to `path`, a file or an empty folder, and return their number; unless overridden, JSON lines."""
        return texts.write_json_lines((self.to_record(item, conversion) for item in items), path)

    def to_record(self, item: Any, conversion: Conversion) -> Any:
        """The JSON value of an item."""
        raise UsageError(f"--to {conversion.target}: is read only; examples by id become examples or tevatron-ids")


def unread_fields(record: Mapping[str, Any], known: Iterable[str], synonyms: Iterable[Sequence[str]] = ()) -> dict[str, Any] | None:
    """The fields of a record that are not in `known` and not empty. Of `synonyms` the first that it has is read, and others if they say the
    same."""
    known_names = set(known)
    for names in synonyms:
        read, *others = [name for name in names if name in record] or [""]
        known_names -= {other for other in others if str(record[other]) != str(record[read])}
    return {name: value for name, value in record.items() if name not in known_names and value not in EMPTY} or None


def title_and_text(text: Text) -> str:
    """Title and text as one string; a text without a title is returned unchanged, trailing spaces included.

    >>> title_and_text(Text("a", "An owl. ")), title_and_text(Text("a", "An owl.", "Owl"))
    ('An owl. ', 'Owl An owl.')
    """
    return text.content if text.title else text.text


def flatten_title(passage: Text, where: str, conversion: Conversion) -> str:
    """Title and text in one string; the boundary between them is lost."""
    conversion.drop_nonempty(where, {"the title as a field of its own": passage.title, URL: passage.url})
    return title_and_text(passage)


def replace_line_breaks(text: str, where: str, conversion: Conversion) -> str:
    """A text for a tab-separated column: tabs and line breaks within it become spaces."""
    if any(character in text for character in "\t\n\r"):
        conversion.drop_or_refuse(where, "a tab or a line break within a text")
        return re.sub(r"[\t\n\r]+", " ", text)
    return text


def text_digest(text: str) -> str:
    """An id for a text without one: equal texts get equal ids.

    >>> text_digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_digest_id(text: Text) -> bool:
    """Whether a text's id is its digest, so that dropping it loses nothing."""
    return text.id == text_digest(title_and_text(text))
