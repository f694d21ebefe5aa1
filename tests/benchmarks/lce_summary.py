"""The results of lce_tables.sh as tables: trained on × tested on (LCE, Figure 2), means over the seeds, and all collections pooled.

python tests/benchmarks/lce_summary.py QRELS WORK_FOLDER RETRIEVER…
python tests/benchmarks/lce_summary.py together QRELS WORK_FOLDER [QRELS WORK_FOLDER …] RETRIEVER…

p: two-sided paired t-test over queries, the mean over the seeds of lce against that of bce. Only queries of the list count.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from moeir.evaluation import measures, significance
from moeir.records import qrels, runs

MEASURE = measures.parse_measure("nDCG@10")
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


def print_transfer_table(judged: qrels.Qrels, work: Path, retrievers: list[str]) -> None:
    """Rows: the training list; columns: the tested list, not reranked, with bce, with lce, and p of the two."""
    sys.stdout.write("| trained on | " + " | ".join(f"{one}: bce | lce | p" for one in retrievers) + " |\n")
    sys.stdout.write("|:--|" + "--:|" * (3 * len(retrievers)) + "\n")
    unranked = [format_mean(run_values(work / "tops" / f"{one}.trec", judged)) for one in retrievers]
    sys.stdout.write("| (as it was) | " + " | ".join(f"{one} | | " for one in unranked) + " |\n")
    for trained_on in retrievers:
        cells = []
        for tested_on in retrievers:
            bce, lce = (mean_over_seeds(f"{trained_on}-{objective}", tested_on, work, judged) for objective in ("bce", "lce"))
            cells += [format_mean(bce), format_mean(lce), f"{significance.paired_t_test(lce, bce):.3f}"] if bce and lce else ["", "", ""]
        sys.stdout.write(f"| {trained_on} | " + " | ".join(cells) + " |\n")


def print_pooled_table(collections: list[tuple[qrels.Qrels, Path]], retrievers: list[str]) -> None:
    """Over all collections, training lists and seeds of a query: lce against bce, and the list itself, by tested list."""
    sys.stdout.write("| tested on | queries | as it was | bce | lce | p (lce, bce) | own list: bce | lce | p |\n|:--|" + "--:|" * 8 + "\n")
    for tested_on in retrievers:
        baseline: Values = {}
        sums: dict[str, dict[str, list[float]]] = {"bce": {}, "lce": {}, "own bce": {}, "own lce": {}}
        for judged, work in collections:
            baseline |= {f"{work}/{query}": value for query, value in run_values(work / "tops" / f"{tested_on}.trec", judged).items()}
            for trained_on in retrievers:
                for objective in ("bce", "lce"):
                    for query, value in mean_over_seeds(f"{trained_on}-{objective}", tested_on, work, judged).items():
                        for kind in (objective, *([f"own {objective}"] if trained_on == tested_on else [])):
                            sums[kind].setdefault(f"{work}/{query}", []).append(value)
        means = {kind: {query: float(np.mean(values)) for query, values in own.items()} for kind, own in sums.items()}
        cells = [str(len(baseline)), format_mean(baseline)]
        for own in ("", "own "):
            bce, lce = means[f"{own}bce"], means[f"{own}lce"]
            both = sorted(bce.keys() & lce.keys())
            bce, lce = ({query: own[query] for query in both} for own in (bce, lce))
            cells += [format_mean(bce), format_mean(lce), f"{significance.paired_t_test(lce, bce):.3f}"] if both else ["", "", ""]
        sys.stdout.write(f"| {tested_on} | " + " | ".join(cells) + " |\n")


if __name__ == "__main__":
    if sys.argv[1] == "together":
        pairs = [one for one in zip(sys.argv[2::2], sys.argv[3::2], strict=False) if Path(one[0]).is_file() and Path(one[1]).is_dir()]
        print_pooled_table([(qrels.read_qrels(judged), Path(work)) for judged, work in pairs], sys.argv[2 + 2 * len(pairs) :])
    else:
        print_transfer_table(qrels.read_qrels(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
