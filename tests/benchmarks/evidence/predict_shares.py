"""How much the experts of a start would compete, from their lists alone: the mean entropy of a query's shares, before any training.

    python predict_shares.py QRELS RUN... [--last 20] [--negatives 7] [--temperature 0.5 0.2] [--seed 1]

RUN is the list of one expert. Of each query, as `mine-negatives --method band:first=0,last=LAST` and a competing step take them: NEGATIVES
documents drawn from the union of the first LAST of each list, without the relevant ones; the rank of the first relevant document among
these by each list, one that a list lacks behind all others; shares by CAME's equation 11. Prints how many queries count (all lists have
their relevant document, and there are enough negatives), the share of those whose ranks differ, and the entropy at each temperature.
"""

import argparse
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from moeir.records import qrels, runs
from moeir.training import competition

Lists = Sequence[Mapping[str, float]]  # of one query: document → score, by expert


def rank_positive(lists: Lists, relevant: set[str], last: int, negatives: int, rng: random.Random) -> list[float] | None:
    """The rank of a query's positive among itself and drawn negatives, by expert; None without enough negatives, or where a list lacks it.

    >>> rank_positive([{"a": 3, "b": 2, "c": 1}, {"b": 9, "c": 8, "a": 7}], {"a"}, 2, 2, random.Random(1))
    [1.0, 3.0]
    """
    positive = next((document for document in lists[0] if document in relevant and all(document in one for one in lists)), None)
    band = dict.fromkeys(document for one in lists for document in list(one)[:last])
    candidates = [document for document in band if document not in relevant]
    if positive is None or len(candidates) < negatives:
        return None
    drawn = [positive, *rng.sample(candidates, negatives)]
    scores = torch.tensor([[one.get(document, -math.inf) for document in drawn] for one in lists])
    none = torch.zeros(scores.shape, dtype=torch.bool)
    return competition.positive_ranks(scores, torch.zeros(len(lists), dtype=torch.int64), none).tolist()


def main() -> None:
    """Print the prediction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("qrels", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.5, 0.2])
    for name, default in (("last", 20), ("negatives", 7), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    judged, lists, rng = qrels.read_qrels(options.qrels), [runs.read_run(path) for path in options.runs], random.Random(options.seed)
    ranks = []
    for query, grades in judged.items():
        relevant = {document for document, grade in grades.items() if grade > 0}
        ranks.append(rank_positive([dict(one.hits(query)) for one in lists], relevant, options.last, options.negatives, rng))
    expert_ranks = torch.tensor([one for one in ranks if one is not None]).T  # [experts, queries]
    if not expert_ranks.numel():
        raise SystemExit(f"{options.qrels}: no query has its positive in every run and {options.negatives} negatives")
    differ = (expert_ranks != expert_ranks[0]).any(0).float().mean()
    count = f"{expert_ranks.shape[1]} of {len(judged)} queries count"
    print(f"{count}; ranks differ for {differ:.0%}; ln {len(lists)} = {math.log(len(lists)):.4f}")
    for temperature in options.temperature:
        entropy = torch.special.entr(competition.expert_shares(1 / expert_ranks, temperature)).sum(0).mean()
        print(f"temperature {temperature:g}: mean entropy {entropy:.4f}")


if __name__ == "__main__":
    main()
