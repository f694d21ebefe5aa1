"""The results of lce_tables.sh as tables: trained on × tested on (LCE, Figure 2), means over the seeds, and all collections pooled.

python tests/benchmarks/lce_summary.py QRELS WORK_FOLDER RETRIEVER…
python tests/benchmarks/lce_summary.py together QRELS WORK_FOLDER [QRELS WORK_FOLDER …] RETRIEVER…

p: two-sided paired t-test over queries, the mean over the seeds of lce against that of bce, and of bce7 (bce on the pairs of lce), if they
were trained. Only queries of the list count.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from moeir.evaluation import measures, significance
from moeir.records import qrels, runs

MEASURE = measures.parse_measure("nDCG@10")
ARMS = ("bce", "bce7", "lce")
COLUMNS = "bce | bce7 | lce | p (bce) | p (bce7)"
Values = dict[str, float]


def run_values(path: Path, judged: qrels.Qrels) -> Values:
    """nDCG@10 of each query of the run."""
    run = runs.read_run(path)
    own = {query: judged[query] for query in run.queries if query in judged}
    (values,) = measures.evaluate_run(run, own, [MEASURE]).values()
    return dict(values)


def mean_over_seeds(name: str, tested_on: str, work: Path, judged: qrels.Qrels) -> Values:
    """The mean over the existing seeds, query by query."""
    values_by_seed = [run_values(path, judged) for path in sorted((work / "reranked" / tested_on).glob(f"{name}-[0-9]*.trec"))]
    return {query: float(np.mean([one[query] for one in values_by_seed])) for query in values_by_seed[0]} if values_by_seed else {}


def format_mean(values: Mapping[str, float]) -> str:
    return f"{np.mean(list(values.values())):.4f}"


def compare_arms(values_by_arm: Mapping[str, Values]) -> list[str]:
    """The cells of an arm each, over the queries that all trained arms have, then p of lce against each bce."""
    trained = {arm: values for arm, values in values_by_arm.items() if values}
    shared = set.intersection(*map(set, trained.values())) if trained else set()
    trained = {arm: {query: values[query] for query in sorted(shared)} for arm, values in trained.items()}
    cells = [format_mean(trained[arm]) if arm in trained else "" for arm in ARMS]
    for arm in ARMS[:-1]:
        both = arm in trained and "lce" in trained
        cells.append(f"{significance.paired_t_test(trained['lce'], trained[arm]):.3f}" if both else "")
    return cells


def print_transfer_table(judged: qrels.Qrels, work: Path, retrievers: list[str]) -> None:
    """Rows: the training list; columns: the tested list, not reranked, with each arm, and p."""
    sys.stdout.write("| trained on | " + " | ".join(f"{one}: {COLUMNS}" for one in retrievers) + " |\n")
    sys.stdout.write("|:--|" + "--:|" * (5 * len(retrievers)) + "\n")
    unranked = [format_mean(run_values(work / "tops" / f"{one}.trec", judged)) for one in retrievers]
    sys.stdout.write("| (as it was) | " + " | ".join(f"{one} | | | | " for one in unranked) + " |\n")
    for trained_on in retrievers:
        cells = []
        for tested_on in retrievers:
            cells += compare_arms({arm: mean_over_seeds(f"{trained_on}-{arm}", tested_on, work, judged) for arm in ARMS})
        sys.stdout.write(f"| {trained_on} | " + " | ".join(cells) + " |\n")


def print_pooled_table(collections: list[tuple[qrels.Qrels, Path]], retrievers: list[str]) -> None:
    """Over all collections, training lists and seeds of a query: the arms and p, and the list itself, by tested list."""
    sys.stdout.write(f"| tested on | queries | as it was | {COLUMNS} | own list: {COLUMNS} |\n|:--|" + "--:|" * 12 + "\n")
    for tested_on in retrievers:
        baseline: Values = {}
        sums: dict[bool, dict[str, dict[str, list[float]]]] = {own: {arm: {} for arm in ARMS} for own in (False, True)}
        for judged, work in collections:
            baseline |= {f"{work}/{query}": value for query, value in run_values(work / "tops" / f"{tested_on}.trec", judged).items()}
            for trained_on in retrievers:
                for arm in ARMS:
                    for query, value in mean_over_seeds(f"{trained_on}-{arm}", tested_on, work, judged).items():
                        for own in {False, trained_on == tested_on}:
                            sums[own][arm].setdefault(f"{work}/{query}", []).append(value)
        cells = [str(len(baseline)), format_mean(baseline)]
        for arms in sums.values():
            cells += compare_arms({arm: {query: float(np.mean(values)) for query, values in one.items()} for arm, one in arms.items()})
        sys.stdout.write(f"| {tested_on} | " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    if sys.argv[1] == "together":
        pairs = [one for one in zip(sys.argv[2::2], sys.argv[3::2], strict=False) if Path(one[0]).is_file() and Path(one[1]).is_dir()]
        print_pooled_table([(qrels.read_qrels(judged), Path(work)) for judged, work in pairs], sys.argv[2 + 2 * len(pairs) :])
    else:
        print_transfer_table(qrels.read_qrels(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
