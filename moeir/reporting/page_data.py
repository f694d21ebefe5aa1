"""Data of an HTML page: measures of runs, pages of single queries with their documents, and training charts.

Everything is columns of numbers and tables of words, in chunks that the page reads on demand.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from moeir.evaluation import result_tables, significance
from moeir.records import texts
from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.reporting.explanations import Explanations
from moeir.reporting.training_curves import TrainingRun, describe_gains, group_curves

VALUE_SCALE = 10_000  # values are stored as integers in units of 1 / 10,000 to keep pages small
QUERIES_PER_CHUNK, TEXTS_PER_CHUNK, MAX_QUERY_LENGTH = 64, 256, 400
UNJUDGED = -9
QueryPage = dict[str, Any]
RunMeasureValues = Mapping[str, Mapping[str, Mapping[str, float]]]  # run → measure → query → value


def comparison_table(by_run: RunMeasureValues, queries: Sequence[str]) -> dict[str, Any]:
    """By measure: mean, low and high of each run, p of each pair of runs, values [run][query] as integers."""
    names = list(next(iter(by_run.values()), ()))
    all_queries = result_tables.ALL_QUERIES
    labelled = {name: {all_queries: values} for name, values in by_run.items()}
    p_values = {base: result_tables.Comparison(against=(base,)).p_values(labelled) for base in by_run}
    return {
        "measures": names,
        "means": [[_compute_interval([of_run[measure][query] for query in queries]) for of_run in by_run.values()] for measure in names],
        "p": [[[p_values[base].get((all_queries, name, base, measure)) for name in by_run] for base in by_run] for measure in names],
        "p_header": result_tables.DEFAULT_COMPARISON.p_header,
        "values": [[[round(of_run[measure][query] * VALUE_SCALE) for query in queries] for of_run in by_run.values()] for measure in names],
    }


def _compute_interval(sample: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval."""
    return math.fsum(sample) / len(sample), *significance.confidence_interval(sample)


class QueryPages:
    """Pages of the judged queries: the first `depth` documents of every run, and the relevant documents at any rank."""

    def __init__(self, runs: Mapping[str, Run], qrels: Qrels, depth: int) -> None:
        self.runs, self.qrels, self.depth, self.queries = runs, qrels, depth, list(qrels)
        self._tops = [run.top(depth) for run in runs.values()]

    def shown_documents(self, query: str) -> list[str]:
        """Documents on the page of a query: the top of every list, run by run, then at most `depth` further relevant documents."""
        tops = (name for run in self._tops for name in run.documents_of(query))
        grades = self.qrels.get(query, {})
        answers = sorted((name for name, grade in grades.items() if grade > 0), key=lambda name: -grades[name])
        return list(dict.fromkeys([*tops, *answers[: self.depth]]))

    def query_page(self, query: str, numbers: Mapping[str, int], reasons: Explanations) -> QueryPage:
        """Documents `d` by number, with the rank `r` of each in every run (0: absent), its scores `s`, and its grade `g`."""
        documents = self.shown_documents(query)
        grades = self.qrels.get(query, {})
        ranks, scores = [], []
        for run in self.runs.values():
            run_ranks = _find_ranks(run, query, documents)
            first = run.starts[run.query_rows[query]] - 1 if any(run_ranks) else 0
            ranks.append(run_ranks)
            scores.append([float(f"{run.scores[first + rank]:.6g}") if rank else None for rank in run_ranks])  # rounded for display
        page = {"d": [numbers[name] for name in documents], "r": ranks, "s": scores}
        return page | {"g": [grades.get(name, UNJUDGED) for name in documents]} | reasons.for_query(query)

    def first_answer_ranks(self, queries: Sequence[str]) -> list[list[int]]:
        """By run and query the rank of the first relevant document; 0 if there is none."""
        answers = [[name for name, grade in self.qrels.get(query, {}).items() if grade > 0] for query in queries]
        ranks_by_run = []
        for run in self.runs.values():
            answer_ranks = (_find_ranks(run, query, names) for query, names in zip(queries, answers, strict=True))
            ranks_by_run.append([min(filter(None, ranks), default=0) for ranks in answer_ranks])
        return ranks_by_run

    @cached_property
    def document_numbers(self) -> dict[str, int]:
        """Number of every shown document, by id."""
        names = dict.fromkeys(name for query in self.queries for name in self.shown_documents(query))
        return {name: number for number, name in enumerate(names)}

    def overview(self, query_texts: Mapping[str, Text]) -> dict[str, Any]:
        """Data of all queries that the page loads first."""
        return {
            "runs": list(self.runs),
            "depth": self.depth,
            "queries": self.queries,
            "texts": [shorten(query_texts[query].content, MAX_QUERY_LENGTH) if query in query_texts else "" for query in self.queries],
            "answers": [sum(grade > 0 for grade in self.qrels[query].values()) for query in self.queries],
            "firsts": self.first_answer_ranks(self.queries),
            "chunks": {"cases": QUERIES_PER_CHUNK, "texts": TEXTS_PER_CHUNK},
        }

    def iter_chunks(self, corpus: Iterable[Text], explanations: Explanations, max_length: int) -> Iterator[tuple[str, Any]]:
        """Query pages in chunks, then documents in chunks: id, title and text, both up to `max_length` characters; only the id if
        `corpus` lacks the document."""
        numbers = self.document_numbers
        cases = (self.query_page(query, numbers, explanations) for query in self.queries)
        for index, chunk in enumerate(texts.split_chunks(cases, QUERIES_PER_CHUNK)):
            yield f"cases-{index}", chunk
        rows: list[list[str]] = [[name] for name in numbers]
        for text in corpus:
            if text.id in numbers:
                rows[numbers[text.id]] = [text.id, shorten(text.title, max_length), shorten(text.text, max_length)]
        for index, documents in enumerate(texts.split_chunks(rows, TEXTS_PER_CHUNK)):
            yield f"texts-{index}", documents


def _find_ranks(run: Run, query: str, names: Sequence[str]) -> list[int]:
    """The rank of each document in the list of a query; 0 if it is absent."""
    documents = run.list_at(run.query_rows[query])[0] if query in run.query_rows else run.documents[:0]
    if not len(documents):
        return [0] * len(names)
    matches = documents == Ids.from_strings(run.document_ids).lookup(names)[:, None]  # [names, hits]
    ranks: list[int] = np.where(matches.any(axis=1), matches.argmax(axis=1) + 1, 0).tolist()
    return ranks


def shorten(text: str, limit: int) -> str:
    """Cut a text at a word boundary within `limit` characters.

    >>> shorten("Owls hunt at night.", 12)
    'Owls hunt at …'
    """
    if len(text) <= limit:
        return text
    whole = text[:limit] if text[limit].isspace() else text[:limit].rpartition(" ")[0] or text[:limit]
    return whole.rstrip() + " …"


def training_charts(trainings: Sequence[TrainingRun]) -> list[dict[str, Any]]:
    """Charts and alarms of each training: title → curves of (step, mean)."""
    data = []
    for training in trainings:
        watch, charts = training.monitor, []
        for title, curves in group_curves(watch).items():
            points = [[[step, float(f"{value / unit:.5g}")] for step, value in watch[fact].points()] for fact, unit in curves.values()]
            charts.append({"title": title, "curves": [{"label": label, "points": own} for label, own in zip(curves, points, strict=True)]})
        alarms = [*map(str, watch.alarms), *([describe_gains(watch)] if "competing" in watch.latest else [])]
        data.append({"name": training.name, "steps": watch.step, "finished": training.finished, "charts": charts, "alarms": alarms})
    return data
