"""Analyses of `moeir analyze` that read runs or training metrics, without a model."""

from itertools import combinations
from typing import TYPE_CHECKING

from moeir import variants
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.stages.evaluate import named_runs

if TYPE_CHECKING:
    from moeir.analysis.finding import Finding
    from moeir.records.qrels import Qrels
    from moeir.records.runs import Run, Scores
    from moeir.stages.analyze import Analyze


def overlap(stage: "Analyze") -> "Finding":
    """Overlap of the ranked lists of each pair of runs."""
    from moeir.analysis.finding import Finding, Picture

    compare = variants.bind("analysis.overlap", stage.overlap)
    runs = _read(stage)
    rows = []
    for one, other in combinations(runs, 2):
        common_queries = [query for query in runs[one].queries if query in runs[other].places]
        if not common_queries:
            raise DataError(f"{one} and {other} have no query in common; are they runs of one query set?")
        values = [compare(runs[one].documents_of(query), runs[other].documents_of(query)) for query in common_queries]
        rows.append([one, other, len(common_queries), sum(values) / len(values)])
    picture = Picture("matrix", [(stage.overlap, one, other, value) for one, other, _, value in rows])
    return Finding(["run", "other", "queries", stage.overlap], rows, picture, header=["run", "run", "queries", stage.overlap])


def wins(stage: "Analyze") -> "Finding":
    """Queries on which each run is best, in all and per query group."""
    from moeir.analysis import wins
    from moeir.analysis.finding import Finding, Picture
    from moeir.records import texts

    values = judged(stage)
    groups: dict[str, dict[str, str]] = {}
    if stage.queries is not None:
        queries = {text.id: text.content for text in texts.read(stage.queries) if text.id in next(iter(values.values()))}
        if not queries:
            raise DataError(f"{stage.queries}: none of its queries is judged in {stage.qrels}")
        groups["length"] = {name: wins.length(text) for name, text in queries.items()}
        groups["question"] = {name: wins.question(text) for name, text in queries.items()}
        if stage.corpus is not None:
            groups["overlap"] = _overlaps(stage, queries)
    win_counts = wins.table(values, groups)
    rows = [
        [
            entry.by,
            entry.group,
            entry.queries,
            entry.run,
            entry.wins,
            entry.wins / entry.queries,
            None if entry.run == wins.TIED else entry.mean,
        ]
        for entry in win_counts
    ]
    marks = [(entry.by, entry.run, f"{entry.group} ({entry.queries:,})", entry.wins / entry.queries) for entry in win_counts]
    names = ["by", "group", "queries", "run", "wins", "share", str(stage.measure)]
    return Finding(names, rows, Picture("bars", marks, up="share of queries where it alone is best"))


def _overlaps(stage: "Analyze", queries: dict[str, str]) -> dict[str, str]:
    from moeir.analysis import wins
    from moeir.records import qrels, texts

    assert stage.qrels is not None and stage.corpus is not None
    grades = qrels.read(stage.qrels)
    relevant_ids = {document for query in queries for document, grade in grades[query].items() if grade > 0}
    relevant_texts = {text.id: text.content for text in texts.read(stage.corpus, keep_empty=True) if text.id in relevant_ids}
    return wins.overlaps(queries, grades, relevant_texts)


def scores(stage: "Analyze") -> "Finding":
    """Score histogram of each run; with judgements, relevant documents apart from others."""
    import numpy as np

    from moeir.analysis import histograms
    from moeir.analysis.finding import Finding, Picture
    from moeir.records import qrels

    grades = None if stage.qrels is None else qrels.read(stage.qrels)
    rows: list[list[object]] = []
    for name, run in _read(stage).items():
        scores_by_kind = _scores(run, grades)
        all_scores = np.concatenate(list(scores_by_kind.values()))
        if not len(all_scores):
            raise DataError(f"{name}: has no query that is judged in {stage.qrels}")
        for kind, values in scores_by_kind.items():
            rows += [
                [name, kind, *columns]
                for columns in histograms.scores(values, float(all_scores.min()), float(all_scores.max()), stage.classes)
            ]
    marks = [(name, kind, low, high, share) for name, kind, low, high, _, share in rows]
    names = ["run", "documents", "from", "to", "count", "share"]
    return Finding(names, rows, Picture("steps", marks, across="score", up="share of documents"))


def _scores(run: "Run", grades: "Qrels | None") -> "dict[str, Scores]":
    """All scores of a run; with judgements, those of relevant and of other documents of judged queries."""
    import numpy as np

    if grades is None:
        return {"all": run.scores}
    codes = {name: code for code, name in enumerate(run.names)}
    answer_scores, other_scores = [run.scores[:0]], [run.scores[:0]]
    for row, query in enumerate(run.queries):
        if query in grades:
            documents, scores = run.row(row)
            relevant_codes = [codes[name] for name, grade in grades[query].items() if grade > 0 and name in codes]
            is_relevant = np.isin(documents, relevant_codes)
            answer_scores.append(scores[is_relevant])
            other_scores.append(scores[~is_relevant])
    return {"answer": np.concatenate(answer_scores), "other": np.concatenate(other_scores)}


def shares(stage: "Analyze") -> "Finding":
    """Expert shares over the course of a training."""
    from moeir.analysis import shares
    from moeir.analysis.finding import Finding, Picture

    assert stage.model is not None
    path = stage.model / "metrics.jsonl"
    if not path.is_file():
        raise ArtifactError(f"{stage.model}: has no metrics.jsonl: not trained; moeir finetune --model {stage.model} … trains it")
    names, rows = shares.over_time(path, stage.rows)
    if len(names) == 1:
        raise UsageError(f"{path}: has no metrics of single experts; expected share.…, usage.… or loss.…")
    marks = []
    for column, name in enumerate(names[1:], start=1):
        kind, _, expert = name.partition(".")
        marks += [(kind, expert, row[0], row[column]) for row in rows if row[column] is not None]
    return Finding(names, rows, Picture("lines", marks, across="step"))


def judged(stage: "Analyze") -> dict[str, dict[str, float]]:
    """The value of the measure for each judged query, by run."""
    from moeir.evaluation import measures
    from moeir.records import qrels

    assert stage.qrels is not None
    measure, grades = measures.parse(stage.measure), qrels.read(stage.qrels)
    try:
        return {name: measures.per_query(run, grades, [measure])[str(measure)] for name, run in _read(stage).items()}
    except DataError as error:
        raise DataError(f"{stage.qrels}: {error}") from None


def _read(stage: "Analyze") -> "dict[str, Run]":
    from moeir.records import runs

    return {name: runs.read(path) for name, path in named_runs(stage.run).items()}
