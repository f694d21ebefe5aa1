"""Speed of reading, fusing and evaluating two runs: moeir, and pytrec_eval with dictionaries.

    python tests/benchmarks/fusion_speed.py make FOLDER            # 7,000 queries of 1,000 documents, twice, with judgements
    python tests/benchmarks/fusion_speed.py moeir|pytrec_eval FOLDER

Each prints seconds by step and its peak memory, in a process of its own, so that imports are not shared.
"""

import resource
import sys
import time
from pathlib import Path

MEASURES = ("nDCG@10", "RR@10", "R@10", "R@100", "R@1000", "AP", "P@10", "Success@20")
QUERIES, DEPTH, COLLECTION = 7000, 1000, 5_000_000
began = time.perf_counter()


def print_step(step: str) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{step:10} {time.perf_counter() - began:7.2f} s  peak {peak:6.0f} MiB", flush=True)


def make(folder: Path) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "a.trec", "w") as a, open(folder / "b.trec", "w") as b, open(folder / "qrels", "w") as judged:
        for query in range(QUERIES):
            all_documents = generator.choice(COLLECTION, 2 * DEPTH - DEPTH // 4, replace=False)
            for output, documents in ((a, all_documents[:DEPTH]), (b, all_documents[-DEPTH:])):
                scores = np.sort(generator.random(DEPTH) * 30)[::-1]
                rows = enumerate(zip(documents.tolist(), scores.tolist(), strict=True), 1)
                output.writelines(f"{query} Q0 {document} {rank} {score:.6f} x\n" for rank, (document, score) in rows)
            judged.writelines(f"{query} 0 {document} 1\n" for document in generator.choice(all_documents, 2, replace=False).tolist())


def moeir(folder: Path) -> dict[str, float]:
    from moeir.evaluation import measures
    from moeir.fusion import formulas
    from moeir.records import qrels, runs

    print_step("import")
    input_runs = [runs.read_run(folder / name) for name in ("a.trec", "b.trec")]
    judgements = qrels.read_qrels(folder / "qrels")
    print_step("read")
    fused = formulas.fuse_runs(input_runs, formulas.rrf, DEPTH)
    print_step("fused")
    return measures.aggregate_values(measures.evaluate_run(fused, judgements, [measures.parse_measure(name) for name in MEASURES]))


def pytrec_eval(folder: Path) -> dict[str, float]:
    import pytrec_eval as library

    print_step("import")
    input_runs: list[dict[str, dict[str, float]]] = []
    for name in ("a.trec", "b.trec"):
        with open(folder / name) as file:
            input_runs.append(library.parse_run(file))
    with open(folder / "qrels") as file:
        judgements = library.parse_qrel(file)
    print_step("read")
    fused: dict[str, dict[str, float]] = {}
    for query in input_runs[0]:
        totals: dict[str, float] = {}
        for run in input_runs:
            for rank, document in enumerate(sorted(run[query], key=lambda one: (-run[query][one], one)), 1):
                totals[document] = totals.get(document, 0.0) + 1 / (60 + rank)
        fused[query] = dict(sorted(totals.items(), key=lambda hit: -hit[1])[:DEPTH])
    print_step("fused")
    names = {"ndcg_cut.10", "recip_rank", "recall.10,100,1000", "map", "P.10", "success.20"}
    values = library.RelevanceEvaluator(judgements, names).evaluate(fused)
    return {name: sum(value[name] for value in values.values()) / len(values) for name in next(iter(values.values()))}


if __name__ == "__main__":
    tool, folder = sys.argv[1], Path(sys.argv[2])
    values = {"make": make, "moeir": moeir, "pytrec_eval": pytrec_eval}[tool](folder)
    print_step("all")
    print({name: round(value, 6) for name, value in (values or {}).items()})
