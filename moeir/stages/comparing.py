"""Analyses of `moeir analyze` that read runs or training metrics, without a model."""

from itertools import combinations
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.stages.evaluate import name_runs

if TYPE_CHECKING:
    from moeir.analysis.result import AnalysisResult
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run, Scores
    from moeir.stages.analyze import Analyze


def analyze_overlap(stage: "Analyze") -> "AnalysisResult":
    """Overlap of the ranked lists of each pair of runs."""
    from moeir.analysis.result import AnalysisResult, Plot

    compare = variants.bind_variant("analysis.overlap", stage.overlap)
    runs = _read_runs(stage)
    rows = []
    for one, other in combinations(runs, 2):
        common_queries = [query for query in runs[one].queries if query in runs[other].query_rows]
        if not common_queries:
            raise DataError(f"{one} and {other} have no query in common; are they runs of one query set?")
        values = [compare(runs[one].documents_of(query), runs[other].documents_of(query)) for query in common_queries]
        rows.append([one, other, len(common_queries), sum(values) / len(values)])
    picture = Plot("matrix", [(stage.overlap, one, other, value) for one, other, _, value in rows])
    return AnalysisResult(["run", "other", "queries", stage.overlap], rows, picture, table_header=["run", "run", "queries", stage.overlap])


def analyze_wins(stage: "Analyze") -> "AnalysisResult":
    """Queries on which each run is best, in all and per query group."""
    from moeir.analysis import wins
    from moeir.analysis.result import AnalysisResult, Plot
    from moeir.records import texts

    values = evaluate_per_query(stage)
    groups: dict[str, dict[str, str]] = {}
    if stage.queries is not None:
        queries = {text.id: text.content for text in texts.read_texts(stage.queries) if text.id in next(iter(values.values()))}
        if not queries:
            raise DataError(f"{stage.queries}: none of its queries is judged in {stage.qrels}")
        groups["length"] = {name: wins.length_class(text) for name, text in queries.items()}
        groups["question"] = {name: wins.question_class(text) for name, text in queries.items()}
        if stage.corpus is not None:
            groups["overlap"] = _answer_overlaps(stage, queries)
    win_counts = wins.win_table(values, groups)
    rows = [
        [
            entry.criterion,
            entry.group,
            entry.queries,
            entry.run,
            entry.wins,
            entry.wins / entry.queries,
            None if entry.run == wins.TIED else entry.mean,
        ]
        for entry in win_counts
    ]
    marks = [(entry.criterion, entry.run, f"{entry.group} ({entry.queries:,})", entry.wins / entry.queries) for entry in win_counts]
    names = ["by", "group", "queries", "run", "wins", "share", str(stage.measure)]
    return AnalysisResult(names, rows, Plot("bars", marks, y_label="share of queries where it alone is best"))


def _answer_overlaps(stage: "Analyze", queries: dict[str, str]) -> dict[str, str]:
    from moeir.analysis import wins
    from moeir.records import qrels, texts

    assert stage.qrels is not None and stage.corpus is not None
    grades = qrels.read_qrels(stage.qrels)
    relevant_ids = {document for query in queries for document, grade in grades[query].items() if grade > 0}
    relevant_texts = {text.id: text.content for text in texts.read_texts(stage.corpus, keep_empty=True) if text.id in relevant_ids}
    return wins.overlap_classes(queries, grades, relevant_texts)


def analyze_scores(stage: "Analyze") -> "AnalysisResult":
    """Score histogram of each run; with judgements, relevant documents apart from others."""
    import numpy as np

    from moeir.analysis import histograms
    from moeir.analysis.result import AnalysisResult, Plot
    from moeir.records import qrels

    grades = None if stage.qrels is None else qrels.read_qrels(stage.qrels)
    rows: list[list[object]] = []
    for name, run in _read_runs(stage).items():
        scores_by_kind = _split_scores(run, grades)
        all_scores = np.concatenate(list(scores_by_kind.values()))
        if not len(all_scores):
            raise DataError(f"{name}: has no query that is judged in {stage.qrels}")
        for kind, values in scores_by_kind.items():
            rows += [
                [name, kind, *columns]
                for columns in histograms.score_histogram(values, float(all_scores.min()), float(all_scores.max()), stage.classes)
            ]
    marks = [(name, kind, low, high, share) for name, kind, low, high, _, share in rows]
    names = ["run", "documents", "from", "to", "count", "share"]
    return AnalysisResult(names, rows, Plot("steps", marks, x_label="score", y_label="share of documents"))


def _split_scores(run: "Run", grades: "Qrels | None") -> "dict[str, Scores]":
    """All scores of a run; with judgements, those of relevant and of other documents of judged queries."""
    import numpy as np

    if grades is None:
        return {"all": run.scores}
    codes = {name: code for code, name in enumerate(run.document_ids)}
    answer_scores, other_scores = [run.scores[:0]], [run.scores[:0]]
    for row, query in enumerate(run.queries):
        if query in grades:
            documents, scores = run.list_at(row)
            relevant_codes = [codes[name] for name, grade in grades[query].items() if grade > 0 and name in codes]
            is_relevant = np.isin(documents, relevant_codes)
            answer_scores.append(scores[is_relevant])
            other_scores.append(scores[~is_relevant])
    return {"answer": np.concatenate(answer_scores), "other": np.concatenate(other_scores)}


def analyze_shares(stage: "Analyze") -> "AnalysisResult":
    """Expert shares over the course of a training."""
    from moeir.analysis import training_monitor
    from moeir.analysis.result import AnalysisResult, Plot

    assert stage.model is not None
    path = stage.model / "metrics.jsonl"
    if not path.is_file():
        raise ArtifactError(f"{stage.model}: has no metrics.jsonl: not trained; moeir finetune --model {stage.model} … trains it")
    names, rows = training_monitor.read_expert_means(path, stage.rows)
    if len(names) == 1:
        raise UsageError(f"{path}: has no metrics of single experts; expected share.…, usage.… or loss.…")
    marks = []
    for column, name in enumerate(names[1:], start=1):
        kind, _, expert = name.partition(".")
        marks += [(kind, expert, row[0], row[column]) for row in rows if row[column] is not None]
    return AnalysisResult(names, rows, Plot("lines", marks, x_label="step"))


def evaluate_per_query(stage: "Analyze") -> dict[str, dict[str, float]]:
    """The value of the measure for each judged query, by run."""
    from moeir.evaluation import measures
    from moeir.records import qrels

    assert stage.qrels is not None
    measure, grades = measures.parse_measure(stage.measure), qrels.read_qrels(stage.qrels)
    try:
        return {name: measures.evaluate_run(run, grades, [measure])[str(measure)] for name, run in _read_runs(stage).items()}
    except DataError as error:
        raise DataError(f"{stage.qrels}: {error}") from None


def _read_runs(stage: "Analyze") -> "dict[str, Run]":
    from moeir.records import runs

    return {name: runs.read_run(path) for name, path in name_runs(stage.run).items()}
