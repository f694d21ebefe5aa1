"""Explanations of the documents of given runs, recomputed from the index that was searched."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeir import console
from moeir.errors import DataError, UsageError
from moeir.records import texts
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.retrieval.explain import Explainer
from moeir.retrieval.latency import LatencyRecorder
from moeir.retrieval.searcher import Searcher, TextStore, open_index

QUERY_BATCH = 64
FUSED = "fused"
RELATIVE_TOLERANCE = 1e-4  # tolerance between a sum of parts and a printed score
log = logging.getLogger(__name__)


def explain_runs(
    index: Sequence[Path],
    corpus: Path | None,
    runs: Mapping[str, Run],
    queries: Mapping[str, Text],
    documents_of: Callable[[str], Sequence[str]],
) -> Iterator[dict[str, Any]]:
    """Explanations of the documents that `documents_of` gives for each query; a run belongs to the expert it is named after."""
    searcher = open_index(index)
    expert_runs = _expert_runs(searcher, runs)
    _check_indexed(searcher, expert_runs)
    shown_documents = {name: [document for document in documents_of(name) if document in searcher.row_by_id] for name in queries}
    text_store = None
    if corpus is not None:
        all_documents = {document for documents in shown_documents.values() for document in documents}
        text_store = TextStore(texts.read_texts(corpus, keep_empty=True), all_documents)
    explainer = Explainer(searcher, expert_runs, searcher.default_fusion, text_store)
    encoded = searcher.encode_batches([text.content for text in queries.values()], QUERY_BATCH, LatencyRecorder())
    all_explanations = explainer.explain_all(
        list(queries), [text.content for text in queries.values()], encoded, shown_documents.__getitem__
    )
    adds_up = FUSED in expert_runs
    with console.meter("explaining", sum(map(len, shown_documents.values()))) as meter:
        for explanation in all_explanations:
            meter.advance()
            if adds_up and not _parts_add_up(explanation):
                message = "its scores are not %s of the experts' runs; parts are left out; search --explain has them"
                log.warning(f"%s: {message}", FUSED, searcher.default_fusion)
                adds_up = False
            yield explanation if adds_up else _without_parts(explanation)


def _expert_runs(searcher: Searcher, runs: Mapping[str, Run]) -> dict[str, Run]:
    """The runs of this index's experts in its order, then the fused one."""
    expert_runs = {name: runs[name] for name in searcher.engines if name in runs}
    if not expert_runs:
        expected = ", ".join(f"{name}.trec" for name in searcher.engines)
        raise UsageError(f"--index {searcher.label}: no run is named after an expert; expected {expected}")
    complete = len(expert_runs) == len(searcher.engines) > 1
    return {**expert_runs, FUSED: runs[FUSED]} if complete and FUSED in runs else expert_runs


def _check_indexed(searcher: Searcher, expert_runs: Mapping[str, Run]) -> None:
    for name, run in expert_runs.items():
        if unknown := next((document for document in run.document_ids if document not in searcher.row_by_id), None):
            raise DataError(f"{name}: document {unknown!r} is not in {searcher.label}; give runs that were searched with this index")


def _parts_add_up(explanation: Mapping[str, Any]) -> bool:
    parts = [expert["part"] for expert in explanation["experts"].values()]
    if explanation["score"] is None or None in parts:
        return True
    return bool(abs(sum(parts) - explanation["score"]) <= RELATIVE_TOLERANCE * max(1.0, abs(explanation["score"])))


def _without_parts(explanation: dict[str, Any]) -> dict[str, Any]:
    return explanation | {"experts": {name: expert | {"part": None} for name, expert in explanation["experts"].items()}}
