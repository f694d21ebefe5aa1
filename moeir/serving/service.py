"""Searches for many clients at once: requests wait in a queue, and one thread answers all that wait as a batch.

A list is the one that `moeir search` and `moeir rerank` write: a query is encoded with those of its own request only, as sums of floats
depend on what is computed beside them; the engines, whose scores do not, search the queries of many requests at once.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.artifacts.identity import read_identity, release_held
from moeir.backbones.device import select_device, select_dtype
from moeir.errors import DataError, MoeirError, UsageError
from moeir.fusion import FUSED
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.representations.evidence import round_score
from moeir.reranking.candidates import Candidates, CandidateTexts
from moeir.reranking.scoring import ScoringConfig, score_candidates
from moeir.retrieval.explain import Explainer, read_wanted_texts
from moeir.retrieval.latency import LatencyRecorder, limit_threads
from moeir.retrieval.searcher import QUERIES_PER_BATCH, Searcher, open_index
from moeir.serving.requests import SearchLimits, SearchRequest

RERANKED, WARM_UP = "reranked", "which words of a question that is neither short nor long does a collection of documents have"
POLL_SECONDS = 1.0
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds to an answer, as Prometheus counts them
log = logging.getLogger(__name__)


class Overloaded(MoeirError):
    """More queries wait than the queue takes."""


@dataclass(frozen=True)
class ServedIndex:
    """A searcher, the texts of its documents, and a cross-encoder with its settings, if any; `version` names what was on disk."""

    searcher: Searcher
    texts: Mapping[str, Text] | None
    reranker: tuple[RetrievalModel, ScoringConfig] | None
    version: str

    @property
    def lists(self) -> list[str]:
        """Names of the lists that a search with all experts gives."""
        experts = list(self.searcher.engines)
        return [*experts, *([FUSED] if len(experts) > 1 else []), *([RERANKED] if self.reranker else [])]

    def search(self, requests: Sequence[SearchRequest], limits: SearchLimits) -> list[str | MoeirError]:
        """The answers, as JSON, to requests that agree in what is searched, or the errors of those that cannot be answered."""
        try:
            first, queries = requests[0], [text for request in requests for text in request.query]
            searcher = self.searcher.filter_ids(first.filter_ids, "--filter-ids") if first.filter_ids else self.searcher
            experts, fuse = searcher.select_experts(first.expert), first.fuse or searcher.default_fusion
            encoded = [_encode(searcher, request.query, experts) for request in requests]
            names = list(map(str, range(len(queries))))
            is_exact = len(experts) == 1 and searcher.engines[experts[0]].exact and self.reranker is None
            depth = max(request.k for request in requests) if is_exact else limits.depth
            runs = searcher.search_runs(names, queries, depth, experts, fuse, encoded=[(0, _concatenate(encoded))])
        except MoeirError as problem:
            return [problem] * len(requests)
        start, answers = 0, list[str | MoeirError]()
        for request, batch in zip(requests, encoded, strict=True):
            ids = [f"q{number}" for number in range(1, len(request.query) + 1)]
            own = {name: run.select_queries(start, ids) for name, run in runs.items()}
            start += len(ids)
            try:
                if unknown := next((name for name in request.document if name not in searcher.row_by_id), None):
                    where = "--filter-ids leave" if first.filter_ids else "the index has"
                    raise UsageError(f"--document {unknown}: {where} no such document")
                answers.append(self._answer(request, own, Explainer(searcher, dict(own), fuse, self.texts), batch, limits.rerank_depth))
            except MoeirError as problem:
                answers.append(problem)
        return answers

    def _answer(self, request: SearchRequest, runs: dict[str, Run], explainer: Explainer, encoded: Any, rerank_depth: int) -> str:
        if request.rerank and self.reranker is not None:
            runs[RERANKED] = self._rerank(list(runs.values())[-1], request.query, rerank_depth)
        runs = {name: run.top(request.k) for name, run in runs.items()}
        *_, last = runs.values()
        results: dict[str, dict[str, Any]] = {}
        for name, text in zip(last.queries, request.query, strict=True):
            results[name] = {"query": name, "text": text, "hits": self._list_hits(last, name, request)}
            if request.lists:
                results[name]["lists"] = {own: self._list_hits(run, name, request) for own, run in runs.items()}
        if request.explain:
            wanted = {name: request.document or [hit["document"] for hit in result["hits"]] for name, result in results.items()}
            for one in explainer.explain_all(last.queries, list(request.query), [(0, encoded)], wanted.__getitem__):
                results[one["query"]].setdefault("explanations", []).append(one)
        return json.dumps({"version": self.version, "results": list(results.values())}, ensure_ascii=False) + "\n"

    def _list_hits(self, run: Run, query: str, request: SearchRequest) -> list[dict[str, Any]]:
        hits = []
        for rank, (document, score) in enumerate(run.hits(query), 1):
            text = self.texts.get(document) if self.texts is not None and request.texts else None
            shown = {} if text is None else {"title": text.title, "text": text.text}
            hits.append({"document": document, "rank": rank, "score": round_score(score), **shown})
        return hits

    def _rerank(self, run: Run, queries: Sequence[str], depth: int) -> Run:
        assert self.reranker is not None and self.texts is not None
        candidates, (checkpoint, scoring) = Candidates.from_run(run, depth), self.reranker
        inline = [self.texts[run.document_ids[code]] for code in np.unique(candidates.document).tolist()]
        texts = CandidateTexts(queries, run.document_ids, None, False, "the corpus", inline)
        return candidates.apply_scores(score_candidates(checkpoint, candidates, texts, scoring, lambda count: None)[0], tag=RERANKED)


def _encode(searcher: Searcher, queries: Sequence[str], experts: Sequence[str]) -> dict[str, Any]:
    """Queries as the engines take them, by expert, encoded in the batches of `moeir search`."""
    return _concatenate([batch for _, batch in searcher.encode_batches(list(queries), QUERIES_PER_BATCH, LatencyRecorder(), experts)])


def _concatenate(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = {name: [batch[name] for batch in batches] for name in batches[0]}
    return {name: [*chain(*own)] if isinstance(own[0], list) else type(own[0]).concatenate(own) for name, own in parts.items()}


def open_served_index(
    index: Sequence[Path], corpus: Path | None, rerank: Path | None, collapse: str | None, **options: Any
) -> tuple[ServedIndex, list[Any]]:
    """Open what is served, all from one moment, with the identities of its paths then; `options` are those of `open_index`."""
    paths = [*index, *([] if corpus is None else [corpus])]
    while True:
        identities, reranker = list(map(read_identity, paths)), None
        searcher = open_index(index, **options)
        searcher = searcher if collapse is None else searcher.collapse_passages()
        for engine in searcher.engines.values():
            engine.expect_many_queries()
        searcher.paths = (Path("the index"),)  # in messages, which leave the machine
        texts = read_wanted_texts(corpus, searcher.row_by_id)
        if texts is not None and (missing := len(searcher.ids) - len(texts)) and (rerank is not None or not texts):
            raise DataError(f"{corpus}: has no text of {missing:,} of {len(searcher.ids):,} documents of {index[0]}; name its corpus")
        if rerank is not None:
            device = select_device(options["device"])
            scoring = ScoringConfig(select_dtype(options["dtype"], device, inference=True), device)
            reranker = open_checkpoint(rerank, device), scoring
            reranker[0].pack_for_inference(scoring.dtype)
        release_held(products_only=False)
        if list(map(read_identity, paths)) == identities:
            return ServedIndex(searcher, texts, reranker, hashlib.sha256(repr(identities).encode()).hexdigest()[:12]), identities


class SearchService:
    """Answers requests from the index that a function opens (it is told whether checksums are verified already).

    With `watched` paths it is opened anew when what is there changes; a batch sees one index or the other, never both.
    """

    def __init__(
        self,
        opener: Callable[[bool], tuple[ServedIndex, list[Any]]],
        limits: SearchLimits,
        threads: int | None = None,
        watched: Sequence[Path] = (),
    ) -> None:
        self._open, self.limits, self._threads, self._watched = opener, limits, threads, watched
        self._waiting: list[tuple[SearchRequest, asyncio.Future[str]]] = []
        self.counts = Counter[str]()  # of the metrics, by name with labels
        self.served, self._identities = opener(True)
        for count in (1, min(64, limits.queries)):  # loops are compiled, or loaded, now, not when somebody waits
            self.answer([SearchRequest.parse({"query": [WARM_UP] * count, "k": 1}, limits)])

    @property
    def waiting(self) -> int:
        """Queries that wait."""
        return sum(len(request.query) for request, future in self._waiting if not future.done())

    async def search(self, record: Any) -> str:
        """The answer to a JSON value, as JSON; UsageError or DataError for a wrong request, Overloaded, or TimeoutError."""
        request, waiting = SearchRequest.parse(record, self.limits), self.waiting
        if waiting and waiting + len(request.query) > self.limits.queue:
            raise Overloaded(f"{waiting} queries wait; expected at most {self.limits.queue} (--queue of the server); try again")
        future, started = asyncio.get_running_loop().create_future(), time.perf_counter()
        self._waiting.append((request, future))
        self._wake.set()
        async with asyncio.timeout(self.limits.seconds):
            answer: str = await future
        seconds: Any = time.perf_counter() - started
        self.counts.update(f'moeir_search_seconds_bucket{{le="{most}"}}' for most in (*BUCKETS, "+Inf") if seconds <= float(most))
        self.counts.update(moeir_search_seconds_sum=seconds, moeir_search_seconds_count=1, moeir_queries_total=len(request.query))
        return answer

    def answer(self, requests: Sequence[SearchRequest]) -> list[str | MoeirError]:
        """The answers to a batch of requests, or their errors, all from one index."""
        served, groups, answers = self.served, dict[Any, list[int]](), dict[int, str | MoeirError]()
        for number, request in enumerate(requests):
            groups.setdefault((request.expert, request.fuse, request.filter_ids), []).append(number)
        with limit_threads(self._threads):
            for numbers in groups.values():
                answers |= zip(numbers, served.search([requests[number] for number in numbers], self.limits), strict=True)
        return [answers[number] for number in range(len(requests))]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer what waits, and look at the watched paths, until the block ends."""
        self._wake = asyncio.Event()
        with ThreadPoolExecutor(1, "search") as worker:
            tasks = [asyncio.create_task(work) for work in (self._answer_waiting(worker), self._watch_files())]
            yield
            for task in tasks:
                task.cancel()

    async def _answer_waiting(self, worker: ThreadPoolExecutor) -> None:
        while await self._wake.wait():
            self._wake.clear()
            while batch := self._next_batch():
                requests, answers = [request for request, _ in batch], list[Any]()
                try:
                    answers += await asyncio.get_running_loop().run_in_executor(worker, self.answer, requests)
                except Exception as problem:  # noqa: BLE001 - each of its requests reports it, and the next batch is answered
                    answers += [problem] * len(batch)
                self.counts["moeir_batches_total"] += 1
                for (_, future), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)

    def _next_batch(self) -> list[tuple[SearchRequest, "asyncio.Future[str]"]]:
        """The first requests that somebody still waits for, until they have as many queries as a batch of `moeir search`."""
        waiting, count, end = [entry for entry in self._waiting if not entry[1].done()], 0, 0
        while end < len(waiting) and count < QUERIES_PER_BATCH:
            count, end = count + len(waiting[end][0].query), end + 1
        batch, self._waiting = waiting[:end], waiting[end:]
        return batch

    async def _watch_files(self) -> None:
        while self._watched:
            await asyncio.sleep(POLL_SECONDS)
            identities = await asyncio.to_thread(lambda: list(map(read_identity, self._watched)))
            if identities == self._identities or None in identities:  # between two renames nothing may be there
                continue
            try:
                self.served, self._identities = await asyncio.to_thread(self._open, False)
                log.info("opened what is on disk now, as version %s", self.served.version)
            except (MoeirError, OSError, RuntimeError, MemoryError) as problem:  # two indexes may need more memory than there is
                self._identities = identities  # until it changes again
                log.warning("cannot open what is on disk now; version %s is served on: %s", self.served.version, problem)
