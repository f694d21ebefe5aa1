"""Why the documents of a page were found, asked again of the index that found them."""

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
CLOSE = 1e-4  # of a score that parts add up to, next to one that was printed
log = logging.getLogger(__name__)


def explanations(
    index: Sequence[Path], corpus: Path | None, cases: "Cases", read: "Mapping[str, Run]", asked: "Mapping[str, Text]"
) -> Iterator[dict[str, Any]]:
    """Explanations of the documents of all cases whose queries have words; runs are experts by their names."""
    from moeir import console
    from moeir.records import texts
    from moeir.retrieval.explained import Explainer
    from moeir.retrieval.opened import open_index
    from moeir.retrieval.shelf import Shelf
    from moeir.retrieval.speed import Speed

    opened = open_index(index)
    found = _experts(opened, read)
    _check_documents(opened, found)
    shown = {name: [document for document in cases.documents(name) if document in opened.rows] for name in asked}
    shelf = None
    if corpus is not None:
        every = {document for documents in shown.values() for document in documents}
        shelf = Shelf(texts.read(corpus, keep_empty=True), every)
    explainer = Explainer(opened, found, opened.fusion, shelf)
    encoded = opened.encoded([text.content for text in asked.values()], BATCH, Speed())
    told = explainer.every(list(asked), [text.content for text in asked.values()], encoded, shown.__getitem__)
    summed = FUSED in found
    with console.meter("explaining", sum(map(len, shown.values()))) as meter:
        for one in told:
            meter.advance()
            if summed and not _adds_up(one):
                words = "its scores are not %s of the experts' runs; parts are left out, search --explain tells them"
                log.warning(f"%s: {words}", FUSED, opened.fusion)
                summed = False
            yield one if summed else _without_parts(one)


def _experts(opened: "OpenIndex", read: "Mapping[str, Run]") -> "dict[str, Run]":
    """The runs of this index's experts in its order, then the fused one."""
    named = {name: read[name] for name in opened.engines if name in read}
    if not named:
        expected = ", ".join(f"{name}.trec" for name in opened.engines)
        raise UsageError(f"--index {opened.label}: none of the runs bears the name of an expert; expected {expected}")
    whole = len(named) == len(opened.engines) > 1
    return {**named, FUSED: read[FUSED]} if whole and FUSED in read else named


def _check_documents(opened: "OpenIndex", found: "Mapping[str, Run]") -> None:
    for name, run in found.items():
        if unknown := next((document for document in run.names if document not in opened.rows), None):
            raise DataError(f"{name}: document {unknown!r} is not in {opened.label}; give the runs that this index found")


def _adds_up(one: Mapping[str, Any]) -> bool:
    parts = [said["part"] for said in one["experts"].values()]
    if one["score"] is None or None in parts:
        return True
    return bool(abs(sum(parts) - one["score"]) <= CLOSE * max(1.0, abs(one["score"])))


def _without_parts(one: dict[str, Any]) -> dict[str, Any]:
    return one | {"experts": {name: said | {"part": None} for name, said in one["experts"].items()}}
