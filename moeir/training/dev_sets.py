"""Development sets: exact search or reranking during training, with measures of each expert and of the fusion; or the loss on them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeir import variants
from moeir.analysis.competition import measure_gains
from moeir.analysis.training_monitor import LOSS_MEASURE
from moeir.architectures.checkpoint import RetrievalModel
from moeir.artifacts.atomic_write import make_folder
from moeir.backbones.device import autocast
from moeir.backbones.packed_pairs import RaggedIds
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import DataError
from moeir.evaluation import measures
from moeir.fusion import FUSED, formulas
from moeir.records import qrels, runs, texts
from moeir.records.runs import Run, read_run, write_run
from moeir.reranking import scoring
from moeir.reranking.candidates import Candidates
from moeir.training.losses import EncodedBatch, ObjectiveOutput
from moeir.training.resume_state import BestTracker
from moeir.training.sampling import BatchIds

MAX_TOKENS = 4096
QUERIES_AT_ONCE, DOCUMENTS_AT_ONCE = 256, 1024
DEPTH = 100
log = logging.getLogger(__name__)


def rerank_candidates(
    checkpoint: RetrievalModel, dev_set: "DevSet", dtype: torch.dtype, process_group: ProcessGroup = SINGLE_PROCESS
) -> Run:
    """The candidates of a development set reranked by a cross-encoder; each process scores its part, and all get the whole run."""
    run, pairing = dev_set.candidates, checkpoint.pair_tokenizer
    assert run is not None
    pool = Candidates.from_run(run, len(run.documents))
    ids, rows = np.unique(pool.document, return_inverse=True)
    query_ids, document_ids = (
        RaggedIds.from_lists(pairing.token_ids(texts, side)[0])
        for side, texts in (
            ("query", [dev_set.queries[one] for one in run.queries]),
            ("document", [dev_set.documents[run.document_ids[code]] for code in ids.tolist()]),
        )
    )
    own_rows = np.arange(process_group.rank, len(pool), process_group.size)
    pairs = pairing.make_pairs(query_ids, document_ids, pool.query[own_rows], rows[own_rows])
    scores = torch.from_numpy(scoring.score_pairs(checkpoint, pairs, dtype=dtype, max_tokens=MAX_TOKENS)).to(checkpoint.device)
    all_scores = np.empty(len(pool), dtype=np.float32)
    for rank, (part,) in enumerate(process_group.all_gather([scores], "the development set")):
        all_scores[rank :: process_group.size] = part.cpu().numpy()
    return pool.apply_scores(all_scores)


@dataclass(frozen=True)
class DevSet:
    """A development set: queries and documents by id, judgements, a measure, and which weights to keep, `best` or `last`.

    It is evaluated every `every` steps and after the last one; training ends after `patience` evaluations without a better value.
    """

    queries: Mapping[str, str]
    documents: Mapping[str, str]
    qrels: qrels.Qrels
    measure: str
    every: int
    patience: int | None = None
    keep: str = "best"
    candidates: Run | None = None  # the run that a cross-encoder reranks

    @cached_property
    def depth(self) -> int:
        """Hits per query: the cut-off of the measure, at least 100; came-sum fuses lists of this depth."""
        cutoff = None if self.measure == LOSS_MEASURE else measures.parse_measure(self.measure).params.get("cutoff")
        return max(DEPTH, cutoff or 0)

    def positives(self, query: str) -> list[str]:
        """The relevant documents of a query that are loaded, highest grade first, then as judged."""
        grades = self.qrels[query]
        return sorted(
            (document for document in grades if grades[document] > 0 and document in self.documents), key=lambda one: -grades[one]
        )

    def batches(self, batch_size: int) -> Iterator[BatchIds]:
        """Each query with its first positive, in batches whose order is fixed."""
        names = list(self.queries)
        for first in range(0, len(names), batch_size):
            queries = tuple(names[first : first + batch_size])
            known = tuple(frozenset(self.positives(query)) for query in queries)
            yield BatchIds(queries, tuple(self.positives(query)[0] for query in queries), known)


def load_dev_set(
    queries: Path,
    qrels_path: Path,
    corpora: Sequence[Path],
    *,
    training_queries: Mapping[str, str],
    measure: str,
    every: int,
    patience: int | None = None,
    keep: str = "best",
    keep_empty: bool = False,
    run: Path | None = None,
) -> DevSet:
    """Load the judged queries, their judgements and the documents. Warns of queries trained on and of missing relevant documents.

    With a `run`, which a cross-encoder reranks: only its documents, with title and text apart. For the measure `loss`, of retrievers, only
    the relevant documents, and the queries that have one.
    """
    all_qrels = qrels.read_qrels(qrels_path)
    queries_by_id = {text.id: text.content for text in texts.read_texts(queries) if text.id in all_qrels}
    if not queries_by_id:
        raise DataError(f"{queries}: none of its queries is judged in {qrels_path}; do the ids agree?")
    dev_qrels = {query: all_qrels[query] for query in queries_by_id}
    name = measure if measure == LOSS_MEASURE else str(measures.parse_measure(measure))
    dev_set = DevSet(queries_by_id, {}, dev_qrels, name, every, patience, keep)
    relevant = {document for grades in dev_qrels.values() for document, grade in grades.items() if grade > 0}
    corpus_texts = (text for file in corpora for text in texts.read_texts(file, keep_empty=keep_empty))
    if run is not None:
        full_run = runs.read_run(run)
        candidates = Run.from_hits({query: full_run.hits(query) for query in full_run.queries if query in queries_by_id}).top(dev_set.depth)
        if not candidates.queries:
            raise DataError(f"{run}: holds none of the judged development queries; do the ids agree?")
        names = set(candidates.document_ids)
        documents = {text.id: text.joined_fields for text in corpus_texts if text.id in names}
        if missing_ids := sorted(names - documents.keys()):
            raise DataError(f"{corpora[0]}: has no document {missing_ids[0]!r}, which {run} names; do the ids agree?")
        dev_set = replace(dev_set, candidates=candidates)
    else:
        documents = {text.id: text.content for text in corpus_texts if measure != LOSS_MEASURE or text.id in relevant}
    if not relevant & documents.keys():
        raise DataError(f"{run or corpora[0]}: holds no document that {qrels_path} calls relevant; do the ids agree?")
    if missing := len(relevant - documents.keys()):
        source = "corpus" if run is None else "run"
        log.warning("%s: %d of %d relevant documents are missing from the development %s", qrels_path, missing, len(relevant), source)
    if trained_on := sum(training_queries.get(query) == text for query, text in queries_by_id.items()):
        words = "%s: %d of %d queries are trained on, with the same id and text; dev scores will be inflated"
        log.warning(words, queries, trained_on, len(queries_by_id))
    dev_set = replace(dev_set, documents=documents)
    return _drop_incomplete(dev_set, queries) if measure == LOSS_MEASURE else dev_set


def _drop_incomplete(dev_set: DevSet, path: Path) -> DevSet:
    """The development set without queries that have no positive for a loss; DataError if fewer than two positives are left."""
    complete = {query: text for query, text in dev_set.queries.items() if dev_set.positives(query)}
    if len({dev_set.positives(query)[0] for query in complete}) < 2:
        raise DataError(f"{path}: its queries have one positive in --dev-corpus; expected two or more, which are each other's negatives")
    if dropped := len(dev_set.queries) - len(complete):
        log.warning("%s: %d of %d queries lack a positive, and are left out of the loss", path, dropped, len(dev_set.queries))
    return replace(dev_set, queries=complete)


@dataclass(frozen=True)
class DevLoss:
    """The loss of a development set: that of the training's objective at its last step, so that values of different steps compare.

    Each batch has `batch_size` queries; the positives of the others are a query's negatives.
    """

    objective: Callable[[EncodedBatch], ObjectiveOutput]
    batch_size: int
    steps: int


@dataclass(frozen=True)
class CompetitionWatch:
    """What experts gain where they lose, from the evaluation after `first` steps to each one up to step `last`: it says whether to compete
    (`analysis.competition`). `folder` keeps the first runs, for a training that resumes."""

    folder: Path
    first: int
    last: int

    def compare(self, step: int, runs: Mapping[str, Run], dev_set: DevSet) -> dict[str, float]:
        """The metrics of an evaluation after `step` steps; none of the first, once the experts compete, and if no expert loses a query."""
        paths = {name: self.folder / f"dev-{name}.trec" for name in runs if name != FUSED}
        if not self.first <= step <= self.last or len(paths) < 2:
            return {}
        if step == self.first:
            make_folder(self.folder)
            for name, path in paths.items():
                write_run(runs[name], path)
            return {}
        first = {name: read_run(path) for name, path in paths.items()}
        return measure_gains(first, {name: runs[name] for name in first}, dev_set.qrels, dev_set.measure)


@dataclass
class DevEvaluator:
    """Evaluates a checkpoint on a development set while it is trained: the trainer's `Evaluator`. `loss` is for the measure `loss`."""

    checkpoint: RetrievalModel
    dev_set: DevSet
    dtype: torch.dtype
    process_group: ProcessGroup = SINGLE_PROCESS
    loss: DevLoss | None = None
    competition: CompetitionWatch | None = None

    def __post_init__(self) -> None:
        self.every, self.patience, self.keeps_best = self.dev_set.every, self.dev_set.patience, self.dev_set.keep == "best"

    def evaluate(self, step: int, best: BestTracker) -> dict[str, float]:
        """Metrics of the weights after `step` steps; `best` records the measure."""
        gains: dict[str, float] = {}
        if self.loss is None:
            metrics, runs = evaluate(self.checkpoint, self.dev_set, self.dtype, self.process_group)
            if self.competition is not None and self.process_group.is_main:
                gains = self.competition.compare(step, runs, self.dev_set)
        else:
            metrics = evaluate_loss(self.checkpoint, self.dev_set, self.loss, self.dtype, self.process_group)
        measure = self.dev_set.measure
        value, *_ = metrics.values()
        best.update(step, value, lower_is_better=self.loss is not None)
        values = ", ".join(f"{name.removeprefix('dev.').removesuffix(f'.{measure}')} {value:.4f}" for name, value in metrics.items())
        log.info("step %d: development %s: %s; best %.4f after step %d", step, measure, values, best.value, best.step)
        return metrics | gains

    def manifest_entry(self) -> dict[str, Any]:
        """The development set, as manifest and model card describe it."""
        dev_set = self.dev_set
        counts = {"queries": len(dev_set.queries), "documents": len(dev_set.documents)}
        return {"measure": dev_set.measure, **counts, "kept": dev_set.keep}


def evaluate(
    checkpoint: RetrievalModel, dev_set: DevSet, dtype: torch.dtype, process_group: ProcessGroup = SINGLE_PROCESS
) -> tuple[dict[str, float], dict[str, Run]]:
    """The measure of the fused run, then of each expert's, as `dev.fused.nDCG@10`; and the runs."""
    runs, measure = search_exact(checkpoint, dev_set, dtype, process_group), measures.parse_measure(dev_set.measure)
    values = {}
    for name in sorted(runs, key=lambda name: name != FUSED):
        by_query = measures.evaluate_run(runs[name], dev_set.qrels, [measure])
        values[f"dev.{name}.{dev_set.measure}"] = measures.aggregate_values(by_query)[str(measure)]
    return values, runs


@torch.no_grad()
def evaluate_loss(
    checkpoint: RetrievalModel, dev_set: DevSet, loss: DevLoss, dtype: torch.dtype, process_group: ProcessGroup = SINGLE_PROCESS
) -> dict[str, float]:
    """Mean over queries of the objective's loss without dropout, as `dev.loss`, then of each expert's, as `dev.lexical.loss`.

    Sokli et al. 2025 keep the weights with the lowest validation loss. Processes share the batches.
    """
    checkpoint = replace(checkpoint, calibration=dict.fromkeys(checkpoint.architecture.representation_kinds, 1.0))  # as in training
    batches = list(dev_set.batches(loss.batch_size))
    process_group = process_group if len(batches) >= process_group.size else SINGLE_PROCESS
    own_batches = batches[process_group.rank :: process_group.size]
    rows = []
    for ids in own_batches:
        with autocast(dtype, str(checkpoint.device)):
            queries = checkpoint.encode([dev_set.queries[name] for name in ids.queries], "query")
            documents = checkpoint.encode([dev_set.documents[name] for name in ids.documents], "document")
        ignored = ids.false_negative_mask(dev_set.documents, dev_set.queries).to(checkpoint.device)
        metrics = loss.objective(EncodedBatch(queries, documents, ignored, loss.steps - 1, loss.steps)).metrics
        names = ["loss", *(name for name in metrics if name.startswith("loss."))]
        rows.append([float(metrics[name]) * len(ids.queries) for name in names])
    sums = torch.tensor(rows, dtype=torch.float64, device=checkpoint.device).sum(0)
    parts_by_rank = process_group.all_gather([sums], "the development set")
    means = torch.stack([part for (part,) in parts_by_rank]).sum(0) / len(dev_set.queries)
    values = dict(zip(names, means.tolist(), strict=True))
    experts = [name for name in names[1:] if len(names) > 2]
    return {"dev.loss": values["loss"]} | {f"dev.{name.removeprefix('loss.')}.loss": values[name] for name in experts}


@torch.no_grad()
def search_exact(
    checkpoint: RetrievalModel, dev_set: DevSet, dtype: torch.dtype, process_group: ProcessGroup = SINGLE_PROCESS
) -> dict[str, Run]:
    """Exact search of all queries in all documents: a run for each expert and the fused one; for a single expert only `fused`.

    Each process encodes its part of the documents, and all get all runs. The results are those of `moeir search --depth` but for rounding:
    documents stay float32 here, and are float16 in an index.
    """
    architecture = checkpoint.architecture
    if dev_set.candidates is not None:
        return {FUSED: rerank_candidates(checkpoint, dev_set, dtype, process_group)}
    process_group = process_group if len(dev_set.documents) >= process_group.size else SINGLE_PROCESS
    ids = sorted(dev_set.documents, reverse=True)  # of equal scores the last id comes first, as in every run
    with autocast(dtype, str(checkpoint.device)):
        queries = checkpoint.encode(list(dev_set.queries.values()), "query")
    blocks = [queries.select(rows) for rows in torch.arange(queries.text_count, device=checkpoint.device).split(QUERIES_AT_ONCE)]
    is_summed = len(architecture.representation_kinds) > 1 and architecture.default_fusion == "exact-sum"
    best: dict[str, tuple[Tensor, Tensor]] = {}  # scores and rows [Q, K] of each expert
    end = len(ids) * (process_group.rank + 1) // process_group.size
    for first in range(len(ids) * process_group.rank // process_group.size, end, DOCUMENTS_AT_ONCE):
        names = ids[first : min(end, first + DOCUMENTS_AT_ONCE)]
        with autocast(dtype, str(checkpoint.device)):
            documents = checkpoint.encode([dev_set.documents[name] for name in names], "document")
        scores = {name: torch.cat([block[name].scores(documents[name]) for block in blocks]) for name in queries.representations}
        if is_summed:  # the architecture's fusion adds all scores before the cut to `depth`
            scores[FUSED] = torch.stack(list(scores.values())).sum(0)
        for name, part in scores.items():
            rows = torch.arange(first, first + len(names), device=part.device).expand_as(part)
            best[name] = _merge_top([*([best[name]] if name in best else []), (part, rows)], dev_set.depth)
    gathered = process_group.all_gather([tensor for pair in best.values() for tensor in pair], "the development set")
    runs = {}
    for number, name in enumerate(best):
        pairs = [(tensors[2 * number], tensors[2 * number + 1]) for tensors in gathered]
        positive_only = name in queries.representations and queries[name].positive_scores_only
        runs[name] = _to_run(name, *_merge_top(pairs, dev_set.depth), dev_set, ids, positive_only=positive_only)
    if len(runs) == 1:
        return {FUSED: next(iter(runs.values()))}
    if not is_summed:
        runs[FUSED] = formulas.fuse_runs(list(runs.values()), variants.bind_variant("fusion", architecture.default_fusion), dev_set.depth)
    return runs


def _merge_top(parts: list[tuple[Tensor, Tensor]], depth: int) -> tuple[Tensor, Tensor]:
    """The best `depth` of several lists of scores and rows [Q, n], whose rows ascend from list to list; ties go to the earlier row."""
    scores, rows = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :depth]
    return scores.gather(1, order), rows.gather(1, order)


def _to_run(name: str, best: Tensor, rows: Tensor, dev_set: DevSet, ids: list[str], *, positive_only: bool) -> Run:
    """A run from the best scores and rows [Q, K]; `positive_only` drops hits that share no term with the query."""
    scores = best.cpu().numpy()
    query, position = np.nonzero((scores > 0) if positive_only else np.ones_like(scores, dtype=bool))
    codes = len(ids) - 1 - rows.cpu().numpy()[query, position]
    return Run.from_columns(list(dev_set.queries), query, ids[::-1], codes, scores[query, position], tag=name, depth=dev_set.depth)
