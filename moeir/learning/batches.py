"""Which queries meet which documents at which step, a pure function of the step: what a query meets depends on (seed, epoch, query)
alone, and which queries share a batch on (seed, epoch) and their places in the file."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from moeir.errors import DataError, UsageError
from moeir.records.examples import Example


@dataclass(frozen=True)
class Drawn:
    """The texts of one step: queries, and for each its positive and then its negatives; `known` are all positives of each query."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    known: tuple[frozenset[str], ...]

    def ignored(self) -> torch.Tensor:
        """[Q, N] true where a document is a known positive of the query elsewhere in the batch: no negative, and not its own candidate."""
        group = len(self.documents) // len(self.queries)
        rows = [[document in known for document in self.documents] for known in self.known]
        mask = torch.tensor(rows, dtype=torch.bool)
        own = torch.arange(len(self.queries))
        mask[own, own * group] = False
        return mask


@dataclass(frozen=True)
class Plan:
    """Epochs of shuffled examples in batches of `queries`, each with one positive and `negatives` negatives."""

    examples: tuple[Example, ...]
    queries: int
    negatives: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one epoch; the rest of an epoch, less than a batch, is left out of it."""
        return max(1, len(self.examples) // self.queries)

    def at(self, step: int) -> Drawn:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))
        chosen = [self.examples[number] for number in order[place * self.queries : (place + 1) * self.queries]]
        documents: list[str] = []
        for example in chosen:
            documents += self._group(example, epoch)
        return Drawn(tuple(one.query_id for one in chosen), tuple(documents), tuple(frozenset(one.positive_ids) for one in chosen))

    def _group(self, example: Example, epoch: int) -> list[str]:
        """A positive, the next one each epoch, and negatives drawn anew each epoch; with repetition only where there are too few."""
        dice = random.Random(f"{self.seed} {epoch} {example.query_id}")
        first = random.Random(f"{self.seed} {example.query_id}").randrange(len(example.positive_ids))
        positive = example.positive_ids[(first + epoch) % len(example.positive_ids)]
        pool = example.negative_ids
        drawn = dice.sample(pool, self.negatives) if len(pool) >= self.negatives else dice.choices(pool, k=self.negatives)
        return [positive, *drawn]


def planned(examples: Iterable[Example], *, queries: int, negatives: int, seed: int, place: str) -> Plan:
    """A plan over examples that all can be drawn from; DataError for one that has no negatives."""
    if queries < 1 or negatives < 0:
        raise UsageError(f"--batch-size {queries}, --negatives {negatives}: expected at least 1 query and 0 negatives")
    kept = tuple(examples)
    if not kept:
        raise DataError(f"{place}: no training examples")
    if negatives and (bare := next((one for one in kept if not one.negative_ids), None)) is not None:
        raise DataError(f"{place}: query {bare.query_id} has no negatives; mine some, or train with --negatives 0")
    if len(kept) < queries:
        queries = len(kept)
    return Plan(kept, queries, negatives, seed)


def check_texts(plan: Plan, queries: Mapping[str, str], documents: Mapping[str, str], place: str) -> None:
    """DataError if an example names a text that is not there."""
    for example in plan.examples:
        if example.query_id not in queries:
            raise DataError(f"{place}: query {example.query_id} is not among the queries")
        for document in (*example.positive_ids, *example.negative_ids):
            if document not in documents:
                raise DataError(f"{place}: query {example.query_id} names document {document}, which is not in the corpus")
