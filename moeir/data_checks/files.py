"""Checks of files: faulty lines, at which a reader would stop; what stands twice; unknown ids; and what distorts training or evaluation."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import ftfy

from moeir import data_sources
from moeir.data_checks.findings import FileFindings
from moeir.errors import DataError
from moeir.records import dpr, examples, lines, qrels, runs, texts
from moeir.records.examples import Example
from moeir.records.ids import parse_id
from moeir.records.texts import Text

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@dataclass
class SeenTexts:
    """The fingerprint of each text by its id, and the id of the first text with a fingerprint."""

    by_id: dict[str, int] = field(default_factory=dict)
    by_text: dict[int, str] = field(default_factory=dict)


def fingerprint(text: str) -> int:
    """64-bit hash of a text, regardless of case and white space."""
    return hash(" ".join(text.lower().split()))


def read_tolerantly(file: FileFindings) -> Iterator[tuple[int, str]]:
    """Number and text of every line of a file; of a damaged archive, those before the damage.

    A line that is not UTF-8 is decoded as Windows-1252, and is a finding.
    """
    is_empty = True
    try:
        with lines.read_blocks(file.path, check=False) as blocks:
            for first, block in blocks:
                for number, line in enumerate(block.split(b"\n"), first):
                    is_empty = is_empty and not line.strip()
                    try:
                        text = line.decode()
                    except UnicodeDecodeError as fault:
                        file.add(f"{file.name}:{number}", "not-utf8", f"byte 0x{line[fault.start]:02x}")
                        text = line.decode("cp1252", errors="replace")
                    yield number, text.removesuffix("\r")
    except DataError as problem:
        file.add_error(problem)
        return
    if is_empty:
        file.add(file.name, "faulty-file", "the file is empty")


def check_texts(file: FileFindings, seen: SeenTexts, queries: SeenTexts | None = None, *, keep_empty: bool = False) -> None:
    """Check texts, which are added to `seen`; documents are looked for among the `queries`.

    Sources that are not lines (DPR's questions, `hf:`, `irds:`, `TEXTS#QRELS`) are checked as far as they can be read.
    """
    source = str(file.path)
    names: Sequence[str] = ()
    try:
        if data_sources.is_remote(source) or data_sources.split_judged(source)[1] is not None:
            contents = texts.read_records(source)
        else:
            names, contents = texts.split_records(source, read_tolerantly(file))
        for where, content in contents:
            try:
                record = texts.parse_record(content, names, where)
                _check_characters(record, where, file)
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


def _check_characters(record: Any, where: str, file: FileFindings) -> None:
    """Add a finding for each string of a record, but for its id, that has mojibake or control characters."""
    for name, text in record.items() if isinstance(record, dict) else ():
        if not isinstance(text, str) or name in texts.ID_FIELDS or (text.isascii() and text.isprintable()):
            continue
        for kind, repair in (("mojibake", ftfy.fix_encoding), ("control-character", lambda text: CONTROL_CHARACTERS.sub(" ", text))):
            if (repaired := repair(text)) != text:
                first = next((index for index, (old, new) in enumerate(zip(text, repaired)) if old != new), len(repaired))
                around = slice(max(0, first - 12), first + 13)
                file.add(where, kind, f"{text[around]!r} should be {repaired[around]!r}")
                text = repaired


def _check_text(text: Text, where: str, file: FileFindings, seen: SeenTexts, queries: SeenTexts, keep_empty: bool) -> None:
    key = seen.by_id[text.id] = fingerprint(text.content)
    if not text.content:
        if not keep_empty:
            file.add(where, "empty-text", f"{text.id!r} has no text")
    elif seen.by_text.setdefault(key, text.id) != text.id:
        file.add(where, "duplicate-text", f"{text.id!r} has the text of an earlier line")
    if (query := queries.by_text.get(fingerprint(text.text), queries.by_text.get(key))) is not None:
        file.add(where, "query-in-corpus", f"document {text.id!r} is the text of query {query!r}")


def check_qrels(file: FileFindings) -> None:
    """Check the judgements of a file or a remote source."""
    judged, parser = dict[str, dict[str, int]](), qrels.JudgementParser(file.name)
    if data_sources.is_remote(file.path):
        rows = enumerate(qrels.read_remote(str(file.path)), 1)
        numbered: Iterator[tuple[int, str]] = ((number, "\t".join(map(str, row))) for number, (_, row) in rows)
    else:
        numbered = read_tolerantly(file)
    for number, line in numbered:
        where = f"{file.name}:{number}"
        try:
            if (judgement := parser.parse(line, number)) is None:
                continue
            query, document, grade = parse_id(judgement[0], where), parse_id(judgement[1], where), judgement[2]
        except DataError as problem:
            file.add_error(problem)
            continue
        pair, grades = f"query {query!r}, document {document!r}", judged.setdefault(query, {})
        if document not in grades:
            file.check_references(where, query, document)
        elif grades[document] == grade:
            file.add(where, "duplicate", f"{pair}: judged on an earlier line too")
        else:
            file.add(where, "grades-disagree", f"{pair}: {grade} here, {grades[document]} on an earlier line")
        grades.setdefault(document, grade)
    for query, grades in judged.items():
        if max(grades.values()) <= 0:
            file.add(file.name, "no-relevant", f"query {query!r} has {len(grades)} judgements and no relevant document")
    file.add_absent_queries(judged, "unjudged-query", "have no judgement")


def check_run(file: FileFindings) -> None:
    """Check the hits of a run, and whether its ranks have the order of the scores."""
    listed = set[int]()  # hashes, in a fraction of the memory of the ids
    last_hits = dict[str, tuple[int, float]]()  # rank and score on the last line of each query
    for number, line in read_tolerantly(file):
        where = f"{file.name}:{number}"
        if not line.strip():
            continue
        try:
            query, document, rank, score, tag = runs.parse_hit(line, where)
            for word in () if line.isprintable() else (query, document, tag):
                parse_id(word, where)
        except DataError as problem:
            file.add_error(problem)
            continue
        file.check_references(where, query, document)
        if (key := hash((query, document))) in listed:
            file.add(where, "duplicate", f"document {document!r} occurs twice in the list of {query!r}")
            continue
        listed.add(key)
        rank_above, score_above = last_hits.get(query, (-1, float("inf")))  # ranks from 0, as Terrier writes them, or from 1
        if rank <= rank_above or score > score_above:
            hits = f"rank {rank}, score {runs.format_score(score)} under rank {rank_above}, score {runs.format_score(score_above)}"
            file.add(where, "rank-order", f"query {query!r}: {hits}")
        last_hits[query] = rank, score
    file.add_absent_queries(last_hits, "query-without-hits", "are not in the run")


def check_examples(file: FileFindings, dev_queries: SeenTexts, foreign: Iterator[Example] | None) -> None:
    """Check examples, which must not contain the dev queries.

    A DPR array and `foreign`, the examples of another format, are checked up to the first fault of their form.
    """
    seen_ids: set[str] = set()
    for where, content in _locate_examples(file, foreign):
        try:
            record = texts.parse_json(content, where) if isinstance(content, str) else content
            example = examples.parse_example(record, where, provenance=True)
        except DataError as problem:
            file.add_error(problem)
            continue
        if example.query_id in seen_ids:
            file.add(where, "duplicate", f"query {example.query_id!r} occurs on an earlier line too")
        else:
            _check_example(example, where, file, dev_queries)
        seen_ids.add(example.query_id)


def _locate_examples(file: FileFindings, foreign: Iterator[Example] | None) -> Iterator[tuple[str, Any]]:
    """The location of each example, and its line or record."""
    try:
        if foreign is not None:
            yield from ((file.name, examples.example_to_record(example)) for example in foreign)
            return
        numbered = read_tolerantly(file)
        first = next(((number, line) for number, line in numbered if line.strip()), (0, ""))
        if dpr.is_array(first[1]):
            yield from dpr.read_example_records(file.name, chain([first], numbered))
        else:
            yield from ((f"{file.name}:{number}", line) for number, line in chain([first], numbered) if line.strip())
    except DataError as problem:
        file.add_error(problem)


def _check_example(example: Example, where: str, file: FileFindings, dev_queries: SeenTexts) -> None:
    query, known_queries = example.query_id, file.queries or {}
    if example.query is None:
        file.check_references(where, query, *example.positive_ids, *example.negative_ids)
    key = known_queries.get(query) if example.query is None else fingerprint(example.query.content)
    if query in dev_queries.by_id or key in dev_queries.by_text:
        leak = "its id" if query in dev_queries.by_id else "its text"
        file.add(where, "leaked-query", f"query {query!r} is evaluated: {leak} is among the dev queries")
    keys = {passage.id: fingerprint(passage.content) for passage in example.passages} or file.documents or {}
    positive_texts = {keys[name] for name in example.positive_ids if name in keys}
    if twin := next((name for name in example.negative_ids if keys.get(name) in positive_texts), None):
        file.add(where, "positive-among-negatives", f"document {twin!r} has the text of a positive of query {query!r}")
