"""Summary of a file or folder of data in any format: counts, lengths, first ids."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from moeir import variants
from moeir.errors import UsageError
from moeir.formats.base import Collection, Conversion, Format
from moeir.formats.detection import detect_format
from moeir.formats.qrels import iter_judgements
from moeir.records import qrels, remote_rows, runs, texts
from moeir.records.examples import Example
from moeir.records.runs import Run
from moeir.records.texts import Text

FIRST_IDS = 3  # number of first ids to report


def summarize(path: Path, spec: str | None = None) -> dict[str, Any]:
    """Format, kind and counts; UsageError if the format is not recognised or holds no text data."""
    name = spec or detect_format(path)
    reader: Format = variants.bind_variant("formats", name)()
    conversion = Conversion(name, name, lossy=True)
    summary = {"path": str(path), "kind": reader.kind, "format": name}
    summarizers: dict[str, Callable[[Any], dict[str, Any]]] = {
        "texts": summarize_texts,
        "qrels": summarize_qrels,
        "run": lambda items: summarize_run(next(items)),
        "examples": summarize_examples,
        "collection": lambda items: _summarize_collection(next(items)),
    }
    if reader.kind not in summarizers:
        raise UsageError(f"{path}: is {name}, not text data; expected a corpus, queries, judgements, a run, examples or a collection")
    return summary | summarizers[reader.kind](reader.read(path, conversion))


def summarize_remote(source: str) -> dict[str, Any]:
    """Kind and counts of an `irds:` or `hf:` source: a data set, or one table of texts or judgements."""
    parts = remote_rows.list_parts(source)
    if not parts:
        kind = "qrels" if _holds_judgements(source) else "texts"
        return {"path": source, "kind": kind, **_summarize_table(source, kind)}
    kinds = {name: "qrels" if name.startswith("qrels") else "texts" for name in parts}
    return {"path": source, "kind": "collection", **{name: _summarize_table(table, kinds[name]) for name, table in parts.items()}}


def _summarize_table(source: str, kind: str) -> dict[str, Any]:
    if kind == "qrels":
        return summarize_qrels(iter_judgements(qrels.read_qrels(source)))
    return summarize_texts(texts.read_texts(source, keep_empty=True))


def _holds_judgements(source: str) -> bool:
    if source.startswith("irds:"):
        return source.endswith("#qrels")
    _, first = next(remote_rows.read_hf(source), ("", {}))
    return all(first.keys() & set(names) for names in qrels.ROW_FIELDS.values())


def _summarize_collection(collection: Collection) -> dict[str, Any]:
    parts = {"corpus": summarize_texts(collection.corpus), "queries": summarize_texts(collection.queries)}
    return parts | {f"qrels {split}": summarize_qrels(iter_judgements(grades)) for split, grades in collection.qrels.items()}


def summarize_texts(items: Iterable[Text]) -> dict[str, Any]:
    """Counts and lengths of texts.

    >>> summarize_texts([Text("a", "An owl."), Text("b", "", "Bat")])
    {'texts': 2, 'with a title': 1, 'empty': 0, 'words': {'least': 1, 'median': 1.5, 'most': 2, 'all': 3}, 'first ids': ['a', 'b']}
    """
    words, with_title, empty, with_answers, first_ids = list[int](), 0, 0, 0, list[str]()
    for text in items:
        words.append(len(text.content.split()))
        with_title, empty, with_answers = with_title + bool(text.title), empty + (not text.content), with_answers + bool(text.answers)
        if len(first_ids) < FIRST_IDS:
            first_ids.append(text.id)
    summary = {"texts": len(words), "with a title": with_title, "empty": empty} | ({"with answers": with_answers} if with_answers else {})
    return summary | {"words": min_median_max(words), "first ids": first_ids}


def summarize_qrels(items: Iterable[tuple[str, str, int]]) -> dict[str, Any]:
    """Counts of judgements.

    >>> summarize_qrels([("q1", "owl", 2), ("q1", "cat", 0), ("q2", "bat", 1)])["grades"]
    {'0': 1, '1': 1, '2': 1}
    """
    grades, counts, relevant, documents = Counter[int](), Counter[str](), set[str](), set[str]()
    for query, document, grade in items:
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
        "judged for a query": min_median_max(list(counts.values())),
        "first ids": list(counts)[:FIRST_IDS],
    }


def summarize_run(ranked: Run) -> dict[str, Any]:
    """Counts, depths and scores of a run."""
    depths = np.diff(ranked.starts)
    scores = ranked.scores
    not_first = np.setdiff1d(np.arange(1, len(scores)), ranked.starts)
    return {
        "queries": len(ranked),
        "hits": len(scores),
        "documents": len(ranked.document_ids),
        "depth": min_median_max(depths.tolist()),
        "scores": {"least": float(runs.format_score(scores.min())), "most": float(runs.format_score(scores.max()))},
        "hits with the score of the one above": int((scores[not_first] == scores[not_first - 1]).sum()),
        "tag": ranked.tag,
        "first ids": ranked.queries[:FIRST_IDS],
    }


def summarize_examples(items: Iterator[Example]) -> dict[str, Any]:
    """Counts of training examples."""
    positives, negatives, with_texts, with_teacher, with_provenance, first_ids = list[int](), list[int](), 0, 0, 0, list[str]()
    for example in items:
        positives.append(len(example.positive_ids))
        negatives.append(len(example.negative_ids))
        with_texts, with_teacher = with_texts + (example.query is not None), with_teacher + bool(example.positive_scores)
        with_provenance += bool(example.provenance)
        if len(first_ids) < FIRST_IDS:
            first_ids.append(example.query_id)
    return {
        "queries": len(positives),
        "positives": min_median_max(positives),
        "negatives": min_median_max(negatives),
        "with texts": with_texts,
        "with a teacher's scores": with_teacher,
        "with provenance": with_provenance,
        "first ids": first_ids,
    }


def min_median_max(numbers: list[int]) -> dict[str, float]:
    """Minimum, median, maximum and sum.

    >>> min_median_max([1, 5, 2])
    {'least': 1, 'median': 2.0, 'most': 5, 'all': 8}
    """
    if not numbers:
        return {}
    return {"least": min(numbers), "median": float(np.median(numbers)), "most": max(numbers), "all": sum(numbers)}
