"""Split training examples by the CAME expert that ranks the positive best: Suit-Independent of Cai et al. 2023, Table 4.

An expert's part holds the queries on which its list has the best RR@10 of all experts; equally good experts all get the query.

    python examples/suit_split.py --examples bm25.jsonl --qrels train.qrels --runs runs/train --output FOLDER    # FOLDER/EXPERT.jsonl
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from moeir.evaluation import measures
from moeir.records import examples, qrels, runs

MEASURE = "RR@10"


def best(values: Mapping[str, float]) -> list[str]:
    """The experts with the largest value.

    >>> best({"lexical": 0.5, "local": 1.0, "global": 1.0})
    ['local', 'global']
    """
    largest = max(values.values())
    return [expert for expert, value in values.items() if value == largest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path, required=True, help="output of mine-negatives")
    parser.add_argument("--qrels", type=Path, required=True, help="judgements of the training queries")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the experts' runs of the training queries")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    grades_by_query = qrels.read_qrels(arguments.qrels)
    run_paths = {path.stem: path for path in sorted(arguments.runs.glob("*.trec")) if path.stem != "fused"}
    reciprocal = {
        expert: measures.evaluate_run(runs.read_run(path), grades_by_query, [measures.parse_measure(MEASURE)])[MEASURE]
        for expert, path in run_paths.items()
    }
    parts: dict[str, list[examples.Example]] = {expert: [] for expert in run_paths}
    tied = 0
    for example in examples.read_examples(arguments.examples):
        experts = best({expert: values[example.query_id] for expert, values in reciprocal.items()})
        tied += len(experts) > 1
        for expert in experts:
            parts[expert].append(example)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for expert, part in parts.items():
        if not part:
            sys.exit(f"{arguments.runs}: {expert} is best on no query, so it has no training examples")
        partial = arguments.output / f".{expert}.jsonl.partial"
        examples.write_examples(part, partial)
        partial.rename(arguments.output / f"{expert}.jsonl")
    sys.stderr.write(", ".join(f"{expert} {len(part)}" for expert, part in parts.items()) + f" queries, {tied} of them shared\n")


if __name__ == "__main__":
    main()
