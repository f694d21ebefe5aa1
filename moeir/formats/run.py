"""Runs as TREC's and as JSON; parts shared by formats of runs."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats import base
from moeir.formats.base import Conversion, Format
from moeir.records import lines, runs, texts
from moeir.records.runs import Run
from moeir.records.trec_columns import parse_float32

HIT_COLUMNS = ("query", "document", "rank", "score")
LocatedHit = tuple[str, str, str, float]  # location, query, document, score


class TrecRun(Format):
    """Lines `query Q0 document rank score tag`: TREC's runs, and moeir's."""

    kind = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        yield runs.read_run(path)

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        runs.write_run(run, path)
        return len(run.scores)


class JsonRun(Format):
    """One JSON object {query: {document: score}}: the runs of pytrec_eval, BEIR and ranx."""

    kind = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        with lines.open_lines(path) as numbered:
            lists = texts.parse_json("\n".join(line for _, line in numbered), str(path))
        if not isinstance(lists, dict) or not all(isinstance(hits, dict) for hits in lists.values()):
            raise DataError(f"{path}: an object of objects was expected, {{query: {{document: score}}}}", code="not-an-object")
        yield run_from_hits(_iter_hits(lists, str(path)), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = check_run_ids(next(items), path)
        drop_tag(run, conversion)
        with lines.open_writer(path) as output:
            output.write("{")
            for index, query in enumerate(run.queries):
                hits = {document: float(runs.format_score(score)) for document, score in run.hits(query)}
                output.write(("," if index else "") + f"\n{json.dumps(query, ensure_ascii=False)}: {json.dumps(hits, ensure_ascii=False)}")
            output.write("\n}\n")
        return len(run.scores)


class TabSeparatedRun(base.Format):
    """A run of tab-separated `columns`, of which query and document are the first."""

    kind = "run"
    columns: ClassVar[tuple[str, ...]]

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        """The run; without a score column, its scores come from the ranks."""
        rows = read_hit_rows(path, len(self.columns), ", ".join(self.columns))
        hits: Iterator[LocatedHit]
        if "score" in self.columns:
            hits = ((where, row[0], row[1], parse_float32(row[-1], where)) for where, row in rows)
        else:
            hits = scores_from_ranks((where, row[0], row[1], _parse_rank(row[2], where)) for where, row in rows)
        yield run_from_hits(hits, str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        """Write the run and return its number of hits."""
        run = check_run_ids(next(items), path)
        hits: Iterator[tuple[object, ...]] = iter_hits(run)
        if "score" in self.columns:
            hits = ((query, document, rank, runs.format_score(score)) for query, document, rank, score in iter_hits(run))
        else:
            drop_scores(run, conversion)
        drop_tag(run, conversion)
        return lines.write_rows(map(itemgetter(*map(HIT_COLUMNS.index, self.columns)), hits), path)


def read_hit_rows(path: Path, width: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of `lines.read_rows`, whose first two columns are ids of a query and of a document."""
    for where, row in lines.read_rows(path, width, form):
        yield where, [*(texts.parse_id(name, where) for name in row[:2]), *row[2:]]


def check_run_ids(run: Run, path: Path) -> Run:
    """The run itself; DataError for an id that the readers of this module would refuse."""
    for name in chain(run.queries, run.document_ids):
        texts.parse_id(name, str(path))
    return run


def _parse_rank(rank: str, where: str) -> int:
    if not rank.isdecimal() or len(rank) > runs.MAX_RANK_DIGITS:
        raise DataError(f"{where}: rank is not a whole number: {rank!r}", code="rank-not-a-number")
    return int(rank)


def _iter_hits(lists: dict[str, dict[str, Any]], name: str) -> Iterator[LocatedHit]:
    for query, hits in lists.items():
        for document, score in hits.items():
            where = f"{name}: query {query!r}, document {document!r}"
            if isinstance(score, bool) or not isinstance(score, int | float):
                raise DataError(f"{where}: score is not a number: {score!r}", code="score-not-a-number")
            texts.parse_id(query, where)
            yield where, query, texts.parse_id(document, where), parse_float32(repr(score), where)


def run_from_hits(hits: Iterable[LocatedHit], name: str, tag: str = "moeir") -> Run:
    """Build a run from hits in any order."""
    queries: dict[str, int] = {}
    names: dict[str, int] = {}
    locations, query_codes, document_codes, scores = list[str](), list[int](), list[int](), list[float]()
    for where, query, document, score in hits:
        locations.append(where)
        query_codes.append(queries.setdefault(query, len(queries)))
        document_codes.append(names.setdefault(document, len(names)))
        scores.append(score)
    if not locations:
        raise DataError(f"{name}: has no hits")
    return Run.from_columns(list(queries), query_codes, list(names), document_codes, scores, tag, location=locations.__getitem__)


def scores_from_ranks(hits: Iterable[tuple[str, str, str, int]]) -> Iterator[LocatedHit]:
    """Scores for hits that have only ranks, in any order: a query's last hit gets 1, each better one 1 more."""
    lists: dict[str, list[tuple[int, str, str]]] = {}
    for where, query, document, rank in hits:
        lists.setdefault(query, []).append((rank, where, document))
    for query, ranked_hits in lists.items():
        ranked_hits.sort(key=lambda hit: hit[0])
        for position, (rank, where, document) in enumerate(ranked_hits):
            if position and ranked_hits[position - 1][0] == rank:
                raise DataError(f"{where}: rank {rank} appears twice in the list of query {query!r}", code="rank-order")
            yield where, query, document, float(len(ranked_hits) - position)


def iter_hits(run: Run) -> Iterator[tuple[str, str, int, float]]:
    """Query, document, rank and score of every hit."""
    for query in run.queries:
        for rank, (document, score) in enumerate(run.hits(query), 1):
            yield query, document, rank, score


def drop_scores(run: Run, conversion: Conversion) -> None:
    """Drop or refuse scores; nothing is lost where they are only counted ranks."""
    for query in run.queries:
        hits = run.hits(query)
        if any(score != len(hits) - position for position, (_, score) in enumerate(hits)):
            conversion.drop_or_refuse(f"query {query!r}", "the scores")
            return


def drop_tag(run: Run, conversion: Conversion) -> None:
    """Drop or refuse the run's tag, unless it is one that moeir sets by default: `moeir`, or `moeir.` and the name of an expert."""
    if run.tag.split(".")[0] != "moeir":
        conversion.drop_or_refuse(f"tag {run.tag!r}", "the tag of the run")
