"""Scores as trec_eval, BEIR, MTEB and MS MARCO's script compute them, and step by step why they differ from ours."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
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

TOOLS = ("trec_eval", "beir", "mteb", "msmarco")


@dataclass(frozen=True)
class Step:
    """One deviation of a tool applied to a measure: a description, and the values by query."""

    description: str
    values: Mapping[str, float]


def check_tool(tool: str, wanted: Collection[Measure]) -> None:
    """UsageError for an unknown tool, or a measure that it does not compute."""
    if tool not in TOOLS:
        raise UsageError(f"--compat {tool}: expected {', '.join(TOOLS)}")
    for measure in wanted if tool == "msmarco" else ():
        if measure.NAME != "RR":
            raise UsageError(f"--compat {tool}: {measure}: it computes RR@k alone; leave the other measures out")


def tool_steps(tool: str, path: Path, run: Run, qrels: Qrels, measure: Measure) -> Iterator[Step]:
    """Steps from our values of a measure of the run at `path` to the tool's, one deviation at a time; the last has the tool's values."""

    def evaluate(description: str) -> Step:
        return Step(description, measures.evaluate_run(run, qrels, [measure])[str(measure)])

    yield (step := evaluate("moeir: every judged query counts, ties by document id"))
    if measure.NAME == "RR" and tool in ("beir", "mteb"):
        run = runs.read_run(path, by="file")
        yield (step := evaluate("ties in the order of the file"))
    if tool == "msmarco":
        run, qrels = runs.read_run(path, by="rank"), {query: dict.fromkeys(judged, 1) for query, judged in qrels.items()}
        yield (step := evaluate("in the order of the rank column; every line of the judgements counts as relevant"))
    if tool == "beir":
        run, dropped = remove_own_ids(run)
        yield (step := evaluate(f"a document with the query's own id taken out ({dropped} hits)"))
    if tool in ("trec_eval", "mteb") or (tool == "beir" and measure.NAME != "RR"):
        with_hits = {query: value for query, value in step.values.items() if query in run.query_rows}
        yield Step(f"the mean over queries with hits ({len(step.values) - len(with_hits)} judged queries have none)", with_hits)


def step_rows(run: str, steps: Mapping[str, Sequence[Step]]) -> Iterator[list[object]]:
    """Rows (run, measure, step, mean, change) for the steps of each measure."""
    for measure, own_steps in steps.items():
        means = [measures.aggregate_values({measure: step.values})[measure] for step in own_steps]
        changes = ["", *(f"{mean - before:+.4f}" for before, mean in pairwise(means))]
        yield from ([run, measure, step.description, mean, change] for step, mean, change in zip(own_steps, means, changes, strict=True))


def remove_own_ids(run: Run) -> tuple[Run, int]:
    """The run without documents whose id is their query's, and the number of removed hits."""
    own = Ids.from_strings(run.document_ids).lookup(run.queries)
    keep: NDArray[np.bool_] = run.documents != np.repeat(own, np.diff(run.starts))
    starts = np.concatenate([[0], np.cumsum(keep)])[run.starts]
    return Run(run.queries, starts, run.documents[keep], run.scores[keep], run.document_ids, run.tag), int((~keep).sum())
