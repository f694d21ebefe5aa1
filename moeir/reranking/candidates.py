"""Candidates of reranking: the top documents of a run as pairs with their queries, their texts and tokens, and their new scores."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from moeir import variants
from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.packed_pairs import PackedPairs, RaggedIds
from moeir.errors import DataError, UsageError
from moeir.records import texts
from moeir.records.examples import Example
from moeir.records.runs import Integers, Run, Scores
from moeir.records.texts import Text

TEXTS_PER_BATCH = 1024


@dataclass(frozen=True)
class Candidates:
    """The top `depth` documents of every query of a run: pair n is query number query[n] and document code document[n]."""

    run: Run
    depth: int
    query: Integers
    document: Integers

    @classmethod
    def from_run(cls, run: Run, depth: int) -> "Candidates":
        """Pairs query by query, in the order of ranks."""
        top = run.top(depth)
        return cls(run, depth, np.repeat(np.arange(len(top)), np.diff(top.starts)), top.documents.astype(np.int64))

    def __len__(self) -> int:
        return len(self.query)

    def apply_scores(self, scores: npt.ArrayLike, *, rest: bool = True, tag: str = "moeir") -> Run:
        """The run with these scores [n]; documents below the depth follow in their old order, or are dropped without `rest`.

        Each of them scores one step less than the one before it, starting from the lowest new score of its query.
        """
        run, new = self.run, np.asarray(scores, dtype=np.float32)
        if not rest:
            return Run.from_columns(run.queries, self.query, run.document_ids, self.document, new, tag)
        sizes = np.diff(run.starts)
        owners = np.repeat(np.arange(len(run)), sizes)
        ranks = np.arange(len(owners)) - np.repeat(run.starts[:-1], sizes)
        below = ranks >= self.depth
        lowest = np.full(len(run), np.inf)
        np.minimum.at(lowest, self.query, new)
        base = lowest[owners[below]]
        reach = (np.abs(base) + sizes[owners[below]]).astype(np.float32)
        steps = np.maximum(1.0, 4.0 * np.spacing(reach).astype(np.float64))  # what float32 can distinguish
        final = np.empty(len(owners))
        final[~below] = new
        final[below] = base - (ranks[below] - self.depth + 1) * steps
        return Run.from_columns(run.queries, owners, run.document_ids, run.documents, final.astype(np.float32), tag)


def convert_examples(examples: Iterable[Example]) -> Run:
    """The documents of each example as a list, positives first."""
    lists = ((example.query_id, (*example.positive_ids, *example.negative_ids)) for example in examples)
    return Run.from_hits({query: {name: -float(rank) for rank, name in enumerate(names)} for query, names in lists})


def add_scores(examples: Iterable[Example], run: Run) -> Iterator[Example]:
    """The examples whose query a run has, with its scores as those of a teacher."""
    present = set(run.queries)
    for example in examples:
        if example.query_id in present:
            scores = dict(run.hits(example.query_id))
            positives, negatives = (tuple(scores[name] for name in ids) for ids in (example.positive_ids, example.negative_ids))
            yield replace(example, positive_scores=positives, negative_scores=negatives)


def select_shard(run: Run, number: int, count: int) -> Run:
    """Queries of shard `number` of `count`, counted from 0: consecutive queries of the run."""
    first, last = (index * len(run) // count for index in (number, number + 1))
    return run.select_queries(first, run.queries[first:last])


def combine_scores(candidates: Candidates, scores: Sequence[Scores], ensemble: str) -> Scores:
    """Combine the scores of several rerankers query by query: M scores [n] -> [n]. Scores of a single reranker are unchanged."""
    if len(scores) == 1:
        return scores[0]
    merge, combined_scores = variants.bind_variant("reranking.ensembles", ensemble), np.empty(len(candidates), dtype=np.float32)
    stacked = np.stack(scores).astype(np.float64)
    ends = np.searchsorted(candidates.query, np.arange(len(candidates.run) + 1))
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        if last > first:
            combined_scores[first:last] = merge(stacked[:, first:last])
    return combined_scores


@dataclass(frozen=True)
class CandidateTexts:
    """Query texts of a run in its order, and the path of its documents, or those within examples; `document_ids` are their ids, by code."""

    queries: Sequence[str]
    document_ids: Sequence[str]
    corpus: Path | None
    keep_empty: bool
    label: str
    inline: Sequence[Text]

    @classmethod
    def from_run(
        cls,
        run: Run,
        queries: Path | None,
        corpus: Path | None,
        *,
        keep_empty: bool = False,
        label: str = "the run",
        examples: Sequence[Example] = (),
    ) -> "CandidateTexts":
        """Read the query texts of a run, which may be within `examples`; DataError if one is missing."""
        by_id = {example.query_id: example.query.content for example in examples if example.query is not None}
        by_id |= {} if queries is None else {text.id: text.content for text in texts.read_texts(queries)}
        for query in run.queries:
            if query not in by_id:
                if queries is None:
                    raise UsageError(f"{label}: names query {query!r} by id; name the file that has it with --queries")
                raise DataError(f"{queries}: has no query {query!r}, which {label} holds; do the ids agree?")
        inline: dict[str, Text] = {}
        for passage in chain.from_iterable(example.passages for example in examples):
            if inline.setdefault(passage.id, passage).joined_fields != passage.joined_fields:
                raise DataError(f"{label}: passage {passage.id!r} has two texts; different texts need other ids")
        return cls([by_id[query] for query in run.queries], run.document_ids, corpus, keep_empty, label, tuple(inline.values()))

    def iterate_documents(self, codes: Integers, *, join_fields: bool) -> Iterator[tuple[int, str]]:
        """Codes and texts of documents in the order of the corpus; DataError if one is missing."""
        wanted = {self.document_ids[code]: code for code in np.unique(codes).tolist()}
        corpus = texts.read_texts(self.corpus, keep_empty=self.keep_empty) if wanted and self.corpus is not None else ()
        for text in chain(corpus, self.inline):
            code = wanted.pop(text.id, None)
            if code is not None:
                yield code, text.joined_fields if join_fields else text.content
            if not wanted:
                return
        if wanted:
            more = f" ({len(wanted)} such documents)" if len(wanted) > 1 else ""
            if self.corpus is None:
                raise UsageError(f"{self.label}: names document {min(wanted)!r} by id{more}; name the file that has it with --corpus")
            raise DataError(f"{self.corpus}: has no document {min(wanted)!r}, which is to be reranked{more}; do the ids agree?")

    def make_pairs(self, checkpoint: RetrievalModel, query: Integers, document: Integers) -> PackedPairs:
        """Queries by number and documents by code [n], as pairs of tokens for a cross-encoder; each text is tokenized once."""
        kind, rows = checkpoint.tokenizer.id_dtype, np.full(len(self.document_ids), -1, dtype=np.int64)
        sizes, parts = [0], [np.empty(0, dtype=kind)]
        queries = RaggedIds.from_lists(checkpoint.token_ids(self.queries, "query")[0])
        documents_of_corpus = self.iterate_documents(document, join_fields=True)
        while window := list(islice(documents_of_corpus, TEXTS_PER_BATCH)):
            rows[[code for code, _ in window]] = np.arange(len(sizes) - 1, len(sizes) - 1 + len(window))
            ids = checkpoint.token_ids([text for _, text in window], "document")[0]
            sizes += [len(text) for text in ids]
            parts.append(np.fromiter((number for text in ids for number in text), kind))
        documents = RaggedIds(np.concatenate(parts), np.cumsum(sizes))
        return checkpoint.pair_tokenizer.make_pairs(queries, documents, query, rows[document])
