"""ColBERT's training files: triples of text numbers, with the numbered collection and queries; MS MARCO's triples of ids."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from moeir import data_sources
from moeir.errors import ArtifactError, DataError
from moeir.formats.base import ANSWERS, IDS, PROVENANCE, URL, Conversion, Format, has_digest_id, replace_line_breaks, unread_fields
from moeir.records import examples, lines, texts
from moeir.records.examples import Example, group_by_query
from moeir.records.texts import Text
from moeir.records.trec_columns import parse_float32

TRIPLE_FILES = ("triples.jsonl", "triples.tsv")
COLLECTION, QUERIES = "collection.tsv", "queries.tsv"


class Colbert(Format):
    """A folder of triples.jsonl [query, positive, negative, …], queries.tsv and collection.tsv, numbered from 0: ColBERT's.

    The numbers are the ids; a document with a teacher's score is a pair of both.
    """

    kind = "examples"
    is_folder = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        triples = data_sources.find_file(path, *TRIPLE_FILES)
        if triples is None:
            raise ArtifactError(f"{path}: no triples.jsonl; expected a folder of triples.jsonl, queries.tsv and collection.tsv")
        passages, queries = (_read_numbered_texts(path / name) for name in (COLLECTION, QUERIES))

        def rows() -> Iterator[tuple[str, Example]]:
            for where, row in read_triples(triples):
                for names, number in ((queries, row.query_id), *((passages, number) for number in (*row.positive_ids, *row.negative_ids))):
                    if number not in names:
                        raise DataError(f"{where}: {number} is not in {QUERIES if names is queries else COLLECTION}")
                own = tuple(passages[number] for number in (*row.positive_ids, *row.negative_ids))
                yield where, replace(row, query=queries[row.query_id], passages=own)

        return group_by_query(rows(), conversion.drop_or_refuse)

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0
        with ExitStack() as stack:
            passages, queries = (
                _NumberedTexts(stack.enter_context(lines.open_writer(path / name)), conversion) for name in (COLLECTION, QUERIES)
            )
            for text in (conversion.corpus or {}).values():
                passages.add(text)
            output = stack.enter_context(lines.open_writer(path / TRIPLE_FILES[0]))
            for example in items:
                count += 1
                output.writelines(json.dumps(row) + "\n" for row in _to_rows(example, conversion, passages, queries))
        return count


class IdTriples(Format):
    """Tab-separated ids of a query, a positive and a negative (MS MARCO's qidpidtriples), or JSON lists, with scores as ColBERT's."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        return group_by_query(read_triples(path), conversion.drop_or_refuse)


class MsmarcoHardNegatives(Format):
    """JSON lines {"qid", "pos", "neg"} of ids, the negatives by system: sentence-transformers' msmarco-hard-negatives."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        def rows() -> Iterator[tuple[str, Example]]:
            for where, record in texts.read_objects(path):
                systems = record.get("neg")
                id_lists = [record.get("pos"), *(systems.values() if isinstance(systems, dict) else [systems])]
                if not all(isinstance(ids, list) for ids in id_lists):
                    raise DataError(f"{where}: expected qid, pos and neg, lists of ids or, of neg, a list by system")
                losses = {"a query without a positive": not id_lists[0], "which system found a negative": len(id_lists) > 2}
                conversion.drop_nonempty(where, losses)
                conversion.drop_fields(where, unread_fields(record, ("qid", "pos", "neg")))
                positives, *negatives = (tuple(texts.parse_id(document, where) for document in side) for side in id_lists)
                if positives:
                    yield where, Example(texts.parse_id(record.get("qid"), where), positives, tuple(chain.from_iterable(negatives)))

        return group_by_query(rows(), conversion.drop_or_refuse)


class _NumberedTexts:
    """Texts numbered from 0 in order of appearance, each written when it is first seen."""

    def __init__(self, output: TextIO, conversion: Conversion) -> None:
        self._numbers: dict[str, int] = {}
        self._output, self._conversion = output, conversion

    def add(self, text: Text) -> int:
        if text.id not in self._numbers:
            number = self._numbers[text.id] = len(self._numbers)
            where = f"text {text.id!r}"
            loses_id = text.id != str(number) and not has_digest_id(text)
            self._conversion.drop_nonempty(where, {URL: text.url, ANSWERS: text.answers, IDS: loses_id})
            words = [replace_line_breaks(part, where, self._conversion) for part in (text.text, *([text.title] if text.title else []))]
            self._output.write("\t".join([str(number), *words]) + "\n")
        return self._numbers[text.id]


def _to_rows(example: Example, conversion: Conversion, passages: _NumberedTexts, queries: _NumberedTexts) -> Iterator[list[Any]]:
    """One row per positive, with all negatives."""
    query_text, passages_by_id = conversion.look_up_texts(example, [PROVENANCE])
    teacher_scores, query = example.teacher_scores, queries.add(query_text)

    def entry(document: str) -> Any:
        number = passages.add(passages_by_id[document])
        return [number, examples.trim_score(teacher_scores[document])] if teacher_scores else number

    for positive in example.positive_ids:
        yield [query, entry(positive), *(entry(negative) for negative in example.negative_ids)]


def read_triples(path: Path) -> Iterator[tuple[str, Example]]:
    """The location and the example by id of each row of tab-separated triples, or of JSON lines of a query, a positive and negatives."""
    is_json = lines.strip_compression_suffix(path).suffix in (".jsonl", ".json")
    for where, line in _read_lines(path):
        row = texts.parse_json(line, where) if is_json else line.split("\t")
        if not isinstance(row, list) or len(row) < 2:
            raise DataError(f"{where}: expected a query, a positive and negatives, as a list or between tabs")
        query, *documents = row
        pairs = [entry for entry in documents if isinstance(entry, list) and len(entry) == 2]
        if pairs:
            if len(pairs) < len(documents):
                raise DataError(f"{where}: expected a score of every document or of none")
            documents = [document for document, _ in pairs]
        scores = tuple(parse_float32(str(score), where) for _, score in pairs)
        ids = tuple([texts.parse_id(document, where) for document in documents])
        yield where, Example(texts.parse_id(query, where), ids[:1], ids[1:], positive_scores=scores[:1], negative_scores=scores[1:])


def _read_lines(path: Path) -> Iterator[tuple[str, str]]:
    with lines.open_lines(path) as numbered:
        yield from ((f"{path}:{number}", line) for number, line in numbered if line.strip())


def _read_numbered_texts(path: Path) -> dict[str, Text]:
    """The texts of a file by their number in the triples."""
    numbered_texts: dict[str, Text] = {}
    for where, line in _read_lines(path):
        number, *columns = line.split("\t")
        if len(columns) not in (1, 2):
            raise DataError(f"{where}: expected tab-separated number, text and optional title, found {len(columns) + 1} columns")
        numbered_texts[number] = Text(texts.parse_id(number, where), columns[0], "".join(columns[1:]))
    return numbered_texts
