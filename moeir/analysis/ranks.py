"""The rank of every relevant document in each of several runs: the table of a case study."""

from collections.abc import Collection, Mapping

from moeir.analysis.result import AnalysisResult
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

MAX_TEXT = 80  # characters of a query in a table


def shorten_text(text: str) -> str:
    """The first characters of a text, on one line.

    >>> shorten_text("who hunts\\n mice")
    'who hunts mice'
    """
    return " ".join(text.split())[:MAX_TEXT]


def analyze_ranks(
    runs: Mapping[str, Run], qrels: Qrels, queries: Collection[str], texts: Mapping[str, str] | None, depth: int
) -> AnalysisResult:
    """A row per query and relevant document with its rank in each run, None beyond `depth`; the best ranked document of a query first.

    Cai et al. 2023 (CAME), Figure 4.
    """
    rows: list[list[object]] = []
    for query in queries:
        relevant = {document for document, grade in qrels[query].items() if grade > 0}
        lists = [run.documents_of(query)[:depth] for run in runs.values()]
        ranks = [{document: rank for rank, document in enumerate(documents, 1) if document in relevant} for documents in lists]
        best = {document: min(by_run.get(document, depth + 1) for by_run in ranks) for document in relevant}
        for document in sorted(relevant, key=lambda document: (best[document], document)):
            text = [] if texts is None else [shorten_text(texts[query])]
            rows.append([query, *text, document, *(by_run.get(document) for by_run in ranks)])
    return AnalysisResult(["query", *([] if texts is None else ["text"]), "document", *runs], rows)
