"""Ranks of the relevant documents of queries in several runs (CAME, Figure 4).

    python examples/ranks.py --run bm25=runs/bm25.trec --run came=runs/came/fused.trec --qrels dev.tsv --queries queries.jsonl --query q1

A line for each query and relevant document, the best ranked of a query first; a rank beyond --depth is -.
"""

import argparse
import sys
import textwrap
from pathlib import Path

from moeir.errors import MoeirError, UsageError
from moeir.evaluation import tables
from moeir.records import qrels, texts
from moeir.stages.run_arguments import read_runs


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, action="append", required=True, help="NAME=PATH")
    for flag in ("--qrels", "--queries"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--query", action="append", required=True, help="id of a judged query")
    parser.add_argument("--depth", type=int, default=1000)
    options = parser.parse_args(arguments)
    grades, contents, rows = qrels.read_qrels(options.qrels), texts.read_texts_by_id(options.queries), []
    if unjudged := next((query for query in options.query if query not in grades or query not in contents), None):
        raise UsageError(f"--query {unjudged}: expected a query of {options.queries} that is judged in {options.qrels}")
    runs = read_runs(options.run)
    for query in dict.fromkeys(options.query):
        lists = [{document: rank for rank, document in enumerate(run.documents_of(query)[: options.depth], 1)} for run in runs.values()]
        relevant = sorted(document for document, grade in grades[query].items() if grade > 0)
        relevant.sort(key=lambda document: min(ranks.get(document, options.depth + 1) for ranks in lists))
        text = textwrap.shorten(contents[query].content, 80, placeholder=" …")
        rows += [[query, text, document, *(ranks.get(document) for ranks in lists)] for document in relevant]
    sys.stdout.write(tables.format_table(["query", "text", "document", *runs], rows) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
