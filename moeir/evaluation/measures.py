"""Measures by name, their values per query, coverage by the judgements, and ranges over orders of tied documents.

The common measures are computed in `judged_ranks`, the others by ir-measures, which gets ranks instead of scores, in the order of
`records.runs`, so that all its providers break ties as trec_eval does. Every judged query counts: a query that the run lacks
scores 0, and so does one without a relevant document.
"""

import ast
import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ir_measures
import numpy as np
from ir_measures import Measure, providers
from numpy.typing import NDArray

from moeir.errors import DataError, UsageError
from moeir.evaluation.judged_ranks import JudgedRanks, is_native
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

_MEASURE_PATTERN = re.compile(r"(?P<name>[^\W\d]\w*(?:\.\d+)?)(?:\((?P<options>.*)\))?(?:@(?P<at>.+))?")
_OBJECT_ADDRESS = re.compile(r"<[^<>]* object at 0x\w+>")
_NAME_WITH_NUMBER = re.compile(r"(?P<name>\w+?)[_.](?P<number>\d+(?:\.\d+)?)")

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
_RANGES: dict[str, tuple[Any, float, float]] = {  # of options
    **{"cutoff": (int, 1, 2**31 - 1), "rel": (int, 1, _MAX_GRADE), "gains": (int, 0, _MAX_GRADE)},
    "beta": (float, 0.001, 1000.0),  # trec_eval reads no exponents
}
_QUERIES_PER_BATCH = 500  # limits the size of the dictionaries that ir-measures needs
_LIMITED_TO_CUTOFF = {"nDCG", "RR", "R", "P", "AP", "Success", "Judged"}  # documents below the cutoff do not change these


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
    name, number = _split_cutoff(form["name"]) if form else (text, None)
    if form is None or name.lower() not in _NAMES:
        raise UsageError(f"no measure is called {text!r}{_suggestion(name)}; nDCG@10, RR@10, R@100, AP, P@5, Success@20 are")
    measure: Measure = ir_measures.measures.registry[_NAMES[name.lower()]]
    try:
        options = _parse_options(form["options"] or "")
        at = form["at"] or number
        if at is not None:
            options[measure.AT_PARAM] = ast.literal_eval(at)
        _check_ranges(text, options)
        measure = measure(**options)
        supported = _PROVIDERS.supports(measure) and measure.NAME not in _DIFFERS_FROM_TREC_EVAL  # `supports` checks the options too
    except (AssertionError, SyntaxError, ValueError, TypeError) as fault:
        expected = "expected NAME, NAME@CUTOFF or NAME(option=value)@CUTOFF, and the flag again for another measure"
        reason = _OBJECT_ADDRESS.sub("nothing", f"{fault}; ") if str(fault) else ""
        raise UsageError(f"measure {text!r} cannot be read: {reason}{expected}") from None
    if not supported:
        advice = "; exponential gains are nDCG(gains={1:1,2:3,3:7})@10" if "dcg" in options else ""
        raise UsageError(f"measure {text!r} is not computed here{advice}")
    return measure


def _check_ranges(text: str, options: dict[str, Any]) -> None:
    """UsageError for a value that the libraries behind a measure do not take: they crash, wait for minutes, or return another number."""
    for name in _RANGES.keys() & options.keys():
        kind, least, most = _RANGES[name]
        value = options[name]
        numbers = [*value, *value.values()] if name == "gains" and isinstance(value, dict) else [value]
        if any(type(number) not in (int, kind) or not least <= number <= most for number in numbers):
            expected = f"expected {'a whole number' if kind is int else 'a number'} from {least} to {most}"
            raise UsageError(f"measure {text!r}: {name} is {value!r}; {expected}{' for each grade' if name == 'gains' else ''}")
        options[name] = kind(value) if kind is float else value


def check_collection(run: Run, qrels: Qrels) -> None:
    """DataError if no query of a run is judged."""
    if not any(query in run.query_rows for query in qrels):
        run_query, judged_query = (next(iter(names), "none") for names in (run.queries, qrels))
        reason = f"it shares no query with the judgements (it has {run_query!r}, they have {judged_query!r})"
        raise DataError(f"run of another collection: {reason}")


def evaluate_run(run: Run, qrels: Qrels, measures: Collection[Measure]) -> dict[str, dict[str, float]]:
    """Value of each measure for each judged query, in the order of the judgements."""
    check_collection(run, qrels)
    values: dict[str, dict[str, float]] = {str(measure): dict.fromkeys(qrels, float(measure.DEFAULT)) for measure in measures}
    quick = [measure for measure in measures if is_native(measure)]
    if quick:
        judged = JudgedRanks.from_run(run, qrels)
        values |= {str(measure): judged.compute(measure) for measure in quick}
    others = [measure for measure in measures if measure not in quick]
    for depth in {_needed_depth(measure) for measure in others}:
        same_depth = [measure for measure in others if _needed_depth(measure) == depth]
        for metric in _compute_with_ir_measures(run if depth is None else run.top(depth), qrels, same_depth):
            values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


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


def _split_cutoff(name: str) -> tuple[str, str | None]:
    numbered = _NAME_WITH_NUMBER.fullmatch(name)
    if numbered and name.lower() not in _NAMES and numbered["name"].lower() in _NAMES:
        return numbered["name"], numbered["number"]
    return name, None


def _suggestion(name: str) -> str:
    matches = difflib.get_close_matches(name.lower(), _NAMES, n=3)
    return f" (did you mean {' or '.join(dict.fromkeys(_NAMES[match] for match in matches))}?)" if matches else ""


def _parse_options(text: str) -> dict[str, Any]:
    call = ast.parse(f"measure({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("options are name=value, between commas")
    return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}


def _needed_depth(measure: Measure) -> int | None:
    cutoff = measure.params.get("cutoff")
    whole = measure.NAME not in _LIMITED_TO_CUTOFF or measure.params.get("judged_only")
    return None if whole or cutoff is None else int(cutoff)


def _compute_with_ir_measures(run: Run, qrels: Qrels, measures: list[Measure]) -> Iterator[ir_measures.Metric]:
    queries = list(qrels)
    for start in range(0, len(queries), _QUERIES_PER_BATCH):
        batch = queries[start : start + _QUERIES_PER_BATCH]
        judged = {query: {document: max(grade, -2) for document, grade in qrels[query].items()} for query in batch}
        for query, grades in judged.items():
            if (highest := max(grades.values(), default=0)) > _MAX_GRADE:
                raise DataError(f"query {query!r}: a grade of {highest}; {measures[0]} is computed for grades up to {_MAX_GRADE}")
        ranks = {query: {document: -float(rank) for rank, document in enumerate(run.documents_of(query))} for query in judged}
        if not any(measure.NAME == "NumRel" for measure in measures):  # the only measure with a value for an empty list
            ranks = {query: documents for query, documents in ranks.items() if documents}
        yield from _PROVIDERS.iter_calc(measures, judged, ranks)


def tie_ranges(run: Run, qrels: Qrels, wanted: Collection[Measure]) -> dict[str, tuple[float, float]]:
    """Smallest and largest mean of each measure over all orders of tied documents.

    Tied documents in ascending order of grade give the minimum of every query, in descending order its maximum (nDCG, AP, RR, R, P,
    Success and Rprec never decrease when a better document moves up).
    """
    for measure in wanted:
        if not is_native(measure):
            raise UsageError(f"--ties: {measure}: not known over orders of ties; nDCG, AP, RR, R, P and Success are")
    grades = _hit_grades(run, qrels)
    least, most = (aggregate_values(evaluate_run(_reorder_ties(run, sign * grades), qrels, wanted)) for sign in (1, -1))
    return {name: (least[name], most[name]) for name in least}


def count_queries_with_ties(run: Run) -> int:
    """Number of lists with two documents of equal score."""
    return len(np.unique(np.searchsorted(run.starts, np.flatnonzero(~_score_changes(run)), side="right")))


def _hit_grades(run: Run, qrels: Qrels) -> NDArray[np.int64]:
    """Grade of every hit [n]; 0 if unjudged."""
    judged = JudgedRanks.from_run(run, qrels)
    retrieved = judged.ranks > 0
    lists = np.array([run.query_rows.get(query, 0) for query in judged.queries], dtype=np.int64)[judged.query_rows[retrieved]]
    grades = np.zeros(len(run.scores), np.int64)
    grades[run.starts[lists] + judged.ranks[retrieved] - 1] = judged.grades[retrieved]
    return grades


def _reorder_ties(run: Run, keys: NDArray[np.int64]) -> Run:
    """The run with documents of equal score in ascending order of their keys."""
    order = np.lexsort((keys, np.cumsum(_score_changes(run))))
    return replace(run, documents=run.documents[order], scores=run.scores[order])


def _score_changes(run: Run) -> NDArray[np.bool_]:
    """Whether the score of each hit [n] differs from that of the hit before it; true for the first of a list."""
    changes = np.ones(len(run.scores), dtype=bool)
    changes[1:] = run.scores[1:] != run.scores[:-1]
    changes[run.starts[run.starts < len(changes)]] = True
    return changes
