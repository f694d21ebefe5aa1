"""Sampling: the queries and documents of each step as a pure function of the step.

The documents of a query depend on (seed, epoch, query) alone, the queries of a batch on (seed, epoch) and their rows in the file, and the
order of several data sets on (seed, epoch).
"""

import logging
import math
import random
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from moeir.errors import DataError, UsageError
from moeir.records.examples import Example

log = logging.getLogger(__name__)
Numbers: TypeAlias = npt.NDArray[Any]
Duplicates: TypeAlias = Mapping[str, Hashable]
NO_TWINS: Duplicates = MappingProxyType({})


@dataclass(frozen=True)
class BatchIds:
    """Ids of the texts of one step: queries, and for each its positive and then its negatives.

    `known_positives` has all positives of each query, `teacher_scores` a teacher's score of each document, if there is a teacher;
    `dataset` is the number of the data set that the ids belong to.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    known_positives: tuple[frozenset[str], ...]
    teacher_scores: tuple[float, ...] | None = None
    dataset: int = 0

    def false_negative_mask(self, documents: Duplicates = NO_TWINS, queries: Duplicates = NO_TWINS) -> torch.Tensor:
        """[Q, N] true where a document of another query is no negative of this query: a known positive of it, or of one with the same
        text, or the document with the query's id. Documents and queries with equal values in `documents` and `queries` have the same text.
        """
        known: dict[Hashable, set[Hashable]] = {}
        for query, positives in zip(self.queries, self.known_positives, strict=True):
            known.setdefault(queries.get(query, query), set()).update(documents.get(name, name) for name in (query, *positives))
        columns = [documents.get(document, document) for document in self.documents]
        known_by_column = [[column in known[queries.get(query, query)] for column in columns] for query in self.queries]
        return torch.tensor(known_by_column, dtype=torch.bool) & self.other_queries_mask()

    def other_queries_mask(self) -> torch.Tensor:
        """[Q, N] true where a document belongs to another query."""
        owners = torch.arange(len(self.documents)) // (len(self.documents) // len(self.queries))
        return owners != torch.arange(len(self.queries))[:, None]

    def teacher_matrix(self) -> torch.Tensor | None:
        """[Q, 1 + n] the teacher's scores of each query's own documents."""
        return None if self.teacher_scores is None else torch.tensor(self.teacher_scores).view(len(self.queries), -1)


@dataclass
class EpochSampler:
    """Epochs of shuffled examples in batches of `batch_size` queries, each with one positive and `negatives` negatives.

    `positives`: `rotate` takes another positive of a query in each epoch, `first` always the first of its list (as DPR does). Step 0 has
    the batch `skipped_batches` of the order.
    """

    examples: tuple[Example, ...]
    batch_size: int
    negatives: int
    seed: int
    positives: str = "rotate"
    skipped_batches: int = 0

    def __post_init__(self) -> None:
        self._order_of_epoch = lru_cache(maxsize=1)(self._shuffle)  # the steps of an epoch come one after another

    @property
    def size(self) -> int:
        """Training examples."""
        return len(self.examples)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch; an incomplete last batch is dropped."""
        return max(1, len(self.examples) // self.batch_size)

    def batch_at(self, step: int) -> BatchIds:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, row = divmod(step + self.skipped_batches, self.steps_per_epoch)
        order = self._order_of_epoch(epoch)[row * self.batch_size : (row + 1) * self.batch_size]
        examples = [self.examples[number] for number in order]
        documents = [document for example in examples for document in self._sample_documents(example, epoch)]
        queries, known = tuple(one.query_id for one in examples), tuple(frozenset(one.positive_ids) for one in examples)
        return BatchIds(queries, tuple(documents), known, self._teacher_scores(examples, documents))

    def _shuffle(self, epoch: int) -> Numbers:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))

    def _teacher_scores(self, examples: list[Example], documents: list[str]) -> tuple[float, ...] | None:
        """The teacher's scores of the sampled documents, if every query of the batch has them."""
        if not all(example.positive_scores for example in examples):
            return None
        scores = [example.teacher_scores for example in examples]
        return tuple(scores[number // (1 + self.negatives)][document] for number, document in enumerate(documents))

    def _sample_documents(self, example: Example, epoch: int) -> list[str]:
        """One positive, and negatives sampled anew each epoch, with replacement only where there are too few."""
        rng = random.Random(f"{self.seed} {epoch} {example.query_id}")
        offset = random.Random(f"{self.seed} {example.query_id}").randrange(len(example.positive_ids)) + epoch
        positive = example.positive_ids[0 if self.positives == "first" else offset % len(example.positive_ids)]
        pool = example.negative_ids
        negatives = rng.sample(pool, self.negatives) if len(pool) >= self.negatives else rng.choices(pool, k=self.negatives)
        return [positive, *negatives]


@dataclass
class MultiDatasetSampler:
    """Interleaved batches of several data sets: each batch is of one set, and an epoch has `rates` times each set's own batches.

    The batches of an epoch are shuffled among the sets (DPR's data sets with sampling rates); within a set they keep its own order across
    epochs, so that a rate of 2 passes over it twice with other negatives, and a rate of 0.5 takes two epochs for one pass.
    """

    samplers: tuple[EpochSampler, ...]
    rates: tuple[float, ...]
    seed: int
    skipped_batches: int = 0

    def __post_init__(self) -> None:
        self._order_of_epoch = lru_cache(maxsize=1)(self._interleave)

    @property
    def size(self) -> int:
        """Examples of all data sets."""
        return sum(plan.size for plan in self.samplers)

    @property
    def batch_size(self) -> int:
        """Queries of the largest batches."""
        return max(plan.batch_size for plan in self.samplers)

    @property
    def batches_per_dataset(self) -> list[int]:
        """Batches of each data set in one epoch, rounded up."""
        return [math.ceil(round(rate * plan.steps_per_epoch, 6)) for plan, rate in zip(self.samplers, self.rates, strict=True)]

    @property
    def steps_per_epoch(self) -> int:
        """Batches of all data sets in one epoch."""
        return sum(self.batches_per_dataset)

    def batch_at(self, step: int) -> BatchIds:
        """The batch of a step, counted from 0 over all epochs."""
        turns = self.batches_per_dataset
        epoch, row = divmod(step + self.skipped_batches, sum(turns))
        order, earlier = self._order_of_epoch(epoch)
        number = int(order[row])
        return replace(self.samplers[number].batch_at(epoch * turns[number] + int(earlier[row])), dataset=number)

    def _interleave(self, epoch: int) -> tuple[Numbers, Numbers]:
        """For each batch of an epoch its data set, and how many batches of that set come before it."""
        turns = self.batches_per_dataset
        owners = np.repeat(np.arange(len(turns)), turns)
        order = owners[np.random.default_rng([self.seed, epoch, len(turns)]).permutation(len(owners))]
        earlier = np.empty_like(order)
        for number, count in enumerate(turns):
            earlier[order == number] = np.arange(count)
        return order, earlier


BatchSampler: TypeAlias = EpochSampler | MultiDatasetSampler


def make_sampler(
    examples: Iterable[Example], *, batch_size: int, negatives: int, seed: int, source: str, positives: str = "rotate"
) -> EpochSampler:
    """A sampler over examples; DataError for an example without negatives. Warns of a batch or of negatives that there are not."""
    all_examples = tuple(examples)
    if not all_examples:
        raise DataError(f"{source}: no training examples")
    if negatives and (no_negatives := next((one for one in all_examples if not one.negative_ids), None)) is not None:
        raise DataError(f"{source}: query {no_negatives.query_id} has no negatives; mine some, or train with --negatives 0")
    if few := [len(one.negative_ids) for one in all_examples if len(one.negative_ids) < negatives]:
        words = "%s: %d of %d queries have fewer than --negatives %d, the fewest %d; their negatives repeat within a group"
        log.warning(words, source, len(few), len(all_examples), negatives, min(few))
    if batch_size > len(all_examples):
        log.warning("%s: has %d queries, fewer than --batch-size %d; a batch holds them all", source, len(all_examples), batch_size)
    return EpochSampler(all_examples, min(batch_size, len(all_examples)), negatives, seed, positives)


def drop_duplicate_negatives(sampler: EpochSampler, duplicates: Duplicates, source: str) -> None:
    """Drop negatives that have the text of a positive of their query, and then queries without a negative; logs how many."""
    examples: list[Example] = []
    dropped = 0
    for example in sampler.examples:
        texts = {duplicates[name] for name in example.positive_ids if name in duplicates}
        if texts and (absent := {name for name in example.negative_ids if duplicates.get(name) in texts}):
            dropped += len(absent)
            negatives = tuple(name for name in example.negative_ids if name not in absent)
            scores = tuple(example.teacher_scores[name] for name in negatives) if example.positive_scores else ()
            example = replace(example, negative_ids=negatives, negative_scores=scores)
        if example.negative_ids or not sampler.negatives:
            examples.append(example)
    if dropped:
        words = "%s: %d negatives have the text of a positive of their query and are left out, with %d queries that have no other"
        log.warning(words, source, dropped, len(sampler.examples) - len(examples))
    if not examples:
        raise DataError(f"{source}: no training examples; each negative has the text of a positive")
    sampler.examples, sampler.batch_size = tuple(examples), min(sampler.batch_size, len(examples))


def check_training_examples(
    sampler: EpochSampler, queries: Container[str], documents: Container[str], source: str, teacher: str | None
) -> None:
    """DataError if an example names a text that is missing, or lacks the scores of its documents, which the objective `teacher` needs."""
    for example in sampler.examples:
        if example.query_id not in queries:
            raise DataError(f"{source}: query {example.query_id} is not among the queries; name their file with --queries")
        for document in (*example.positive_ids, *example.negative_ids):
            if document not in documents:
                names = f"query {example.query_id} names document {document}, which is not in the corpus"
                raise DataError(f"{source}: {names}; name its file with --corpus")
        if teacher is not None and not example.positive_scores:
            message = f"has no positive_scores and negative_scores, which --objective {teacher} learns from: one number a document"
            raise DataError(f"{source}: query {example.query_id} {message}")


def check_batch_size(sampler: EpochSampler, processes: int, *, pairs: bool) -> None:
    """UsageError if a batch has fewer queries, or query-document pairs, than there are processes."""
    texts = sampler.batch_size * (1 + sampler.negatives) if pairs else sampler.batch_size
    if texts < processes:
        reason = f"{texts} {'pairs' if pairs else 'queries'} are too few for {processes} processes, which share each batch"
        raise UsageError(f"--batch-size {sampler.batch_size}: {reason}")
