"""Checks of corpora and queries: faulty lines, repeated ids and texts, queries that are documents; checks of the ids of encodings."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from moeir import data_sources
from moeir.data_checks.findings import FileFindings, Findings
from moeir.data_checks.tolerant_lines import check_characters, read_tolerantly
from moeir.errors import DataError
from moeir.records import texts
from moeir.records.texts import Text


@dataclass
class SeenTexts:
    """The fingerprint of each text by its id, and the id of the first text with a fingerprint."""

    by_id: dict[str, int] = field(default_factory=dict)
    by_text: dict[int, str] = field(default_factory=dict)


def fingerprint(text: str) -> int:
    """64-bit hash of a text, regardless of case and white space."""
    return hash(" ".join(text.lower().split()))


def check_texts(file: FileFindings, seen: SeenTexts, queries: SeenTexts | None = None, *, keep_empty: bool = False) -> None:
    """Check texts, which are added to `seen`; documents are looked for among the `queries`.

    Sources that are not lines (DPR's questions, `hf:`, `irds:`, `TEXTS#QRELS`) are checked as far as they can be read.
    """
    source = str(file.path)
    try:
        if data_sources.is_remote(source) or data_sources.split_judged(source)[1] is not None:
            names, contents = (), texts.read_records(source)
        else:
            names, contents = texts.split_records(source, read_tolerantly(file))
        for where, content in contents:
            try:
                record = texts.parse_record(content, names, where)
                check_characters(record, where, file)
                text = texts.parse_text(record, where)
            except DataError as problem:
                file.add_error(problem)
                continue
            if text.id in seen.by_id:
                file.add(where, "duplicate", f"{text.id!r} occurs on an earlier line too")
            else:
                _check_text(text, where, file, seen, queries or SeenTexts(), keep_empty)
    except DataError as problem:  # of a form beyond whose fault nothing can be read, such as a mark that is not closed
        file.add_error(problem)


def _check_text(text: Text, where: str, file: FileFindings, seen: SeenTexts, queries: SeenTexts, keep_empty: bool) -> None:
    key = seen.by_id[text.id] = fingerprint(text.content)
    if not text.content:
        if not keep_empty:
            file.add(where, "empty-text", f"{text.id!r} has no text")
    elif seen.by_text.setdefault(key, text.id) != text.id:
        file.add(where, "duplicate-text", f"{text.id!r} has the text of an earlier line")
    if (query := queries.by_text.get(fingerprint(text.text), queries.by_text.get(key))) is not None:
        file.add(where, "query-in-corpus", f"document {text.id!r} is the text of query {query!r}")


def check_encoded_ids(file: str, ids: Sequence[str], findings: Findings, documents: Collection[str] | None) -> None:
    """Check the ids of encodings: each once, and equal to those of the corpus if they are known."""
    seen: set[str] = set()
    for number, document in enumerate(ids, 1):
        if document in seen:
            findings.add(file, f"{file}:{number}", "duplicate", f"{document!r} occurs on an earlier line too")
        elif documents is not None and document not in documents:
            findings.add(file, f"{file}:{number}", "unknown-document", f"{document!r} is not in the corpus")
        seen.add(document)
    for document in sorted(set(documents or ()) - seen):
        findings.add(file, file, "missing-document", f"{document!r} of the corpus is not encoded")
