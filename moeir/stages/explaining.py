"""Explanations for a report page, recomputed from the index that was searched."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.errors import DataError, UsageError

if TYPE_CHECKING:
    from moeir.records.runs import Run
    from moeir.records.texts import Text
    from moeir.report.cases import Cases
    from moeir.retrieval.opened import OpenIndex

BATCH = 64
FUSED = "fused"
CLOSE = 1e-4  # tolerance between a sum of parts and a printed score
log = logging.getLogger(__name__)


def explanations(
    index: Sequence[Path], corpus: Path | None, cases: "Cases", runs: "Mapping[str, Run]", queries: "Mapping[str, Text]"
) -> Iterator[dict[str, Any]]:
    """Explanations of the documents of all queries with texts; a run belongs to the expert it is named after."""
    from moeir import console
    from moeir.records import texts
    from moeir.retrieval.explained import Explainer
    from moeir.retrieval.opened import open_index
    from moeir.retrieval.shelf import Shelf
    from moeir.retrieval.speed import Speed

    searcher = open_index(index)
    expert_runs = _experts(searcher, runs)
    _check_documents(searcher, expert_runs)
    shown_documents = {name: [document for document in cases.documents(name) if document in searcher.rows] for name in queries}
    text_store = None
    if corpus is not None:
        all_documents = {document for documents in shown_documents.values() for document in documents}
        text_store = Shelf(texts.read(corpus, keep_empty=True), all_documents)
    explainer = Explainer(searcher, expert_runs, searcher.fusion, text_store)
    encoded = searcher.encoded([text.content for text in queries.values()], BATCH, Speed())
    all_explanations = explainer.every(list(queries), [text.content for text in queries.values()], encoded, shown_documents.__getitem__)
    adds_up = FUSED in expert_runs
    with console.meter("explaining", sum(map(len, shown_documents.values()))) as meter:
        for explanation in all_explanations:
            meter.advance()
            if adds_up and not _adds_up(explanation):
                message = "its scores are not %s of the experts' runs; parts are left out; search --explain has them"
                log.warning(f"%s: {message}", FUSED, searcher.fusion)
                adds_up = False
            yield explanation if adds_up else _without_parts(explanation)


def _experts(searcher: "OpenIndex", runs: "Mapping[str, Run]") -> "dict[str, Run]":
    """The runs of this index's experts in its order, then the fused one."""
    expert_runs = {name: runs[name] for name in searcher.engines if name in runs}
    if not expert_runs:
        expected = ", ".join(f"{name}.trec" for name in searcher.engines)
        raise UsageError(f"--index {searcher.label}: no run is named after an expert; expected {expected}")
    complete = len(expert_runs) == len(searcher.engines) > 1
    return {**expert_runs, FUSED: runs[FUSED]} if complete and FUSED in runs else expert_runs


def _check_documents(searcher: "OpenIndex", expert_runs: "Mapping[str, Run]") -> None:
    for name, run in expert_runs.items():
        if unknown := next((document for document in run.names if document not in searcher.rows), None):
            raise DataError(f"{name}: document {unknown!r} is not in {searcher.label}; give runs that were searched with this index")


def _adds_up(explanation: Mapping[str, Any]) -> bool:
    parts = [expert["part"] for expert in explanation["experts"].values()]
    if explanation["score"] is None or None in parts:
        return True
    return bool(abs(sum(parts) - explanation["score"]) <= CLOSE * max(1.0, abs(explanation["score"])))


def _without_parts(explanation: dict[str, Any]) -> dict[str, Any]:
    return explanation | {"experts": {name: expert | {"part": None} for name, expert in explanation["experts"].items()}}
