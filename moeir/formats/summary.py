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
    summarizers: dict[str, Callable[[Any], dict[str, Any]]] = {
        "texts": summarize_texts,
        "qrels": summarize_qrels,
        "run": lambda items: summarize_run(next(items)),
        "examples": summarize_examples,
        "collection": lambda items: _summarize_collection(next(items)),
    }
    if reader.kind not in summarizers:
        raise UsageError(f"{path}: is {name}, not text data; expected a corpus, queries, judgements, a run, examples or a collection")
    items = reader.read(path, Conversion(name, name, lossy=True))
    return {"path": str(path), "kind": reader.kind, "format": name, **summarizers[reader.kind](items)}


def summarize_remote(source: str) -> dict[str, Any]:
    """Kind and counts of the texts or judgements of an `irds:` or `hf:` source."""
    if source.startswith("irds:"):
        has_judgements = source.endswith("#qrels")
    else:
        _, first = next(remote_rows.read_hf(source), ("", {}))
        has_judgements = all(first.keys() & set(names) for names in qrels.ROW_FIELDS.values())
    if has_judgements:
        return {"path": source, "kind": "qrels", **summarize_qrels(iter_judgements(qrels.read_qrels(source)))}
    return {"path": source, "kind": "texts", **summarize_texts(texts.read_texts(source, keep_empty=True))}


def _summarize_collection(collection: Collection) -> dict[str, Any]:
    parts = {"corpus": summarize_texts(collection.corpus), "queries": summarize_texts(collection.queries)}
    return parts | {f"qrels {split}": summarize_qrels(iter_judgements(grades)) for split, grades in collection.qrels.items()}


def summarize_texts(items: Iterable[Text]) -> dict[str, Any]:
    """Counts and lengths of texts.

    >>> summarize_texts([Text("a", "one", "T"), Text("b", "two")])
    {'texts': 2, 'with a title': 1, 'empty': 0, 'words': {'least': 1, 'median': 1.5, 'most': 2, 'all': 3}, 'first ids': ['a', 'b']}
    """
    words, with_title, first_ids = list[int](), 0, list[str]()
    for text in items:
        words.append(len(text.content.split()))
        with_title += bool(text.title)
        first_ids += [text.id] if len(words) <= FIRST_IDS else []
    counts = {"texts": len(words), "with a title": with_title, "empty": words.count(0)}
    return counts | {"words": min_median_max(words), "first ids": first_ids}


def summarize_qrels(items: Iterable[tuple[str, str, int]]) -> dict[str, Any]:
    """Counts of judgements.

    >>> summarize_qrels([("q1", "owl", 2), ("q1", "cat", 0), ("q2", "bat", 0)])
    {'judgements': 3, 'queries': 2, 'without a relevant document': 1, 'grades': {'0': 2, '2': 1},
     'judged for a query': {'least': 1, 'median': 1.5, 'most': 2, 'all': 3}, 'first ids': ['q1', 'q2']}
    """
    grades, counts, relevant = Counter[int](), Counter[str](), set[str]()
    for query, _, grade in items:
        grades[grade] += 1
        counts[query] += 1
        relevant.update([query] if grade > 0 else [])
    return {
        "judgements": grades.total(),
        "queries": len(counts),
        "without a relevant document": len(counts) - len(relevant),
        "grades": {str(grade): grades[grade] for grade in sorted(grades)},
        "judged for a query": min_median_max(list(counts.values())),
        "first ids": list(counts)[:FIRST_IDS],
    }


def summarize_run(ranked: Run) -> dict[str, Any]:
    """Counts, depths and scores of a run."""
    extremes = {"least": ranked.scores.min(), "most": ranked.scores.max()}
    return {
        "queries": len(ranked),
        "hits": len(ranked.scores),
        "documents": len(ranked.document_ids),
        "depth": min_median_max(np.diff(ranked.starts).tolist()),
        "scores": {name: float(runs.format_score(score)) for name, score in extremes.items()},
        "tag": ranked.tag,
        "first ids": ranked.queries[:FIRST_IDS],
    }


def summarize_examples(items: Iterator[Example]) -> dict[str, Any]:
    """Counts of training examples."""
    positives, negatives, counts, first_ids = list[int](), list[int](), Counter[str](), list[str]()
    for example in items:
        positives.append(len(example.positive_ids))
        negatives.append(len(example.negative_ids))
        has = {"with texts": example.query, "with a teacher's scores": example.positive_scores, "with provenance": example.provenance}
        counts.update({name: int(bool(value)) for name, value in has.items()})
        first_ids += [example.query_id] if len(positives) <= FIRST_IDS else []
    sizes = {"positives": min_median_max(positives), "negatives": min_median_max(negatives)}
    return {"queries": len(positives), **sizes, **counts, "first ids": first_ids}


def min_median_max(numbers: list[int]) -> dict[str, float]:
    """Minimum, median, maximum and sum.

    >>> min_median_max([1, 5, 2])
    {'least': 1, 'median': 2.0, 'most': 5, 'all': 8}
    """
    if not numbers:
        return {}
    return {"least": min(numbers), "median": float(np.median(numbers)), "most": max(numbers), "all": sum(numbers)}
