"""Speed and memory of reading, fusing and evaluating two runs of 7,000 queries with 1,000 documents each: `fuse` and `evaluate`.

    python -m tests.benchmarks.fusion_speed FOLDER [--rounds 3]

Runs and judgements are made on first use. Each command is a process of its own, in turns: seconds, and the peak of resident memory.
"""

import numpy as np

from tests.benchmarks.memory import MIB, measure_command
from tests.benchmarks.rounds import make_parser

MEASURES = ("nDCG@10", "RR@10", "R@10", "R@100", "R@1000", "AP", "P@10", "Success@20")
QUERIES, DEPTH, COLLECTION = 7000, 1000, 5_000_000


def main() -> None:
    """Print a line for each command and round."""
    options = make_parser(__doc__, ("folder",), rounds=3).parse_args()
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    if not (folder / "qrels").exists():
        with open(folder / "a.trec", "w") as a, open(folder / "b.trec", "w") as b, open(folder / "qrels", "w") as judged:
            for query in range(QUERIES):
                all_documents = generator.choice(COLLECTION, 2 * DEPTH - DEPTH // 4, replace=False)
                for output, documents in ((a, all_documents[:DEPTH]), (b, all_documents[-DEPTH:])):
                    scores = np.sort(generator.random(DEPTH) * 30)[::-1]
                    rows = enumerate(zip(documents.tolist(), scores.tolist(), strict=True), 1)
                    output.writelines(f"{query} Q0 {document} {rank} {score:.6f} x\n" for rank, (document, score) in rows)
                judged.writelines(f"{query} 0 {document} 1\n" for document in generator.choice(all_documents, 2, replace=False).tolist())
    runs = ["--run", str(folder / "a.trec"), "--run", str(folder / "b.trec")]
    measures = [word for name in MEASURES for word in ("--measure", name)]
    fuse = ["fuse", *runs, "--method", "rrf", "--depth", str(DEPTH), "--output", str(folder / "fused.trec"), "--force"]
    evaluate = ["evaluate", *runs[:2], "--qrels", str(folder / "qrels"), *measures]
    for _ in range(options.rounds):
        for command in (fuse, evaluate):
            seconds, resident, _ = measure_command(command)
            print(f"{command[0]:10} {seconds:7.2f} s  peak {resident / MIB:6.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
