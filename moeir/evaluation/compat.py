"""Scores as trec_eval, BEIR, MTEB and MS MARCO's script compute them, and why they differ from ours.

Each score is ours plus the steps in the tool's `ToolConventions`, so the change of each step can be reported.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from ir_measures import Measure
from numpy.typing import NDArray

from moeir.errors import UsageError
from moeir.evaluation import measures, ties
from moeir.records import runs
from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run


@dataclass(frozen=True)
class Tool:
    """How a tool deviates from moeir.

    `returned_only`: means cover judged queries with hits only, `rr_returned_only` the same for RR; `drop_own_ids`: a document with the
    query's id is removed; `rr_order`: order of tied documents for RR (`score`, `file`), or of all documents (`rank`); `all_relevant`:
    every judgement counts as relevant; `digits`: decimals of rounded means; `only_measure`: the one measure the tool computes.
    """

    returned: bool = True
    reciprocal_returned: bool = True
    own_ids: bool = False
    reciprocal_by: str = "score"
    lines: bool = False
    digits: int | None = None
    only: str | None = None


TOOLS = {
    "trec_eval": Tool(),
    "beir": Tool(reciprocal_returned=False, own_ids=True, reciprocal_by="file", digits=5),
    "mteb": Tool(reciprocal_by="file", digits=5),
    "msmarco": Tool(returned=False, reciprocal_returned=False, reciprocal_by="rank", lines=True, only="RR"),
}


@dataclass(frozen=True)
class Step:
    """One deviation of a tool applied to a measure: the values by query and a description."""

    words: str
    values: Mapping[str, float]


def check(name: str, wanted: Collection[Measure]) -> Tool:
    """Conventions of a tool; UsageError for an unknown tool, or a measure that it does not compute."""
    if name not in TOOLS:
        raise UsageError(f"--compat {name}: expected {', '.join(TOOLS)}")
    tool = TOOLS[name]
    for measure in wanted:
        if tool.only is not None and tool.only != measure.NAME:
            raise UsageError(f"--compat {name}: {measure}: it computes {tool.only}@k alone; leave the other measures out")
    return tool


class Compared:
    """One run evaluated by the conventions of a tool."""

    def __init__(self, path: Path, run: Run, qrels: Qrels, tool: Tool) -> None:
        self._path, self._run, self._qrels, self._tool = path, run, qrels, tool

    def values(self, measure: Measure) -> Mapping[str, float]:
        """Values that the tool averages: those of the last step."""
        return list(self.steps(measure))[-1].values

    def mean(self, values: Mapping[str, float], measure: Measure) -> float:
        """The tool's mean, rounded to its digits."""
        mean = measures.overall({str(measure): values})[str(measure)]
        return mean if self._tool.digits is None else round(mean, self._tool.digits)

    def steps(self, measure: Measure) -> Iterator[Step]:
        """Steps from our values to the tool's, one deviation at a time."""
        tool, run, qrels, reciprocal = self._tool, self._run, self._qrels, measure.NAME == "RR"
        values = measures.per_query(run, qrels, [measure])[str(measure)]
        yield Step("moeir: every judged query counts, ties by document id", values)
        if reciprocal and tool.reciprocal_by == "file":
            run = self._by_file
            values = measures.per_query(run, qrels, [measure])[str(measure)]
            yield Step(f"ties in the order of the file ({ties.queries_with_ties(self._run)} lists have ties)", values)
        if reciprocal and tool.reciprocal_by == "rank":
            run = self._by_rank
            values = measures.per_query(run, qrels, [measure])[str(measure)]
            yield Step("in the order of the rank column, whatever the scores", values)
        if tool.own_ids:
            run, dropped = without_own_ids(run)
            values = measures.per_query(run, qrels, [measure])[str(measure)]
            yield Step(f"a document with the query's own id taken out ({dropped} hits)", values)
        if tool.lines:
            zeros = sum(grade < 1 for judged in qrels.values() for grade in judged.values())
            qrels = {query: dict.fromkeys(judged, 1) for query, judged in qrels.items()}
            values = measures.per_query(run, qrels, [measure])[str(measure)]
            yield Step(f"every line of the judgements counts as relevant ({zeros} have grade 0 or less)", values)
        if tool.reciprocal_returned if reciprocal else tool.returned:
            with_hits = {query: value for query, value in values.items() if query in run.places and len(run.row(run.places[query])[0])}
            yield Step(f"the mean over queries with hits ({len(values) - len(with_hits)} judged queries have none)", with_hits)

    @cached_property
    def _by_file(self) -> Run:
        return runs.read(self._path, by="file")

    @cached_property
    def _by_rank(self) -> Run:
        return runs.read(self._path, by="rank")


def explained(compared: Mapping[str, Compared], wanted: Sequence[Measure]) -> list[list[object]]:
    """Rows (run, measure, step, mean, change) for all steps of all measures."""
    rows: list[list[object]] = []
    for name, view in compared.items():
        for measure in wanted:
            before = None
            for step in view.steps(measure):
                mean = measures.overall({str(measure): step.values})[str(measure)]
                rows.append([name, str(measure), step.words, mean, "" if before is None else f"{mean - before:+.4f}"])
                before = mean
    return rows


def without_own_ids(run: Run) -> tuple[Run, int]:
    """The run without documents whose id is their query's, and the number of removed hits."""
    own = Ids.of(run.names).places(run.queries)
    keep: NDArray[np.bool_] = run.documents != np.repeat(own, np.diff(run.starts))
    starts = np.concatenate([[0], np.cumsum(keep)])[run.starts]
    return Run(run.queries, starts, run.documents[keep], run.scores[keep], run.names, run.tag), int((~keep).sum())
