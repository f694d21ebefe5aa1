"""Whether experts should compete: what they gain, learning from all queries alike, on the queries that a competition would take from them.

Lists of the experts before and after such a learning are enough. An expert that ranks a positive low by chance does better next time, and
who wins by chance does worse. So one half of the documents decides who loses a query and the other half measures the gain; and queries are
those lost before and those lost after, with equal weights, so that chance cancels (Oldham 1962: change against the mean of both times).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from moeir.analysis.result import AnalysisResult
from moeir.errors import DataError, UsageError
from moeir.evaluation import measures
from moeir.mining import band
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
TEMPERATURES = (1.0, 0.5, 0.2, 0.1)
FEWEST_QUERIES = 30  # that an expert loses, for a sentence about all
GAINS, ALL = "competition", "all"
COLUMNS = ("expert", "queries", "lost", "owned", "before", "gain", "owners' gain", "difference", "low", "high")
FOR_ADVICE = ("lost", "difference", "low", "high")


def analyze_competition(
    before: Mapping[str, Run], after: Mapping[str, Run], qrels: Qrels, measure: str, *, negatives: int = 7, last: int = 20, seed: int = 42
) -> AnalysisResult:
    """A row per expert, and `all`: the queries that it loses and owns before, its value on lost ones, its gain and their owners' gain; as
    notes the loss that competition keeps at several temperatures, and a sentence.

    `before` and `after` hold each expert's run before and after training without competition. Who loses and who owns is decided as in a
    training: by ranks (CAME eq. 11) among the best judged positive and `negatives` of the first `last` documents of all lists, of one half
    of all documents. `measure` is of the lists without that half, but for relevant documents. Each half decides once and measures once.
    """
    if set(before) != set(after) or len(before) < 2:
        found = f"{', '.join(before)} before, {', '.join(after)} after"
        raise UsageError(f"analyze competition: expected the runs of the same two experts or more, by the same names; found {found}")
    ordered = {name: after[name] for name in before}
    queries = [query for query, grades in qrels.items() if max(grades.values(), default=0) > 0]
    lost, owned, start, gain, masses = [], [], [], [], []
    for half in (0, 1):
        first, second = (
            [_measure_half(run, qrels, queries, 1 - half, measure, seed) for run in runs.values()] for runs in (before, ordered)
        )
        for runs in (before, ordered):
            ranks, losses, counts = rank_experts(runs, qrels, queries, half, negatives, last, seed)
            lost.append((ranks > ranks.min(0)) & counts)
            owned.append((ranks == ranks.min(0)) & (ranks < ranks.max(0)) & counts)
            start.append(first)
            gain.append(np.subtract(second, first))
            masses += [(ranks[:, counts], losses[:, counts])] if runs is before else []
    if not (np.any(lost[::2]) and np.any(lost[1::2])):
        raise DataError("analyze competition: no expert loses a query; expected experts that differ, and hits that are not relevant")
    samples = np.array(lost), np.array(owned), np.array(start), np.array(gain)  # [4, E, Q]: of each half before, after
    names = [*before, ALL]
    rows = [[name, len(queries), *compare_gains(*samples, range(len(before)) if name == ALL else [row])] for row, name in enumerate(names)]
    ranks, losses = (np.concatenate(parts, axis=1) for parts in zip(*masses, strict=True))
    mass = ", ".join(f"{temperature:g}: {loss_mass(ranks, losses, temperature):.2f}" for temperature in TEMPERATURES)
    sentence = advise(measure, rows[-1][2], *rows[-1][-3:])
    rows = [[None if cell in (math.inf, -math.inf) else cell for cell in row] for row in rows]  # of fewer than two lost queries
    notes = [f"loss that competition keeps, by temperature (all alike: 1.00): {mass}", sentence]
    return AnalysisResult(COLUMNS, rows, notes=notes)


def measure_gains(before: Mapping[str, Run], after: Mapping[str, Run], qrels: Qrels, measure: str) -> dict[str, float]:
    """The row `all` of the analysis as metrics of a training, named by `GAINS`; none if no expert loses a query."""
    try:
        row: Sequence[Any] = analyze_competition(before, after, qrels, measure).rows[-1]
    except DataError:
        return {}
    numbers = {name: value for name, value in zip(COLUMNS, row, strict=True) if name in FOR_ADVICE}
    return {} if None in numbers.values() else {f"{GAINS}.{name}.{measure}": float(value) for name, value in numbers.items()}


def rank_experts(
    runs: Mapping[str, Run], qrels: Qrels, queries: Sequence[str], half: int, negatives: int, last: int, seed: int
) -> tuple[Floats, Floats, Bools]:
    """Each expert's rank of each query's best positive among candidates, and its contrastive loss [E, Q]; which queries count [Q]."""
    ranks, losses = np.ones((len(runs), len(queries))), np.zeros((len(runs), len(queries)))
    counts = np.zeros(len(queries), dtype=bool)
    for column, query in enumerate(queries):
        grades = qrels[query]
        relevant = {document for document, grade in grades.items() if grade > 0}
        pool = {document for run in runs.values() for document in band(run.documents_of(query), relevant, last=last)}
        drawn = sorted(document for document in pool if _hash(document, seed) & 1 == half)
        candidates = [max(relevant, key=lambda one: (grades[one], one)), *sorted(drawn, key=lambda one: _hash(one, seed))[:negatives]]
        counts[column] = len(candidates) > 1
        for row, run in enumerate(runs.values()):
            hits = dict(run.hits(query))
            lowest = min(hits.values(), default=0.0)
            missing = lowest if len(hits) >= run.list_depth else min(lowest, 0.0)  # as in fusion
            scores = np.array([hits.get(document, missing) for document in candidates], dtype=np.float64)
            ranks[row, column] = 1 + (scores[1:] > scores[0]).sum() + (scores[1:] == scores[0]).sum() / 2
            losses[row, column] = scipy.special.logsumexp(scores) - scores[0]
    return ranks, losses, counts


def compare_gains(lost: Bools, owned: Bools, start: Floats, gain: Floats, experts: Sequence[int]) -> list[Any]:
    """The gains of some `experts` on the queries that they lose, and the mean gain of who owns the query: COLUMNS from `lost` on.

    All are [2n, E, Q], by turns of samples before and after, which have equal weights. Standard errors are clustered by query.
    """
    rows = list(experts)
    winners = np.broadcast_to(((gain * owned).sum(1) / np.maximum(owned.sum(1), 1))[:, None], gain.shape)[:, rows]
    lost, own, first, clusters = lost[:, rows], gain[:, rows], start[:, rows], int(lost[:, rows].any((0, 1)).sum())
    weights = np.zeros(lost.shape)
    for time in (0, 1):
        weights[time::2] = lost[time::2] / max(2 * lost[time::2].sum(), 1)
    before, gained, of_owners = (float((values * weights).sum()) for values in (first, own, winners))
    mean, reach = gained - of_owners, math.inf
    if clusters > 1:
        by_query = ((own - winners - mean) * weights).sum((0, 1))
        reach = float(scipy.stats.t.ppf(0.975, clusters - 1) * math.sqrt((by_query**2).sum() * clusters / (clusters - 1)))
    counts = [int(queries[::2].any(0).sum()) for queries in (lost, owned[:, rows])]
    return [*counts, before, gained, of_owners, mean, mean - reach, mean + reach]


def loss_mass(ranks: Floats, losses: Floats, temperature: float) -> float:
    """The loss that a competition keeps, relative to equal shares: Σ share · loss over the mean loss; shares of CAME eq. 11.

    ranks and losses [E, Q].

    >>> round(loss_mass(np.array([[1.0], [2.0]]), np.array([[0.0], [1.0]]), 0.5), 4)
    0.5379
    """
    shares = scipy.special.softmax(1 / ranks / temperature, axis=0)
    return float((shares * losses).sum() / max(losses.mean(0).sum(), np.finfo(float).tiny))


def advise(measure: str, lost: float, difference: float, low: float, high: float) -> str:
    """One sentence: compete or do not."""
    words = f"learning alike, experts gain {difference:+.4f} {measure} on queries they lose, less what the owners gain"
    words += f" (95 %: {low:+.4f} to {high:+.4f})"
    if lost < FEWEST_QUERIES:
        return f"no advice: {words}, from {lost:g} lost queries, fewer than {FEWEST_QUERIES}"
    if low > 0:
        return f"do not compete: {words}: what competition takes from them they could learn"
    if high < 0:
        return f"competition may help: {words}: what it takes from them they learn less of"
    return f"undecided: {words}; more queries would tell"


def _hash(document: str, seed: int) -> int:
    """By the document's id and the seed alone; its last bit is the half of the document."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {document}".encode(), digest_size=8).digest())


def _measure_half(run: Run, qrels: Qrels, queries: Sequence[str], half: int, measure: str, seed: int) -> Floats:
    """The measure of each query on a run without the documents of the other half that are not relevant [Q]."""
    in_half = np.array([_hash(document, seed) & 1 == half for document in run.document_ids], dtype=bool)
    mask = in_half[run.documents] if len(in_half) else np.zeros(0, dtype=bool)
    codes = {document: code for code, document in enumerate(run.document_ids)}
    for query in (query for query in queries if query in run.query_rows):
        own = slice(*run.starts[run.query_rows[query] :][:2])
        mask[own] |= np.isin(run.documents[own], [codes[one] for one, grade in qrels[query].items() if grade > 0 and one in codes])
    starts = np.concatenate([[0], np.cumsum(mask)])[run.starts]
    parsed = measures.parse_measure(measure)
    half_run = replace(run, starts=starts, documents=run.documents[mask], scores=run.scores[mask])
    by_query = measures.evaluate_run(half_run, {query: qrels[query] for query in queries}, [parsed])[str(parsed)]
    return np.array([by_query[query] for query in queries])
