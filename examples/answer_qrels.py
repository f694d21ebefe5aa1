"""Judge the documents of runs by answers: a document that contains an answer is relevant. For analyses that read judgements.

    python examples/answer_qrels.py --answers questions.jsonl --corpus corpus.jsonl --output answers.qrels dense.trec sparse.trec

The grades are those by which `moeir evaluate --answers` counts, 1 or 0, of every document in one of the runs; the corpus is read once.
"""

import argparse
from pathlib import Path

from moeir.evaluation import answer_match
from moeir.records import qrels, runs, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="runs of the questions")
    parser.add_argument("--answers", type=Path, required=True, help="questions with answers")
    parser.add_argument("--corpus", type=Path, required=True, help="documents")
    parser.add_argument("--match", default="string", choices=("string", "regex"), help="what answers are")
    parser.add_argument("--output", type=Path, required=True, help="judgements to write")
    arguments = parser.parse_args()
    answers = answer_match.compile_answers(texts.read_texts(arguments.answers, keep_empty=True), arguments.match, arguments.answers)
    grades_by_query: qrels.Qrels = {}
    for grades in answer_match.qrels_from_answers([runs.read_run(path) for path in arguments.runs], answers, arguments.corpus):
        for query, documents in grades.items():
            grades_by_query.setdefault(query, {}).update(documents)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.output.with_name(f".{arguments.output.name}.partial")
    qrels.write_qrels(grades_by_query, partial)
    partial.rename(arguments.output)


if __name__ == "__main__":
    main()
