"""Cross-validation of fusions: fitted on four fifths of the queries, measured on the last, with p-values against came-sum.

python tests/benchmarks/fusion_folds.py QRELS RUN RUN …
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moeir import variants
from moeir.evaluation import measures, significance, tables
from moeir.fusion import formulas, linear_weights
from moeir.records import qrels, runs
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

MEASURES = [measures.parse_measure("nDCG@10"), measures.parse_measure("R@100")]
BASELINES = ("came-sum", "rrf", "combmnz", "zscore")
FOLDS, SEED, DEPTH = 5, 42, 1000


def fit_weighted_sum(training_runs: Sequence[Run], training_qrels: Qrels) -> formulas.FusionFormula:
    """The weighted sum fitted on the training queries."""
    examples = linear_weights.build_examples(training_runs, training_qrels, linear_weights.FIT_DEPTH)
    merge: formulas.FusionFormula = variants.bind_variant("fusion", linear_weights.format_method(linear_weights.fit_weights(examples)))
    return merge


def main(judgements: Path, paths: Sequence[Path]) -> str:
    all_qrels = qrels.read_qrels(judgements)
    runs_by_name = {path.name.removesuffix(".trec"): runs.read_run(path) for path in paths}
    query_ids = [query for query in all_qrels if any(query in run.query_rows for run in runs_by_name.values())]
    folds = np.random.default_rng(SEED).permutation(len(query_ids)) % FOLDS
    values: dict[str, dict[str, dict[str, float]]] = {}
    for fold in range(FOLDS):
        training_qrels, test_qrels = (
            {query: all_qrels[query] for query, one in zip(query_ids, folds, strict=True) if (one == fold) == is_test}
            for is_test in (False, True)
        )
        training_runs, test_runs = ([_subset(run, chosen) for run in runs_by_name.values()] for chosen in (training_qrels, test_qrels))
        test_runs_by_name = dict(zip(runs_by_name, test_runs, strict=True))
        merges = {name: variants.bind_variant("fusion", name) for name in BASELINES}
        merges["weighted sum"] = fit_weighted_sum(training_runs, training_qrels)
        test_runs_by_name |= {name: formulas.fuse_runs(test_runs, merge, DEPTH) for name, merge in merges.items()}
        for name, run in test_runs_by_name.items():
            for measure, by_query in measures.evaluate_run(run, test_qrels, MEASURES).items():
                values.setdefault(name, {}).setdefault(measure, {}).update(by_query)
    rows = []
    for name, by_measure in values.items():
        row: list[object] = [name]
        for measure, by_query in by_measure.items():
            p = significance.paired_t_test(values["came-sum"][measure], by_query)
            row += [measures.aggregate_values(by_measure)[measure], "" if name == "came-sum" else "<0.001" if p < 0.001 else f"{p:.3f}"]
        rows.append(row)
    return tables.format_markdown(["fusion", "nDCG@10", "p", "R@100", "p"], rows)


def _subset(run: Run, kept_qrels: Qrels) -> Run:
    return Run.from_hits({query: run.hits(query) for query in run.queries if query in kept_qrels})


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
