"""Fusions found on four fifths of the queries and measured on the last, five times over: a table with p-values against came-sum.

python tests/benchmarks/fusion_folds.py QRELS QUERIES RUN RUN …
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from moeir import fusion, variants
from moeir.evaluation import measures, significance, tables
from moeir.learned_fusion import training, tuning
from moeir.records import qrels, runs, texts
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

MEASURES = [measures.parse("nDCG@10"), measures.parse("R@100")]
PLAIN = ("came-sum", "rrf", "combmnz", "zscore")
FOLDS, SEED, DEPTH = 5, 42, 1000


def learned(read: Sequence[Run], judged: Qrels, words: Mapping[str, str]) -> dict[str, fusion.Merge]:
    """The fusions that are found on some queries."""

    def means(steps: list[str]) -> list[float]:
        made = (fusion.fused(read, partial(fusion.linear, weights=step), 100) for step in steps)
        return [measures.overall(measures.per_query(run, judged, MEASURES[:1]))["nDCG@10"] for run in made]

    spreads = [float((run.scores[run.starts[:-1]] - run.scores[run.starts[1:] - 1]).mean()) for run in read]
    tuned, _ = tuning.coordinates([[1.0] * len(read), [1 / spread for spread in spreads]], means)
    teach = partial(training.taught, read, judged, depth=100, strength=None, seed=SEED)
    weights = tuning.written(teach("linear", texts=None).weights)
    plain, worded = (teach("gated", texts=known).gated for known in (None, {query: words[query] for query in judged}))
    assert plain is not None and worded is not None
    return {
        "linear tuned": partial(fusion.linear, weights=tuned),
        "linear learned": partial(fusion.linear, weights=weights),
        "gated": plain.merge(),
        "gated, words": worded.merge(words),
    }


def main(judgements: Path, queries: Path, paths: Sequence[Path]) -> str:
    judged = qrels.read(judgements)
    read = {path.name.removesuffix(".trec"): runs.read(path) for path in paths}
    words = {text.id: text.content for text in texts.read(queries)}
    asked = [query for query in judged if any(query in run.places for run in read.values())]
    folds = np.random.default_rng(SEED).permutation(len(asked)) % FOLDS
    values: dict[str, dict[str, dict[str, float]]] = {}
    for fold in range(FOLDS):
        taught, tested = ({query: judged[query] for query, one in zip(asked, folds, strict=True) if (one == fold) == own} for own in (0, 1))
        own, held = ([_only(run, chosen) for run in read.values()] for chosen in (taught, tested))
        found = dict(zip(read, held, strict=True))
        merges = {name: variants.bind("fusion", name) for name in PLAIN} | learned(own, taught, words)
        found |= {name: fusion.fused(held, merge, DEPTH) for name, merge in merges.items()}
        for name, run in found.items():
            for measure, by_query in measures.per_query(run, tested, MEASURES).items():
                values.setdefault(name, {}).setdefault(measure, {}).update(by_query)
    rows = []
    for name, by_measure in values.items():
        row: list[object] = [name]
        for measure, by_query in by_measure.items():
            p = significance.paired_t(values["came-sum"][measure], by_query)
            row += [measures.overall(by_measure)[measure], "" if name == "came-sum" else "<0.001" if p < 0.001 else f"{p:.3f}"]
        rows.append(row)
    return tables.markdown(["fusion", "nDCG@10", "p", "R@100", "p"], rows)


def _only(run: Run, queries: Qrels) -> Run:
    return Run.from_hits({query: run.hits(query) for query in run.queries if query in queries})


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]]))
