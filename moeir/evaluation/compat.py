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
from moeir.evaluation import measures
from moeir.records import runs
from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run


@dataclass(frozen=True)
class ToolConventions:
    """How a tool deviates from moeir.

    `returned_only`: means cover judged queries with hits only, `rr_returned_only` the same for RR; `drop_own_ids`: a document with the
    query's id is removed; `rr_order`: order of tied documents for RR (`score`, `file`), or of all documents (`rank`); `all_relevant`:
    every judgement counts as relevant; `only_measure`: the one measure the tool computes.
    """

    returned_only: bool = True
    rr_returned_only: bool = True
    drop_own_ids: bool = False
    rr_order: str = "score"
    all_relevant: bool = False
    only_measure: str | None = None


TOOLS = {
    "trec_eval": ToolConventions(),
    "beir": ToolConventions(rr_returned_only=False, drop_own_ids=True, rr_order="file"),
    "mteb": ToolConventions(rr_order="file"),
    "msmarco": ToolConventions(returned_only=False, rr_returned_only=False, rr_order="rank", all_relevant=True, only_measure="RR"),
}


@dataclass(frozen=True)
class Step:
    """One deviation of a tool applied to a measure: the values by query and a description."""

    description: str
    values: Mapping[str, float]


def find_tool(name: str, wanted: Collection[Measure]) -> ToolConventions:
    """Conventions of a tool; UsageError for an unknown tool, or a measure that it does not compute."""
    if name not in TOOLS:
        raise UsageError(f"--compat {name}: expected {', '.join(TOOLS)}")
    tool = TOOLS[name]
    for measure in wanted:
        if tool.only_measure is not None and tool.only_measure != measure.NAME:
            raise UsageError(f"--compat {name}: {measure}: it computes {tool.only_measure}@k alone; leave the other measures out")
    return tool


class ToolView:
    """One run evaluated by the conventions of a tool."""

    def __init__(self, path: Path, run: Run, qrels: Qrels, tool: ToolConventions) -> None:
        self._path, self._run, self._qrels, self._tool = path, run, qrels, tool

    def values(self, measure: Measure) -> Mapping[str, float]:
        """Values that the tool averages: those of the last step."""
        return list(self.steps(measure))[-1].values

    def steps(self, measure: Measure) -> Iterator[Step]:
        """Steps from our values to the tool's, one deviation at a time."""
        tool, run, qrels, reciprocal = self._tool, self._run, self._qrels, measure.NAME == "RR"

        def evaluate(description: str) -> Step:
            return Step(description, measures.evaluate_run(run, qrels, [measure])[str(measure)])

        yield (step := evaluate("moeir: every judged query counts, ties by document id"))
        if reciprocal and tool.rr_order == "file":
            run = self._reordered_run
            ties = measures.count_queries_with_ties(self._run)
            yield (step := evaluate(f"ties in the order of the file ({ties} lists have ties)"))
        if reciprocal and tool.rr_order == "rank":
            run = self._reordered_run
            yield (step := evaluate("in the order of the rank column, whatever the scores"))
        if tool.drop_own_ids:
            run, dropped = remove_own_ids(run)
            yield (step := evaluate(f"a document with the query's own id taken out ({dropped} hits)"))
        if tool.all_relevant:
            zeros = sum(grade < 1 for judged in qrels.values() for grade in judged.values())
            qrels = {query: dict.fromkeys(judged, 1) for query, judged in qrels.items()}
            yield (step := evaluate(f"every line of the judgements counts as relevant ({zeros} have grade 0 or less)"))
        if tool.rr_returned_only if reciprocal else tool.returned_only:
            with_hits = {query: value for query, value in step.values.items() if query in run.query_rows}
            yield Step(f"the mean over queries with hits ({len(step.values) - len(with_hits)} judged queries have none)", with_hits)

    @cached_property
    def _reordered_run(self) -> Run:
        return runs.read_run(self._path, by=self._tool.rr_order)


def step_table(compared: Mapping[str, ToolView], wanted: Sequence[Measure]) -> list[list[object]]:
    """Rows (run, measure, step, mean, change) for all steps of all measures."""
    rows: list[list[object]] = []
    for name, view in compared.items():
        for measure in wanted:
            before = None
            for step in view.steps(measure):
                mean = measures.aggregate_values({str(measure): step.values})[str(measure)]
                rows.append([name, str(measure), step.description, mean, "" if before is None else f"{mean - before:+.4f}"])
                before = mean
    return rows


def remove_own_ids(run: Run) -> tuple[Run, int]:
    """The run without documents whose id is their query's, and the number of removed hits."""
    own = Ids.from_strings(run.document_ids).lookup(run.queries)
    keep: NDArray[np.bool_] = run.documents != np.repeat(own, np.diff(run.starts))
    starts = np.concatenate([[0], np.cumsum(keep)])[run.starts]
    return Run(run.queries, starts, run.documents[keep], run.scores[keep], run.document_ids, run.tag), int((~keep).sum())
