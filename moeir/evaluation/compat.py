"""Values as trec_eval without -c, MTEB and BEIR have them."""

from collections.abc import Collection

import numpy as np
from ir_measures import Measure

from moeir.evaluation.measures import evaluate_run
from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run


def evaluate_as(tool: str, run: Run, qrels: Qrels, measures: Collection[Measure]) -> dict[str, dict[str, float]]:
    """Value of each measure for each judged query that has hits; as `beir`, RR for all, and no document counts that has its query's id."""
    run = remove_own_ids(run) if tool == "beir" else run
    values = evaluate_run(run, qrels, measures)
    for measure in measures:
        if tool != "beir" or measure.NAME != "RR":
            values[str(measure)] = {query: value for query, value in values[str(measure)].items() if query in run.query_rows}
    return values


def remove_own_ids(run: Run) -> Run:
    """The run without documents whose id is their query's."""
    own = Ids.from_strings(run.document_ids).lookup(run.queries)
    keep = run.documents != np.repeat(own, np.diff(run.starts))
    starts = np.concatenate([[0], np.cumsum(keep)])[run.starts]
    return Run(run.queries, starts, run.documents[keep], run.scores[keep], run.document_ids, run.tag)
