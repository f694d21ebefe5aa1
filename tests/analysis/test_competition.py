"""What experts gain where they lose, against loops over dictionaries; chance alone gains nothing; what the sentence says."""

import functools
import hashlib
import math
from statistics import fmean

import numpy as np
import pytest
import scipy
import torch

from moeir.analysis import competition
from moeir.analysis.competition import analyze_competition
from moeir.errors import DataError, UsageError
from moeir.records.runs import Run
from moeir.training.competition import expert_shares, positive_ranks
from moeir.training.losses import info_nce

EXPERTS, DOCUMENTS = ("one", "two", "three"), [f"d{number}" for number in range(40)]
QRELS = {f"q{number}": {f"d{number % 7}": 2, f"d{7 + number % 5}": 1, f"d{20 + number % 9}": 0} for number in range(30)} | {
    "none": {"d1": 0}
}


def draw_runs(seed, skill=0.0, depth=25, qrels=QRELS, experts=EXPERTS):
    """Scores are chance, plus `skill` (one number, or one of each expert) for relevant documents."""
    rng = np.random.default_rng(seed)
    skills = dict(zip(experts, np.broadcast_to(skill, len(experts)), strict=True))
    runs = {}
    for name in experts:
        hits = {}
        for query, grades in qrels.items():
            chances = zip(DOCUMENTS, rng.normal(size=len(DOCUMENTS)).tolist(), strict=True)
            scores = {document: chance + (skills[name] if grades.get(document, 0) > 0 else 0) for document, chance in chances}
            hits[query] = dict(sorted(scores.items(), key=lambda pair: -pair[1])[:depth])
        runs[name] = Run.from_hits(hits)
    return runs


@functools.cache
def number(document, seed):
    return int.from_bytes(hashlib.blake2b(f"{seed} {document}".encode(), digest_size=8).digest(), "big")


def ndcg(documents, grades):
    gains = [grades.get(document, 0) / math.log2(rank + 1) for rank, document in enumerate(documents[:10], 1)]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:10]
    return sum(gains) / sum(grade / math.log2(rank + 1) for rank, grade in enumerate(ideal, 1))


def observe(before, after, qrels, negatives, last, seed):
    """(time, expert, query, its value before, its gain, the owners' gain) of every lost query; (expert, query) of those owned before."""
    observations, owned = [], set()
    for half in (0, 1):
        for time, runs in enumerate((before, after)):
            for query, grades in qrels.items():
                relevant = [document for document, grade in grades.items() if grade > 0]
                if not relevant:
                    continue
                pool = {document for run in runs.values() for document in run.documents_of(query)[:last]} - set(relevant)
                drawn = sorted((one for one in pool if number(one, seed) % 2 == half), key=lambda one: number(one, seed))[:negatives]
                ranks, gains, values = {}, {}, {}
                for name, run in runs.items():
                    scores = dict(run.hits(query))
                    lowest = min(scores.values())
                    first, *others = (scores.get(document, lowest) for document in [max(relevant, key=grades.get), *drawn])
                    ranks[name] = 1 + sum(other > first for other in others) + sum(other == first for other in others) / 2
                    lists = [
                        [one for one in of_time[name].documents_of(query) if one in relevant or number(one, seed) % 2 != half]
                        for of_time in (before, after)
                    ]
                    values[name], later = (ndcg(documents, grades) for documents in lists)
                    gains[name] = later - values[name]
                best = min(ranks.values())
                winners = [name for name in ranks if ranks[name] == best]
                if not drawn or len(winners) == len(ranks):
                    continue
                owned |= {(name, query) for name in winners if time == 0}
                of_owners = fmean(gains[one] for one in winners)
                observations += [(time, one, query, values[one], gains[one], of_owners) for one in ranks if one not in winners]
    return observations, owned


@pytest.mark.parametrize(("negatives", "last", "seed"), [(7, 20, 42), (3, 5, 1), (1, 2, 3)])
def test_gains_are_those_of_loops_over_queries_and_documents(negatives, last, seed):
    before, after = draw_runs(1, 1.0), draw_runs(2, [1.5, 1.0, 3.0])
    backwards = analyze_competition(after, before, QRELS, "nDCG@10", negatives=negatives, last=last, seed=seed)
    result = analyze_competition(before, after, QRELS, "nDCG@10", negatives=negatives, last=last, seed=seed)
    observations, owned = observe(before, after, QRELS, negatives, last, seed)
    for row, other in zip(result.rows, backwards.rows, strict=True):
        assert row[5:8] == pytest.approx([-value for value in other[5:8]]), "gains change their sign with the time"
        name = row[0]
        of_expert = [one for one in observations if name in ("all", one[1])]
        weight = {time: 0.5 / sum(one[0] == time for one in of_expert) for time in (0, 1)}
        means = [sum(weight[one[0]] * one[column] for one in of_expert) for column in (3, 4, 5)]
        difference = means[1] - means[2]
        by_query = {}
        for time, _, query, _, gain, other in of_expert:
            by_query[query] = by_query.get(query, 0.0) + weight[time] * (gain - other - difference)
        count = len(by_query)
        reach = scipy.stats.t.ppf(0.975, count - 1) * math.sqrt(sum(one**2 for one in by_query.values()) * count / (count - 1))
        lost = len({(one[1], one[2]) for one in of_expert if one[0] == 0})
        own = sum(name in ("all", expert) for expert, _ in owned)
        assert row[1:4] == [30, lost, own]
        assert row[4:] == pytest.approx([*means, difference, difference - reach, difference + reach])
    assert [row[0] for row in result.rows] == [*EXPERTS, "all"]


def test_experts_that_only_change_by_chance_gain_nothing_where_they_lose():
    qrels = {f"q{one}": {f"d{one % 40}": 1} for one in range(200)}
    before, after = (draw_runs(seed, 1.5, qrels=qrels) for seed in (3, 4))
    row = analyze_competition(before, after, qrels, "nDCG@10").rows[-1]
    assert row[2] > 150 and row[8] < 0 < row[9]
    observations, _ = observe(before, after, qrels, 7, 20, 42)
    lost_before, lost_after = (fmean(one[4] - one[5] for one in observations if one[0] == time) for time in (0, 1))
    assert lost_before > 0.1 and lost_after < -0.1, "either choice alone takes chance for learning"


def test_the_sentence_is_do_not_compete_where_losers_learn_most_and_the_reverse_where_owners_do():
    qrels = {f"q{one}": {f"d{one % 40}": 1} for one in range(100)}
    before = draw_runs(5, [3.0, 0.5, 0.5], qrels=qrels)
    losers_learn = analyze_competition(before, draw_runs(6, [3.0, 3.0, 3.0], qrels=qrels), qrels, "nDCG@10")
    assert losers_learn.rows[-1][8] > 0 and losers_learn.notes[1].startswith("do not compete: learning alike, experts gain +")
    before = draw_runs(5, [2.0, 0.5, 0.5], qrels=qrels)
    owner_learns = analyze_competition(before, draw_runs(6, [6.0, 0.5, 0.5], qrels=qrels), qrels, "nDCG@10")
    assert owner_learns.rows[-1][9] < 0 and owner_learns.notes[1].startswith("competition may help: learning alike, experts gain -")
    alike = analyze_competition(before, draw_runs(6, [2.0, 0.5, 0.5], qrels=qrels), qrels, "nDCG@10")
    assert alike.notes[1].startswith("undecided: ")
    few = {query: qrels[query] for query in list(qrels)[:10]}
    assert analyze_competition(before, draw_runs(6, 3.0, qrels=qrels), few, "nDCG@10").notes[1].startswith("no advice: ")


def test_ranks_losses_and_loss_mass_are_those_of_the_training():
    runs, queries = draw_runs(7, 1.0, depth=40), [query for query in QRELS if query != "none"]
    ranks, losses, counts = competition.rank_experts(runs, QRELS, queries, 1, 5, 20, 42)
    assert counts.all()
    scores, positives = [], torch.zeros(len(queries), dtype=torch.int64)
    for run in runs.values():
        rows = []
        for query in queries:
            pool = {one for other in runs.values() for one in other.documents_of(query)[:20] if QRELS[query].get(one, 0) <= 0}
            drawn = sorted((one for one in pool if number(one, 42) % 2), key=lambda one: number(one, 42))[:5]
            hits = dict(run.hits(query))
            rows.append([hits[max(QRELS[query], key=QRELS[query].get)], *(hits[one] for one in drawn)])
        scores.append(torch.tensor(rows, dtype=torch.float64))
    nothing = torch.zeros(scores[0].shape, dtype=torch.bool)
    expected = torch.stack([positive_ranks(one, positives, nothing) for one in scores])
    lost = torch.stack([info_nce(one, positives, nothing) for one in scores])
    assert np.array_equal(ranks, expected.numpy()) and losses == pytest.approx(lost.numpy())
    shares = expert_shares(1 / expected, 0.2)
    assert competition.loss_mass(ranks, losses, 0.2) == pytest.approx(float((shares * lost).sum() / lost.mean(0).sum()))


def test_what_is_no_comparison_is_refused_and_an_expert_that_loses_one_query_has_no_interval():
    before = draw_runs(1)
    with pytest.raises(UsageError, match=r"the same two experts or more.* found one, two, three before, one, two after"):
        analyze_competition(before, {name: before[name] for name in ("one", "two")}, QRELS, "nDCG@10")
    same = {name: before["one"] for name in EXPERTS}
    with pytest.raises(DataError, match="no expert loses a query"):
        analyze_competition(same, same, QRELS, "nDCG@10")
    qrels = {"p": {"d0": 1}, "q": {"d1": 1}}
    lists = {"best": {"p": "d0", "q": "d1"}, "worse": {"p": "d5", "q": "d1"}}
    runs = {
        name: Run.from_hits({query: {d: 2.0 if d == tops[query] else 1.0 / (1 + int(d[1:])) for d in DOCUMENTS} for query in qrels})
        for name, tops in lists.items()
    }
    rows = {row[0]: row for row in analyze_competition(runs, runs, qrels, "RR@10").rows}
    assert rows["worse"][2] == 1 and rows["worse"][8:] == [None, None] and rows["best"][2] == 0
    assert competition.measure_gains(runs, runs, qrels, "RR@10") == {}
