"""Scores as trec_eval, BEIR, MTEB and MS MARCO's script compute them."""

from collections.abc import Collection
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


def check_tool(tool: str, wanted: Collection[Measure]) -> None:
    """UsageError for an unknown tool, or a measure that it does not compute."""
    if tool not in TOOLS:
        raise UsageError(f"--compat {tool}: expected {', '.join(TOOLS)}")
    for measure in wanted if tool == "msmarco" else ():
        if measure.NAME != "RR":
            raise UsageError(f"--compat {tool}: {measure}: it computes RR@k alone; leave the other measures out")


def evaluate_as(tool: str, path: Path, run: Run, qrels: Qrels, measure: Measure) -> dict[str, float]:
    """The values of a measure of the run at `path` by query, as the tool computes them: its rules for ties, ids and missing queries."""
    if measure.NAME == "RR" and tool in ("beir", "mteb"):
        run = runs.read_run(path, by="file")
    if tool == "msmarco":  # in the order of the rank column; every line of the judgements is relevant
        run, qrels = runs.read_run(path, by="rank"), {query: dict.fromkeys(judged, 1) for query, judged in qrels.items()}
    if tool == "beir":
        run = remove_own_ids(run)
    values = measures.evaluate_run(run, qrels, [measure])[str(measure)]
    if tool in ("trec_eval", "mteb") or (tool == "beir" and measure.NAME != "RR"):  # the mean over queries with hits
        return {query: value for query, value in values.items() if query in run.query_rows}
    return values


def remove_own_ids(run: Run) -> Run:
    """The run without documents whose id is their query's."""
    own = Ids.from_strings(run.document_ids).lookup(run.queries)
    keep: NDArray[np.bool_] = run.documents != np.repeat(own, np.diff(run.starts))
    starts = np.concatenate([[0], np.cumsum(keep)])[run.starts]
    return Run(run.queries, starts, run.documents[keep], run.scores[keep], run.document_ids, run.tag)
