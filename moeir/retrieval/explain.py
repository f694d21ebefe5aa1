"""Explanations of search results and given runs: rank, score and part of each expert, shared terms or best document tokens.

Evidence is scored from what the engine stores, pair by pair of single query terms or tokens with a document, so that the numbers are
those of the search.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from moeir import console, variants
from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import DataError, UsageError
from moeir.fusion import FUSED
from moeir.fusion.score_lists import ScoreLists
from moeir.heads.token_vectors import TokenVectorHead
from moeir.indexes.base import SearchableIndex
from moeir.indexes.exact_sum import select_queries
from moeir.records import texts
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.representations.evidence import Evidence, ExplainedDocuments, Pieces, round_score, shared_terms
from moeir.retrieval.latency import LatencyRecorder
from moeir.retrieval.searcher import Searcher, is_exact_sum, open_index

log = logging.getLogger(__name__)
QUERY_BATCH = 64
TOLERANCE = 1e-4  # between a sum of parts and a printed score
Explanation = dict[str, Any]
DocumentSelector = Callable[[str], Sequence[str]]  # the documents of a query


def shared_words(engine: SearchableIndex, query: str, rows: np.ndarray) -> list[Evidence]:
    """Words that each document shares with a BM25 query: query weights are counts, document weights are those of BM25."""
    counts = Counter(query.split())
    return shared_terms(list(counts), np.array(list(counts.values()), dtype=np.float64), score_each(engine, rows, list(counts)))


def score_each(engine: SearchableIndex, rows: np.ndarray, texts: Any) -> np.ndarray:
    """Scores of every text, such as the single terms of a query, with each document: float32 [texts, n]."""
    try:
        scores = engine.score_pairs(texts, np.repeat(np.arange(len(texts)), len(rows)), np.tile(rows, len(texts)))
    except UsageError as problem:
        raise UsageError(f"an explanation needs an engine that scores chosen documents: {problem}") from None
    return scores.reshape(len(texts), len(rows))


def token_pieces(checkpoint: RetrievalModel, expert: str, text: str, side: str, count: int) -> Pieces:
    """Token piece of each of the `count` vectors of a text; None if the numbers differ (pooled tokens, another text)."""
    ids, silent = checkpoint.token_ids([text], side)
    head = checkpoint.architecture.heads[expert]
    assert isinstance(head, TokenVectorHead)
    mask = head.token_mask(PackedTokens.from_lists(ids, side, silent).to(checkpoint.device)).tolist()
    names: list[str | None] = [checkpoint.tokenizer.id_to_token(number) for number, keep in zip(ids[0], mask, strict=True) if keep]
    return names if len(names) == count else None


class Explainer:
    """Explains the last of several runs, the fusion of the others, with the indexes of `searcher`; `texts` give the tokens of documents."""

    def __init__(self, searcher: Searcher, runs: Mapping[str, Run], fuse: str, texts: Mapping[str, Text] | None = None) -> None:
        self._searcher, self._runs, self._texts = searcher, runs, texts
        self._fuse, self._explained_run = fuse, list(runs)[-1]
        self._experts = [name for name in runs if name != FUSED]
        self._unexplainable: set[str] = set()

    def explain_all(
        self, names: Sequence[str], queries: list[str], encoded: Iterable[tuple[int, Any]], documents: DocumentSelector | None = None
    ) -> Iterator[Explanation]:
        """Explain all hits of all queries, or the `documents` of each; `encoded` comes from `Searcher.encode_batches`."""
        for first, batch in encoded:
            count = len(batch[self._experts[0]])
            for row in range(count):
                query = {expert: select_queries(batch[expert], np.array([row])) for expert in self._experts}
                name, text = names[first + row], queries[first + row]
                hits = self._runs[self._explained_run].hits(name)
                yield from self._explain_documents(name, text, query, documents(name) if documents else [document for document, _ in hits])

    def _explain_documents(self, name: str, text: str, encoded: Mapping[str, Any], documents: Sequence[str]) -> Iterator[Explanation]:
        """Explain documents of one query at any rank, with the query as each engine takes it; an unranked one has the evidence of the
        experts only."""
        if not documents:
            return
        rows = np.array([self._searcher.row_by_id[document] for document in documents], dtype=np.int64)
        parts = self._parts(name, encoded, rows)
        expert_evidence = {expert: self._evidence_or_warning(expert, encoded[expert], text, rows) for expert in self._experts}
        ranks = {
            run_name: {document: (rank, score) for rank, (document, score) in enumerate(run.hits(name), 1)}
            for run_name, run in self._runs.items()
        }
        for row, document in enumerate(documents):
            experts: Explanation = {}
            for expert in self._experts:
                rank, expert_score = ranks[expert].get(document, (None, None))
                part = float(parts[expert][row])
                entry = {"rank": rank, "score": _round_or_none(expert_score), "part": None if np.isnan(part) else part}
                experts[expert] = entry | expert_evidence[expert][row]
            rank, score = ranks[self._explained_run].get(document, (None, None))
            yield {"query": name, "document": document, "rank": rank, "score": _round_or_none(score), "experts": experts}

    def _parts(self, name: str, encoded: Mapping[str, Any], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Part of each expert in the score of each document [n]: float64 numbers that add up to it, in the order of the experts."""
        if self._explained_run != FUSED or is_exact_sum(self._fuse):
            return {expert: self._expert_scores(expert, name, encoded[expert], rows) for expert in self._experts}
        documents, columns = variants.bind_variant("fusion", self._fuse)(self._expert_lists(name), True)
        order = self._searcher.order[rows]
        positions = np.minimum(np.searchsorted(documents, order), max(0, len(documents) - 1))
        present = documents[positions] == order if len(documents) else np.zeros(len(rows), dtype=bool)
        parts = [np.where(present, column[positions], np.nan) if len(column) else np.full(len(rows), np.nan) for column in columns]
        return dict(zip(self._experts, parts, strict=True))

    def _expert_scores(self, expert: str, name: str, query: Any, rows: np.ndarray) -> np.ndarray:
        """Scores from an expert's list; for documents that it lacks, the scores of its engine, NaN where it scores no chosen documents."""
        listed = dict(self._runs[expert].hits(name))
        scores = np.array([listed.get(self._searcher.ids[row], np.nan) for row in rows.tolist()], dtype=np.float64)
        missing = np.isnan(scores)
        with suppress(UsageError):  # `_evidence_or_warning` says so
            scores[missing] = self._searcher.engines[expert].score_pairs(query, np.zeros(int(missing.sum()), dtype=np.int64), rows[missing])
        return scores

    def _expert_lists(self, name: str) -> list[ScoreLists]:
        """The experts' lists of a query; documents are numbers in the order of ids."""
        lists = []
        for expert in self._experts:
            hits = self._runs[expert].hits(name)
            rows = np.array([self._searcher.row_by_id[document] for document, _ in hits], dtype=np.int64)
            scores = np.array([score for _, score in hits], dtype=np.float32)
            lists.append(ScoreLists.from_hits((self._searcher.order[rows], scores), self._runs[expert].list_depth))
        return lists

    def _evidence_or_warning(self, expert: str, query: Any, text: str, rows: np.ndarray) -> list[Evidence]:
        """Evidence of an expert; empty, after one warning, if its engine cannot score chosen documents."""
        if expert not in self._unexplainable:
            try:
                return self._expert_evidence(expert, query, text, rows)
            except UsageError as problem:
                log.warning("%s: ranks and scores only: %s", expert, problem)
                self._unexplainable.add(expert)
        return [{} for _ in rows]

    def _expert_evidence(self, expert: str, query: Any, text: str, rows: np.ndarray) -> list[Evidence]:
        engine, checkpoint = self._searcher.engines[expert], self._searcher.checkpoint
        if checkpoint is None or engine.kind == "text":
            return shared_words(engine, text, rows)
        pieces = partial(token_pieces, checkpoint, expert)

        def token_vectors(row: int) -> tuple[np.ndarray | None, Pieces]:
            """Stored vectors of a document's tokens, and their pieces, None without its text."""
            stored = engine.token_vectors(row)
            document = None if self._texts is None or stored is None else self._texts.get(self._searcher.ids[row])
            return stored, None if document is None or stored is None else pieces(document.content, "document", len(stored))

        documents = ExplainedDocuments(
            len(rows),
            partial(score_each, engine, rows),
            checkpoint.tokenizer.id_to_token,
            partial(pieces, text, "query"),
            map(token_vectors, rows.tolist()),
        )
        evidence: list[Evidence] = query.explain(documents)
        return evidence


def _round_or_none(score: float | None) -> float | None:
    return None if score is None else round_score(score)


def read_wanted_texts(corpus: Path | None, wanted: Container[str]) -> dict[str, Text] | None:
    """The documents of a corpus with these ids, by id; None without a corpus."""
    return None if corpus is None else {text.id: text for text in texts.read_texts(corpus, keep_empty=True) if text.id in wanted}


def explain_runs(
    index: Sequence[Path],
    corpus: Path | None,
    runs: Mapping[str, Run],
    queries: Mapping[str, Text],
    documents_of: DocumentSelector,
    *,
    model: Path | None = None,
) -> Iterator[Explanation]:
    """Explain given runs, recomputed from the index that was searched: for each query the documents that `documents_of` gives.

    `runs` are by expert, with `fused`; `model` is the checkpoint as in `open_index`.
    """
    searcher = open_index(index, model=model)
    expert_runs = _expert_runs(searcher, runs)
    _check_indexed(searcher, expert_runs)
    shown_documents = {name: [document for document in documents_of(name) if document in searcher.row_by_id] for name in queries}
    all_documents = {document for documents in shown_documents.values() for document in documents}
    explainer = Explainer(searcher, expert_runs, searcher.default_fusion, read_wanted_texts(corpus, all_documents))
    contents = [text.content for text in queries.values()]
    encoded = searcher.encode_batches(contents, QUERY_BATCH, LatencyRecorder())
    all_explanations = explainer.explain_all(list(queries), contents, encoded, shown_documents.__getitem__)
    adds_up = FUSED in expert_runs
    with console.meter("explaining", sum(map(len, shown_documents.values()))) as meter:
        for explanation in all_explanations:
            meter.advance()
            if adds_up and not _parts_add_up(explanation):
                message = "its scores are not %s of the experts' runs; parts are left out; search --explain has them"
                log.warning(f"%s: {message}", FUSED, searcher.default_fusion)
                adds_up = False
            if not adds_up:
                explanation["experts"] = {name: expert | {"part": None} for name, expert in explanation["experts"].items()}
            yield explanation


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
    return math.isclose(sum(parts), explanation["score"], rel_tol=TOLERANCE, abs_tol=TOLERANCE)
