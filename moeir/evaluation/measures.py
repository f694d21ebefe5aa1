"""Measures by name, their values per query, and coverage by the judgements.

The common measures are computed in `judged_ranks`, the others by ir-measures, which gets ranks instead of scores, in the order of
`records.runs`, so that all its providers break ties as trec_eval does. Every judged query counts: a query that the run lacks
scores 0, and so does one without a relevant document.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ir_measures
import numpy as np
from ir_measures import Measure, providers

from moeir.errors import DataError, UsageError
from moeir.evaluation.judged_ranks import JudgedRanks, is_native
from moeir.records.ids import Ids
from moeir.records.passages import find_passage_of
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

_MEASURE_PATTERN = re.compile(r"(?P<name>[^\W\d]\w*?)(?:[_.](?P<number>\d+(?:\.\d+)?))?(?P<options>\(.*\))?(?:@(?P<at>.+))?")
_TREC_EVAL_NAMES = {  # trec_eval's name, which may end in `_` and a number -> name in ir-measures
    "ndcg": "nDCG", "ndcg_cut": "nDCG", "map": "AP", "map_cut": "AP", "p": "P", "recall": "R", "recip_rank": "RR",
    "success": "Success", "rprec": "Rprec", "bpref": "Bpref", "infap": "infAP",
    "set_p": "SetP", "set_recall": "SetR", "set_map": "SetAP", "set_f": "SetF", "set_relative_p": "SetRelP",
    "num_q": "NumQ", "num_ret": "NumRet", "num_rel": "NumRel", "num_rel_ret": "NumRelRet",
}  # fmt: skip
_NAMES = (
    {name.lower(): name for name in ir_measures.measures.registry} | _TREC_EVAL_NAMES | {"mrr": "RR", "hit": "Success", "hits": "Success"}
)

_ir_providers: Any = providers  # partly typed
# Only providers that run in this process and accept any query: the others start Perl, need packages, or divide by zero.
_PROVIDERS = _ir_providers.FallbackProvider([_ir_providers.registry[name] for name in ("pytrec_eval", "msmarco", "judged")])
_DIFFERS_FROM_TREC_EVAL = {"IPrec"}  # pytrec_eval rounds recall levels differently

_MAX_GRADE = 10_000  # of what ir-measures computes: trec_eval has a table of all grades up to the largest
# Options for which trec_eval neither crashes nor returns another measure:
_RANGES = {"cutoff": (1, 2**31 - 1), "rel": (1, _MAX_GRADE), "gains": (0, _MAX_GRADE), "beta": (0.001, 1000.0)}
_QUERIES_PER_BATCH = 500  # limits the size of the dictionaries that ir-measures needs


@dataclass(frozen=True, slots=True)
class Coverage:
    """Queries judged, returned, judged but not returned, returned but not judged; share of unjudged documents at `depth`."""

    judged: int
    returned: int
    missing: int
    extra: int
    depth: int
    unjudged_at_depth: float


def parse_measure(text: str) -> Measure:
    """Parse a measure name of ir-measures, trec_eval, or another one in common use.

    >>> [str(parse_measure(name)) for name in ("nDCG@10", "ndcg_cut_10", "MRR@10", "recall_1000", "map", "R(rel=2)@100")]
    ['nDCG@10', 'nDCG@10', 'RR@10', 'R@1000', 'AP', 'R(rel=2)@100']
    """
    form = _MEASURE_PATTERN.fullmatch(text.strip())
    name = form["name"] if form else text
    if form is None or name.lower() not in _NAMES:
        stem = name.lower().rstrip("0123456789")
        matches = dict.fromkeys(_NAMES[match] for match in difflib.get_close_matches(name.lower(), _NAMES, n=3))
        if stem in _NAMES:  # ndcg10
            matches = {f"{_NAMES[stem]}@{name[len(stem) :]}": None}
        suggestion = f" (did you mean {' or '.join(matches)}?)" if matches else ""
        raise UsageError(f"no measure is called {text!r}{suggestion}; nDCG@10, RR@10, R@100, AP, P@5, Success@20 are")
    at = form["at"] or form["number"]
    try:
        measure: Measure = ir_measures.parse_measure(_NAMES[name.lower()] + (form["options"] or "") + (f"@{at}" if at else ""))
        supported = _PROVIDERS.supports(measure) and measure.NAME not in _DIFFERS_FROM_TREC_EVAL  # `supports` checks the options too
    except (AssertionError, ValueError, TypeError) as fault:
        reason = re.sub(r"<[^<>]* object at 0x\w+>", "nothing", str(fault))
        expected = "expected NAME, NAME@CUTOFF or NAME(option=value)@CUTOFF, and the flag again for another measure"
        raise UsageError(f"measure {text!r} cannot be read: {reason}; {expected}") from None
    if not supported:
        advice = "; exponential gains are nDCG(gains={1:1,2:3,3:7})@10" if "dcg" in measure.params else ""
        raise UsageError(f"measure {text!r} is not computed here{advice}")
    for option, (least, most) in _RANGES.items():
        value = measure.params.get(option, least)
        numbers = [*value, *value.values()] if isinstance(value, dict) else [value]
        if any(type(number) is not type(least) or not least <= number <= most for number in numbers):
            raise UsageError(f"measure {text!r}: {option} is {value!r}; expected numbers from {least} to {most}")
    return measure


def check_collection(run: Run, qrels: Qrels) -> None:
    """DataError if no query of a run is judged, or if it is of passages of the documents that are."""
    if not any(query in run.query_rows for query in qrels):
        run_query, judged_query = (next(iter(names), "none") for names in (run.queries, qrels))
        reason = f"it shares no query with the judgements (it has {run_query!r}, they have {judged_query!r})"
        raise DataError(f"run of another collection: {reason}")
    judged = {document for grades in qrels.values() for document in grades}
    if passage := find_passage_of(run.document_ids, judged):
        reason = f"it has {passage!r}, but judged is {passage.rpartition('#')[0]!r}"
        raise DataError(f"run of passages: {reason}; add --collapse max to evaluate, or to the search or fuse that made it")


def evaluate_run(run: Run, qrels: Qrels, measures: Collection[Measure]) -> dict[str, dict[str, float]]:
    """Value of each measure for each judged query, in the order of the judgements."""
    check_collection(run, qrels)
    values: dict[str, dict[str, float]] = {str(measure): dict.fromkeys(qrels, float(measure.DEFAULT)) for measure in measures}
    native = [measure for measure in measures if is_native(measure)]
    if native:
        judged = JudgedRanks.from_run(run, qrels)
        values |= {str(measure): judged.compute(measure) for measure in native}
    if others := [measure for measure in measures if measure not in native]:
        cutoffs: list[Any] = [None if measure.params.get("judged_only") else measure.params.get("cutoff") for measure in others]
        for metric in _compute_with_ir_measures(run if None in cutoffs else run.top(max(cutoffs)), qrels, others):
            values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def evaluate_as(tool: str, run: Run, qrels: Qrels, measures: Collection[Measure]) -> dict[str, dict[str, float]]:
    """Values as another tool has them, of each judged query with hits: `trec_eval` without -c (and MTEB), or `beir`, for which RR is of all
    and no document counts that has its query's id."""
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


def aggregate_values(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The mean of each measure over its queries, or the sum where the measure counts (NumQ, NumRel, NumRet).

    >>> aggregate_values({"RR@10": {"q1": 1.0, "q2": 0.5}})
    {'RR@10': 0.75}
    """
    totals = {measure: math.fsum(by_query.values()) for measure, by_query in values.items()}
    return {measure: total if measure.startswith("Num") else total / max(len(values[measure]), 1) for measure, total in totals.items()}


def compute_coverage(run: Run, qrels: Qrels, depth: int = 10) -> Coverage:
    """Coverage of a run by the judgements: query counts on either side, and the unjudged share of the top `depth` of judged queries."""
    both = [query for query in qrels if query in run.query_rows]
    top = run.top(depth)
    unjudged = [document not in qrels[query] for query in both for document in top.documents_of(query)]
    share = sum(unjudged) / len(unjudged) if unjudged else 0.0
    return Coverage(len(qrels), len(run), len(qrels) - len(both), len(run) - len(both), depth, share)


def _compute_with_ir_measures(run: Run, qrels: Qrels, measures: list[Measure]) -> Iterator[ir_measures.Metric]:
    queries = list(qrels)
    for start in range(0, len(queries), _QUERIES_PER_BATCH):
        batch = queries[start : start + _QUERIES_PER_BATCH]
        judged = {query: {document: max(grade, -2) for document, grade in qrels[query].items()} for query in batch}
        for query, grades in judged.items():
            if (highest := max(grades.values(), default=0)) > _MAX_GRADE:
                raise DataError(f"query {query!r}: a grade of {highest}; {measures[0]} is computed for grades up to {_MAX_GRADE}")
        lists = ((query, run.documents_of(query)) for query in judged)
        ranks = {query: {document: -float(rank) for rank, document in enumerate(names)} for query, names in lists if names}
        if ranks:
            yield from _PROVIDERS.iter_calc(measures, judged, ranks)
