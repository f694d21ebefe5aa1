"""Features of documents and queries for learned fusion, computed from the experts' ranked lists.

They need only the lists (and the query's words, where available), so they exist at fusion time too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from moeir.fusion import score_lists
from moeir.fusion.score_lists import Float64s, RankedLists, ScoreLists

RRF_CONSTANT = 60.0
OVERLAP_DEPTHS = (10, 100)  # where the overlap of two lists is measured
RBO_PERSISTENCE = 0.9
HIT_FEATURES = ("score from 0 to 1", "61 / (60 + rank)", "1 / rank", "held")
ALL_LISTS_FEATURES = ("lowest score from 0 to 1", "highest score from 0 to 1", "held by all")
LIST_FEATURES = ("best score", "to the second", "to the tenth", "to the last", "entropy")
PAIR_FEATURES = (*(f"in common at {depth}" for depth in OVERLAP_DEPTHS), "rank-biased overlap")
WORD_FEATURES = ("words", "letters a word", "mean rarity", "greatest rarity")
_WORD_PATTERN = re.compile(r"\w+")
_MIN_QUERIES = 3  # a word in fewer queries is dropped


@dataclass(frozen=True, eq=False)
class FusionFeatures:
    """Features of the n documents in the union of E lists, for Q queries.

    documents [n], ascending; query_rows [n]: row of each document's query; scores [E, n], a missing document as in came-sum;
    document_features [F, n]: HIT_FEATURES for each list, then ALL_LISTS_FEATURES; query_features [Q, Z]: LIST_FEATURES for each list,
    PAIR_FEATURES for each pair, WORD_FEATURES; best_rank [n]: best rank in any list.
    """

    documents: NDArray[np.int64]
    query_rows: NDArray[np.int64]
    scores: Float64s
    document_features: Float64s
    query_features: Float64s
    best_rank: NDArray[np.int64]


class WordCounts:
    """Query frequencies of words in the training queries: features of a query's length and word rarity."""

    def __init__(self, counts: Mapping[str, int], queries: int) -> None:
        self.counts, self.queries = dict(counts), queries

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> "WordCounts":
        """Count the queries that contain each word; rare words are left out.

        >>> WordCounts.from_texts(["the owl", "the cat", "the owl"]).counts
        {'the': 3}
        """
        bags = [set(_split_words(text)) for text in texts]
        counts = Counter(word for bag in bags for word in bag)
        return cls({word: count for word, count in sorted(counts.items()) if count >= _MIN_QUERIES}, len(bags))

    def query_features(self, text: str) -> list[float]:
        """WORD_FEATURES of one query; the rarity of a word is log((N + 1) / (n + 1)).

        >>> [round(value, 3) for value in WordCounts({"the": 3}, 3).query_features("The owl!")]
        [2.0, 3.0, 0.693, 1.386]
        """
        words = _split_words(text)
        if not words:
            return [0.0] * len(WORD_FEATURES)
        rarity = np.log((self.queries + 1) / (np.array([self.counts.get(word, 0) for word in words]) + 1))
        return [float(len(words)), sum(map(len, words)) / len(words), float(rarity.mean()), float(rarity.max())]


def compute_features(lists: RankedLists, words: WordCounts | None = None, texts: Mapping[str, str] | None = None) -> FusionFeatures:
    """Features of the lists of one query or of many; `texts` maps query ids to their text, for `words`.

    >>> lexical = (np.array([4, 7]), np.array([9.0, 5.0]))
    >>> features = compute_features([lexical, (np.array([7, 2]), np.array([0.5, 0.25]))])
    >>> features.scores.tolist()
    [[5.0, 9.0, 5.0], [0.25, 0.25, 0.5]]
    >>> features.query_features[0, :4].tolist()
    [9.0, 4.0, 4.0, 4.0]
    """
    stacks = [ScoreLists.from_hits(one) for one in lists]
    documents, scores = score_lists.align(stacks, score_lists.raw_scores, ScoreLists.missing_scores)
    ranks = score_lists.align(stacks, lambda one: one.ranks.astype(np.float64), score_lists.zero_for_missing)[1]
    normalised = score_lists.align(stacks, score_lists.minmax, score_lists.zero_for_missing)[1]
    query_rows = documents // stacks[0].width
    is_ranked = ranks > 0
    rrf_scores = np.where(is_ranked, (1 + RRF_CONSTANT) / (RRF_CONSTANT + ranks), 0.0)
    per_list = [normalised, rrf_scores, np.where(is_ranked, 1 / np.maximum(ranks, 1), 0.0), is_ranked]
    document_features = np.stack(per_list, axis=1).reshape(len(stacks) * len(HIT_FEATURES), -1).astype(np.float64)  # list by list
    overall = np.stack([normalised.min(axis=0), normalised.max(axis=0), is_ranked.all(axis=0)])
    query_count = len(stacks[0].sizes)
    query_features = [_list_features(one) for one in stacks]
    query_features += [_pair_features(first, second, query_rows, query_count) for first, second in combinations(ranks, 2)]
    if words is not None and texts is not None:
        queries = stacks[0].queries or [""] * query_count
        word_features = np.array([words.query_features(texts.get(query, "")) for query in queries])
        query_features.append(word_features.reshape(query_count, len(WORD_FEATURES)))
    best_rank = np.where(is_ranked, ranks, np.inf).min(axis=0).astype(np.int64) if len(documents) else np.empty(0, np.int64)
    all_features = np.concatenate([document_features, overall]), np.concatenate(query_features, axis=1)
    return FusionFeatures(documents, query_rows, scores, *all_features, best_rank)


def count_features(lists: int, words: bool) -> tuple[int, int]:
    """Number of rows of `document_features` and of columns of `query_features` for so many lists."""
    of_queries = lists * len(LIST_FEATURES) + comb(lists, 2) * len(PAIR_FEATURES) + words * len(WORD_FEATURES)
    return lists * len(HIT_FEATURES) + len(ALL_LISTS_FEATURES), of_queries


def _list_features(one: ScoreLists) -> Float64s:
    """LIST_FEATURES of every query [Q, 5]; 0 for an empty list."""
    first, full = one.first_scores(), one.sizes > 0

    def below(rank: int) -> Float64s:
        scores = np.zeros(len(first))
        scores[full] = one.scores[(one.starts[:-1] + np.minimum(one.sizes, rank) - 1)[full]]
        return first - scores

    return np.stack([first, below(2), below(10), first - one.last_scores(), _score_entropy(one.top(OVERLAP_DEPTHS[-1]))], axis=1)


def _score_entropy(one: ScoreLists) -> Float64s:
    """Normalised entropy [Q] of a list's scores above its last: 0 if one document has it all, 1 if they are equal."""
    normalised = score_lists.minmax(one)
    share = normalised / np.maximum(one.repeat_per_hit(one.sum_per_list(normalised)), 1e-12)
    part = one.sum_per_list(-share * np.log(np.maximum(share, 1e-12)))
    bounded: Float64s = part / np.log(np.maximum(one.sizes, 2))
    return bounded


def _pair_features(first: Float64s, second: Float64s, query_rows: NDArray[np.int64], count: int) -> Float64s:
    """PAIR_FEATURES of every query [Q, 3] from the ranks in two lists, 0 where a list lacks the document.

    Rank-biased overlap (Webber, Moffat and Zobel 2010) is summed down to the last of OVERLAP_DEPTHS, not extrapolated: a common document
    counts 1 / depth at each depth from the deeper of its two ranks on.
    """
    both = (first > 0) & (second > 0)
    deeper = np.maximum(first, second)[both].astype(np.int64)
    shared = query_rows[both]
    depths = np.arange(1, OVERLAP_DEPTHS[-1] + 1)
    overlap = np.append(np.cumsum(rbo_terms(RBO_PERSISTENCE, len(depths))[::-1])[::-1], 0.0)  # of a document whose deeper rank is 1, 2, …
    rbo = np.bincount(shared, overlap[np.minimum(deeper, len(depths) + 1) - 1], minlength=count)
    return np.stack([*(np.bincount(shared[deeper <= depth], minlength=count) / depth for depth in OVERLAP_DEPTHS), rbo], axis=1)


def rbo_terms(persistence: float, depth: int) -> Float64s:
    """What one common document contributes to rank-biased overlap at the depths from 1 to `depth` (Webber, Moffat and Zobel 2010)."""
    depths = np.arange(1, depth + 1)
    terms: Float64s = (1 - persistence) * persistence ** (depths - 1) / depths
    return terms


def _split_words(text: str) -> list[str]:
    return _WORD_PATTERN.findall(text.lower())
