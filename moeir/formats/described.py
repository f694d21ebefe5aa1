"""What a file or folder of data holds: counts, lengths, the first ids, in whatever format it is."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moeir import variants
from moeir.errors import UsageError
from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.detection import detected
from moeir.records import runs
from moeir.records.examples import Example
from moeir.records.runs import Run
from moeir.records.texts import Text

SHOWN = 3  # first ids


def facts(path: Path, spec: str | None = None) -> dict[str, Any]:
    """Format, kind, and what there is of it; UsageError for a format that is not sure, or that is no data."""
    name = spec or detected(path)
    made: Format = variants.bind("formats", name)()
    conversion = Conversion(name, name, lossy=True)
    found = {"path": str(path), "kind": made.kind, "format": name}
    if made.kind == "texts":
        return found | texts(made.read(path, conversion))
    if made.kind == "qrels":
        return found | judgements(made.read(path, conversion))
    if made.kind == "run":
        return found | run(next(made.read(path, conversion)))
    if made.kind == "examples":
        return found | examples(made.read(path, conversion))
    if made.kind != "collection":
        raise UsageError(f"{path}: is {name}, which is no text; expected a corpus, queries, judgements, a run, examples or a collection")
    collection: Collection = next(made.read(path, conversion))
    parts = {"corpus": texts(collection.corpus), "queries": texts(collection.queries)}
    for split, qrels in collection.qrels.items():
        parts[f"qrels {split}"] = judgements((query, *judged) for query, row in qrels.items() for judged in row.items())
    return found | parts


def texts(every: Iterable[Text]) -> dict[str, Any]:
    """Of texts.

    >>> texts([Text("a", "An owl."), Text("b", "", "Bat")])
    {'texts': 2, 'with a title': 1, 'empty': 0, 'words': {'least': 1, 'median': 1.5, 'most': 2, 'all': 3}, 'first ids': ['a', 'b']}
    """
    words, titled, empty, answered, first = list[int](), 0, 0, 0, list[str]()
    for text in every:
        words.append(len(text.content.split()))
        titled, empty, answered = titled + bool(text.title), empty + (not text.content), answered + bool(text.answers)
        if len(first) < SHOWN:
            first.append(text.id)
    found = {"texts": len(words), "with a title": titled, "empty": empty} | ({"with answers": answered} if answered else {})
    return found | {"words": spread(words), "first ids": first}


def judgements(every: Iterable[tuple[str, str, int]]) -> dict[str, Any]:
    """Of judgements.

    >>> judgements([("q1", "owl", 2), ("q1", "cat", 0), ("q2", "bat", 1)])["grades"]
    {'0': 1, '1': 1, '2': 1}
    """
    grades, counts, relevant, documents = Counter[int](), Counter[str](), set[str](), set[str]()
    for query, document, grade in every:
        grades[grade] += 1
        counts[query] += 1
        documents.add(document)
        if grade > 0:
            relevant.add(query)
    return {
        "judgements": grades.total(),
        "queries": len(counts),
        "without a relevant document": len(counts) - len(relevant),
        "documents": len(documents),
        "grades": {str(grade): grades[grade] for grade in sorted(grades)},
        "judged for a query": spread(list(counts.values())),
        "first ids": list(counts)[:SHOWN],
    }


def run(found: Run) -> dict[str, Any]:
    """Of a run."""
    depths = np.diff(found.starts)
    scores = found.scores
    within = np.setdiff1d(np.arange(1, len(scores)), found.starts)
    return {
        "queries": len(found),
        "hits": len(scores),
        "documents": len(found.names),
        "depth": spread(depths.tolist()),
        "scores": {"least": float(runs.score_text(scores.min())), "most": float(runs.score_text(scores.max()))},
        "hits with the score of the one above": int((scores[within] == scores[within - 1]).sum()),
        "tag": found.tag,
        "first ids": found.queries[:SHOWN],
    }


def examples(every: Iterator[Example]) -> dict[str, Any]:
    """Of training examples."""
    positives, negatives, inline, taught, found, first = list[int](), list[int](), 0, 0, 0, list[str]()
    for example in every:
        positives.append(len(example.positive_ids))
        negatives.append(len(example.negative_ids))
        inline, taught = inline + (example.query is not None), taught + bool(example.positive_scores)
        found += bool(example.provenance)
        if len(first) < SHOWN:
            first.append(example.query_id)
    return {
        "queries": len(positives),
        "positives": spread(positives),
        "negatives": spread(negatives),
        "with texts": inline,
        "with a teacher's scores": taught,
        "with provenance": found,
        "first ids": first,
    }


def spread(numbers: list[int]) -> dict[str, float]:
    """Least, median, most and the sum.

    >>> spread([1, 5, 2])
    {'least': 1, 'median': 2.0, 'most': 5, 'all': 8}
    """
    if not numbers:
        return {}
    return {"least": min(numbers), "median": float(np.median(numbers)), "most": max(numbers), "all": sum(numbers)}
