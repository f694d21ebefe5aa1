"""A checkpoint on tasks of MTEB: its fused list and each of its experts, one line each.

    pip install 'moeir[mteb]'
    python examples/mteb_evaluate.py CHECKPOINT FOLDER TASK... [--device cuda --dtype bfloat16]

TASK is a retrieval task of MTEB (SciFact, NFCorpus, …), which it downloads. FOLDER keeps encodings and indexes, which all lines
share; an interrupted run goes on where it was. MTEB keeps its own results in ~/.cache/mteb.
"""

import argparse
import sys
from pathlib import Path

import mteb

import moeir
from moeir.mteb import SearchModel


def main() -> None:
    """Print the main score of each task, for all experts together and for each alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    experts = list(moeir.open_checkpoint(options.checkpoint).architecture.representation_kinds)
    for expert in [None, *(experts if len(experts) > 1 else [])]:
        model = SearchModel(options.checkpoint, options.folder, expert=expert, device=options.device, dtype=options.dtype)
        for result in mteb.evaluate(model, mteb.get_tasks(tasks=options.tasks)).task_results:
            sys.stdout.write(f"{result.task_name}\t{expert or 'all'}\t{result.get_score():.5f}\n")


if __name__ == "__main__":
    main()
