"""Pages of single queries: documents with their ranks, scores and grades."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from moeir.records.qrels import Qrels
from moeir.records.runs import Run
from moeir.report.reasons import Explanations

QUERIES_PER_CHUNK, TEXTS_PER_CHUNK = 64, 256
UNJUDGED = -9
QueryPage = dict[str, Any]


class QueryPages:
    """Pages of single queries: the first `depth` documents of every run, and the relevant documents at any rank."""

    def __init__(self, runs: Mapping[str, Run], qrels: Qrels, depth: int) -> None:
        self.runs, self.qrels, self.depth = runs, qrels, depth
        names = sorted(set().union(*(run.document_ids for run in runs.values()), *(grades for grades in qrels.values())))
        self.names, self.codes = names, {name: code for code, name in enumerate(names)}
        self._run_codes = [np.array([self.codes[name] for name in run.document_ids], dtype=np.int64) for run in runs.values()]

    def shown_documents(self, query: str) -> list[str]:
        """Documents on the page of a query: the top of every list, run by run, then at most `depth` further relevant documents."""
        tops = [_top_documents(run, query, self.depth) for run in self.runs.values()]
        grades = self.qrels.get(query, {})
        answers = sorted((name for name, grade in grades.items() if grade > 0), key=lambda name: -grades[name])
        return list(dict.fromkeys([*(name for top in tops for name in top), *answers[: self.depth]]))

    def query_page(self, query: str, numbers: Mapping[str, int], reasons: Explanations) -> QueryPage:
        """Documents `d` by number, with the rank `r` of each in every run (0: absent), its scores `s`, and its grade `g`."""
        documents = self.shown_documents(query)
        shown = np.array([self.codes[name] for name in documents], dtype=np.int64)
        ranks, scores = [], []
        for run, codes in zip(self.runs.values(), self._run_codes, strict=True):
            run_ranks, run_scores = _lookup_hits(run, codes, query, shown)
            ranks.append(run_ranks)
            scores.append(run_scores)
        grades = self.qrels.get(query, {})
        page: QueryPage = {"d": [numbers[name] for name in documents], "r": ranks, "s": scores}
        page["g"] = [grades.get(name, UNJUDGED) for name in documents]
        return page | reasons.for_query(query)

    def first_answer_ranks(self, queries: Sequence[str]) -> list[list[int]]:
        """By run and query the rank of the first relevant document; 0 if there is none."""
        ranks_by_run: list[list[int]] = [[] for _ in self.runs]
        for query in queries:
            answers = [self.codes[name] for name, grade in self.qrels.get(query, {}).items() if grade > 0]
            for ranks, run, codes in zip(ranks_by_run, self.runs.values(), self._run_codes, strict=True):
                listed = codes[run.list_at(run.query_rows[query])[0]] if query in run.query_rows else codes[:0]
                positions = np.flatnonzero(np.isin(listed, answers))
                ranks.append(int(positions[0]) + 1 if len(positions) else 0)
        return ranks_by_run


def _top_documents(run: Run, query: str, depth: int) -> list[str]:
    """Ids of the top documents of one query."""
    return [run.document_ids[code] for code in run.list_at(run.query_rows[query])[0][:depth].tolist()] if query in run.query_rows else []


def _lookup_hits(run: Run, codes: np.ndarray, query: str, wanted: np.ndarray) -> tuple[list[int], list[float | None]]:
    """Rank and score in one list of each wanted document [n]; 0 and None if absent."""
    if query not in run.query_rows:
        return [0] * len(wanted), [None] * len(wanted)
    documents, scores = run.list_at(run.query_rows[query])
    listed = codes[documents]
    order = np.argsort(listed, kind="stable")
    positions = np.searchsorted(listed, wanted, sorter=order)
    positions[positions == len(listed)] = 0
    rows = order[positions] if len(listed) else positions
    ranks: list[int] = []
    rounded: list[float | None] = []
    for row, code in zip(rows.tolist(), wanted.tolist(), strict=True):
        present = len(listed) > 0 and listed[row] == code
        ranks.append(row + 1 if present else 0)
        rounded.append(float(f"{scores[row]:.6g}") if present else None)  # rounded for display
    return ranks, rounded


def shorten(text: str, limit: int) -> str:
    """Cut a text at a word boundary within `limit` characters.

    >>> shorten("Owls hunt at night.", 12)
    'Owls hunt at …'
    """
    if len(text) <= limit:
        return text
    whole = text[:limit] if text[limit].isspace() else text[:limit].rpartition(" ")[0] or text[:limit]
    return whole.rstrip() + " …"


def split_chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of `size` items; the last may be shorter."""
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
