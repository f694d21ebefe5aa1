"""Packing of sentences into spans, worked by hand; contexts against a list of all possible ones."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeir.kernels.splitmix import text_keys
from moeir.pretraining.spans import CONTEXTS, SpanBoundaries, pack_sentences, split_long_sentences
from tests.oracles import spans as oracle

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=30)


def make_spans(documents, maximum):
    """Spans from lists of lists of sentence lengths: documents -> spans -> sentences."""
    lengths = [length for document in documents for span in document for length in span]
    counts = [len(span) for document in documents for span in document]
    sizes = [len(document) for document in documents]
    return SpanBoundaries(*(np.concatenate([[0], np.cumsum(np.array(part, dtype=np.int64))]) for part in (lengths, counts, sizes)), maximum)


def sample_contexts(parts, kind, span, times=300):
    """Bounds of the contexts of a span under many keys."""
    begins, ends = parts.sample_contexts(kind, np.full(times, span), text_keys(1, 0, 4, np.arange(times)))
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


# One document of ten tokens in four spans, maximum 4: sentences of 2, 1 | 3 | 1, 1, 1 | 1.
WORKED = make_spans([[[2, 1], [3], [1, 1, 1], [1]]], 4)


def test_a_worked_example_of_packing():
    assert split_long_sentences([0, 5, 6], 15, 4) == [0, 4, 5, 6, 10, 14]  # sentences of 5, 1 and 9 tokens
    assert pack_sentences([4, 1, 1, 4, 4, 1], 4, random.Random(1), short=0) == [0, 1, 3, 4, 5]
    assert pack_sentences([2, 2, 1, 1, 1, 4], 4, random.Random(1), short=0) == [0, 2, 5]
    assert pack_sentences([1, 1, 1, 1, 1, 1], 2, random.Random(1), short=1) == [0, 2, 4]  # from 2 to 2: every target is 2


def test_a_worked_example_of_contexts():
    spans = [(0, 3), (3, 6), (6, 9), (9, 10)]
    for number, own in enumerate(spans):
        assert set(sample_contexts(WORKED, "random", number)) == set(spans) - {own}
        assert set(sample_contexts(WORKED, "nearby", number)) == {spans[other] for other in (number - 1, number + 1) if 0 <= other < 4}
    # Span 0: its last sentence (2, 3), then (3, 6) fits: 4 tokens. Span 1: (3, 6), then (6, 7). Span 2: (8, 9) and (9, 10).
    # Span 3, the last: its first sentence (9, 10), and before it (8, 9), (7, 8), (6, 7).
    assert [set(sample_contexts(WORKED, "overlap", number)) for number in range(4)] == [{(2, 6)}, {(3, 7)}, {(8, 10)}, {(6, 10)}]
    assert set(sample_contexts(WORKED, "mixed", 0)) == {*spans[1:], (2, 6)}
    assert make_spans([[[1]], [], [[1], [2]], [[3]]], 4).has_sibling().tolist() == [False, True, True, False]


def test_every_choice_is_as_likely_as_the_others():
    parts = make_spans([[[3]] * 7], 3)
    sampled = [begin // 3 for begin, _ in sample_contexts(parts, "random", 3, 6000)]
    assert all(abs(sampled.count(other) - 1000) < 150 for other in (0, 1, 2, 4, 5, 6))
    # random 1/3, nearby 1/3, overlap (the span itself: no room) 1/3
    sampled = [begin // 3 for begin, _ in sample_contexts(parts, "mixed", 3, 9000)]
    assert abs(sampled.count(3) - 3000) < 250
    assert abs(sampled.count(2) - 2000) < 250
    assert abs(sampled.count(0) - 500) < 150


def test_a_random_context_is_at_most_a_hundred_spans_away():
    parts = make_spans([[[1]] * 5, [[1]] * 400, [[1]] * 5], 1)
    sampled = {begin for begin, _ in sample_contexts(parts, "random", 205, 5000)}
    assert sampled == set(range(105, 306)) - {205}
    assert {begin for begin, _ in sample_contexts(parts, "random", 6, 5000)} == set(range(5, 107)) - {6}


def test_an_overlap_without_room_for_a_sentence_takes_a_part_of_one():
    parts = make_spans([[[2], [4], [4]]], 4)
    assert [set(sample_contexts(parts, "overlap", number)) for number in range(3)] == [{(0, 4)}, {(2, 6)}, {(6, 10)}]


@given(LENGTHS, st.integers(2, 12), st.floats(0, 1), st.integers())
def test_every_sentence_is_in_one_span_and_no_span_is_too_long(lengths, maximum, short, seed):
    begins = [int(begin) for begin in np.cumsum([0, *lengths[:-1]])]
    pieces = split_long_sentences(begins, sum(lengths), maximum)
    assert set(begins) <= set(pieces)
    assert pieces == sorted(set(pieces))
    sizes = np.diff([*pieces, sum(lengths)]).tolist()
    firsts = pack_sentences(sizes, maximum, random.Random(seed), short=short)
    assert firsts[0] == 0
    assert firsts == sorted(set(firsts))
    totals = [sum(sizes[begin:end]) for begin, end in zip(firsts, [*firsts[1:], None], strict=True)]
    assert max(totals) <= maximum
    assert sum(totals) == sum(lengths)
    if short == 0:
        assert all(total + sizes[first] > maximum for total, first in zip(totals, firsts[1:], strict=False))


DOCUMENTS = st.lists(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=2), min_size=2, max_size=5), min_size=1, max_size=4)


@given(DOCUMENTS, st.integers(0, 2**40), st.data())
def test_contexts_are_among_those_that_may_be(documents, seed, data):
    maximum, token, listed = 8, 0, []
    for document in documents:
        spans = []
        for lengths in document:
            spans.append([])
            for length in lengths:
                spans[-1].append((token, token + length))
                token += length
        listed.append(spans)
    parts = make_spans(documents, maximum)
    assert parts.has_sibling().all()
    owner = data.draw(st.integers(0, len(documents) - 1))
    span = data.draw(st.integers(0, len(documents[owner]) - 1))
    first = sum(len(document) for document in documents[:owner])
    assert parts.document_rows(np.array([first + span])).tolist() == [owner]
    whole = [(one[0][0], one[-1][1]) for one in listed[owner]]
    numbers = range(len(whole))
    may = {
        "random": {whole[other] for other in oracle.spans_within(span, numbers)},
        "nearby": {whole[other] for other in oracle.spans_within(span, numbers, 1)},
        "overlap": oracle.overlapping_contexts(span, listed[owner], maximum),
    }
    may["mixed"] = set().union(*may.values())
    for kind in CONTEXTS:
        begins, ends = parts.sample_contexts(kind, np.array([first + span]), text_keys(seed, 0, 4, np.array([first + span])))
        assert (int(begins[0]), int(ends[0])) in may[kind]
        if kind in ("random", "nearby"):
            assert (int(begins[0]), int(ends[0])) != whole[span]
