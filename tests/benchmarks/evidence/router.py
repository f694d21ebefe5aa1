"""Which experts does a query need? The curve of latency against quality of a router that reads the query, beside each expert and their sum.

    python router.py CHECKPOINT TRAIN TEST [--milliseconds EXPERT=MS]... [--budgets 1 1.5 2 3] [--folds 5] [--method normsum]

TRAIN and TEST are QUERIES=QRELS=FOLDER, FOLDER with the run of each expert, one of which may be bm25. Every set of experts is a choice;
its list is what `fuse --method METHOD` makes of theirs. Ridge regressions predict nDCG@10 of each choice from the mean of the
checkpoint's shared states over the query's tokens, and from six facts of its surface. At a budget of experts per query the choice has the
largest prediction less a price per expert, at which predictions for TRAIN, cross-fitted in FOLDS, spend the budget. The strength of the
ridge is the best of five.

Prints TSV: experts per query, p50 milliseconds (the sum over a query's experts), nDCG@10 on TEST with its 95 % interval, its difference
from all experts, and the lower end of that, one-sided, 95 %; for a router also its difference from the best set of experts that is the same
for each query and within the budget, and p of a paired t-test against it. `oracle` takes the best choice of each query; `reachable` is what
cross-fitted predictions gain on TRAIN without a price: what a router of this kind can hope for.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import ttest_1samp

from moeir import variants
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.backbones.encoder import run_layers
from moeir.evaluation import measures
from moeir.fusion import formulas
from moeir.records import qrels, runs, texts
from moeir.records.runs import Run

STRENGTHS, DEPTH = (1.0, 10.0, 100.0, 1e3, 1e4), 100
Numbers = NDArray[np.float64]


def surface_facts(query: str) -> list[float]:
    """Words, characters of a word, shares of words with a capital, a digit, an underscore or dot inside; whether it is a question.

    >>> surface_facts("Where is os.path?")
    [3.0, 5.0, 0.3333333333333333, 0.0, 0.3333333333333333, 1.0]
    """
    words = query.split() or [""]
    shares = [sum(bool(re.search(pattern, word)) for word in words) / len(words) for pattern in ("[A-Z]", "[0-9]", r"\w[._]\w")]
    return [float(len(words)), sum(map(len, words)) / len(words), *shares, float(query.rstrip().endswith("?"))]


@torch.no_grad()
def read_queries(checkpoint: RetrievalModel, queries: Sequence[str]) -> Numbers:
    """[Q, 1 + 6 + H]: one, the facts, and the mean of the shared states."""
    encoder, rows = checkpoint.architecture.eval().encoder, []
    for query in queries:
        tokens = checkpoint.tokenize([query], "query")
        states = run_layers(encoder.layers, encoder.embeddings(tokens), tokens)
        rows.append([1.0, *surface_facts(query), *states.float().mean(0).tolist()])
    return np.array(rows)


def value_choices(folder: Path, judged: qrels.Qrels, queries: Sequence[str], method: str) -> tuple[list[tuple[str, ...]], Numbers]:
    """Every set of experts, and nDCG@10 of its list for each query [choices, Q]."""
    loaded = {path.stem: runs.read_run(path) for path in sorted(folder.glob("*.trec")) if path.stem != "fused"}
    choices = [names for size in range(1, len(loaded) + 1) for names in combinations(loaded, size)]
    measure, fusion = measures.parse_measure("nDCG@10"), variants.bind_variant("fusion", method)

    def value(run: Run) -> list[float]:
        by_query = measures.evaluate_run(run, {query: judged[query] for query in queries}, [measure])["nDCG@10"]
        return [by_query[query] for query in queries]

    lists = (
        loaded[names[0]] if len(names) == 1 else formulas.fuse_runs([loaded[name] for name in names], fusion, DEPTH) for names in choices
    )
    return choices, np.array([value(run) for run in lists])


def fit_ridge(features: Numbers, values: Numbers, strength: float) -> Numbers:
    """Weights [F, choices] of the values [choices, Q]; the first feature, which is one, has no penalty.

    >>> fit_ridge(np.array([[1.0, 0.0], [1.0, 2.0]]), np.array([[1.0, 3.0]]), 0.0).round(6).tolist()
    [[1.0], [1.0]]
    """
    penalty = strength * np.eye(features.shape[1])
    penalty[0, 0] = 0
    return np.linalg.lstsq(features.T @ features + penalty, features.T @ values.T, rcond=None)[0]


def cross_fit(features: Numbers, values: Numbers, strength: float, folds: int) -> Numbers:
    """Predictions [choices, Q] for each query by weights that have not seen its fold."""
    predicted, fold = np.empty_like(values), np.arange(len(features)) % folds
    for number in range(folds):
        weights = fit_ridge(features[fold != number], values[:, fold != number], strength)
        predicted[:, fold == number] = (features[fold == number] @ weights).T
    return predicted


def choose(predicted: Numbers, sizes: Numbers, price: float) -> NDArray[np.int64]:
    """The choice of each query [Q]: the largest prediction less `price` for each expert."""
    return (predicted - price * sizes[:, None]).argmax(0)


def find_price(predicted: Numbers, sizes: Numbers, budget: float) -> float:
    """The lowest price, to a thousandth, at which the choices spend no more than `budget` experts per query."""
    prices = np.arange(0, 1.0005, 0.001)
    return float(next((price for price in prices if sizes[choose(predicted, sizes, price)].mean() <= budget), prices[-1]))


def main() -> None:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    for name in ("train", "test"):
        parser.add_argument(name, metavar="QUERIES=QRELS=FOLDER")
    parser.add_argument("--milliseconds", action="append", default=[], metavar="EXPERT=MS")
    parser.add_argument("--budgets", type=float, nargs="+", default=[1.0, 1.5, 2.0, 3.0])
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--method", default="normsum")
    options = parser.parse_args()
    checkpoint = open_checkpoint(options.checkpoint)
    parts: dict[str, Any] = {}
    for part in ("train", "test"):
        query_file, judgements, folder = map(Path, getattr(options, part).split("=", 2))
        judged, contents = qrels.read_qrels(judgements), {text.id: text.content for text in texts.read_texts(query_file)}
        queries = [query for query in judged if query in contents]
        parts[part] = (
            read_queries(checkpoint, [contents[query] for query in queries]),
            *value_choices(folder, judged, queries, options.method),
        )
    (features, choices, values), (test_features, test_choices, test_values) = parts["train"], parts["test"]
    if choices != test_choices:
        sys.exit("the folders have the runs of other experts; expected the same names")
    scale = features.std(0)
    scale[0] = 1
    features, test_features = features / np.where(scale, scale, 1), test_features / np.where(scale, scale, 1)
    costs: Mapping[str, float] = {name: float(cost) for name, cost in (word.split("=") for word in options.milliseconds)}
    sizes = np.array([float(len(names)) for names in choices])
    times, everything = np.array([sum(costs.get(name, 1.0) for name in names) for names in choices]), len(choices) - 1

    fitted = {strength: cross_fit(features, values, strength, options.folds) for strength in STRENGTHS}
    columns = np.arange(values.shape[1])
    gains = {strength: values[choose(one, sizes, 0.0), columns].mean() for strength, one in fitted.items()}
    strength = max(gains, key=lambda one: gains[one])
    predicted = (test_features @ fit_ridge(features, values, strength)).T

    def line(what: str, chosen: NDArray[np.int64]) -> str:
        own = test_values[chosen, np.arange(test_values.shape[1])]
        difference = own - test_values[everything]
        error, reach = (one.std(ddof=1) / len(one) ** 0.5 for one in (difference, own))
        low = difference.mean() - 1.645 * error
        cells = [own.mean(), own.mean() - 1.96 * reach, own.mean() + 1.96 * reach, difference.mean(), low]
        return "\t".join([what, f"{sizes[chosen].mean():.2f}", f"{np.median(times[chosen]):.2f}", *(f"{cell:.4f}" for cell in cells)])

    every = np.ones(test_values.shape[1], dtype=np.int64)
    print("what\texperts\tp50 ms\tnDCG@10\tlow\thigh\tdifference\tat least\tfixed\tabove fixed\tp")
    for number, names in enumerate(choices):
        print(line("+".join(names), number * every))
    for budget in options.budgets:
        chosen = choose(predicted, sizes, find_price(fitted[strength], sizes, budget))
        best_fixed = int(np.where(sizes <= budget, test_values.mean(1), -np.inf).argmax())
        gain = test_values[chosen, np.arange(test_values.shape[1])] - test_values[best_fixed]
        p = ttest_1samp(gain, 0.0).pvalue
        print(line(f"router at {budget:g}", chosen), "+".join(choices[best_fixed]), f"{gain.mean():.4f}", f"{p:.1e}", sep="\t")
    print(line("oracle", test_values.argmax(0)))
    print(f"reachable\t\t\t{gains[strength]:.4f}\t\t\t{gains[strength] - values[everything].mean():.4f}\t")


if __name__ == "__main__":
    main()
