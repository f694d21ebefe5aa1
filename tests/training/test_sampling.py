"""Sampling: the batch of any step, the same each time."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.records import examples
from moeir.records.examples import Example
from moeir.training.sampling import BatchIds, check_training_examples, make_sampler
from moeir.training.token_cache import ShardSpec, shard_texts


def make_examples(count=10, positives=2, negatives=9):
    return [
        Example(f"q{n}", tuple(f"p{n}.{i}" for i in range(positives)), tuple(f"n{n}.{i}" for i in range(negatives))) for n in range(count)
    ]


def make_toy_sampler(all_examples=None, *, queries=4, negatives=3, seed=1):
    return make_sampler(
        make_examples() if all_examples is None else all_examples, batch_size=queries, negatives=negatives, seed=seed, source="train.jsonl"
    )


def documents_by_query(batch):
    """query -> (positive, negatives)."""
    size = len(batch.documents) // len(batch.queries)
    return {query: (batch.documents[n * size], batch.documents[n * size + 1 : (n + 1) * size]) for n, query in enumerate(batch.queries)}


def epoch_documents(sampler, number):
    documents = {}
    for step in range(number * sampler.steps_per_epoch, (number + 1) * sampler.steps_per_epoch):
        documents |= documents_by_query(sampler.batch_at(step))
    return documents


def test_an_epoch_has_whole_batches_of_different_queries():
    sampler = make_toy_sampler()
    assert sampler.steps_per_epoch == 2
    assert len(epoch_documents(sampler, 0)) == 8 and len(epoch_documents(sampler, 1)) == 8  # the last two of ten are dropped
    assert epoch_documents(sampler, 0).keys() != epoch_documents(sampler, 1).keys()
    assert make_toy_sampler(queries=10).steps_per_epoch == 1
    whole_file = make_toy_sampler(queries=99)
    assert whole_file.batch_size == 10 and len(whole_file.batch_at(0).queries) == 10


def test_what_a_query_meets_depends_neither_on_its_place_in_the_file_nor_on_the_batch_size():
    forward, backward = make_toy_sampler(queries=10), make_toy_sampler(make_examples()[::-1], queries=1)
    for number in range(3):
        assert epoch_documents(forward, number) == epoch_documents(backward, number)
    assert [forward.batch_at(step) for step in reversed(range(7))] == [forward.batch_at(step) for step in range(7)][::-1]


def test_a_second_training_goes_on_with_the_queries_that_the_first_has_not_read():
    first, second = make_toy_sampler(make_examples(41)), make_toy_sampler(make_examples(41))
    second.skipped_batches = 6
    assert [second.batch_at(step) for step in range(30)] == [first.batch_at(step) for step in range(6, 36)]
    read, unread = ({query for step in range(count) for query in one.batch_at(step).queries} for one, count in ((first, 6), (second, 4)))
    assert len(read) == 24 and len(unread) == 16 and not read & unread, "ten batches of an epoch"


def test_negatives_change_with_the_epoch_and_the_seed_and_every_one_is_drawn_in_time():
    sampler = make_toy_sampler(queries=10)
    first = epoch_documents(sampler, 0)
    for other in (epoch_documents(sampler, 1), epoch_documents(make_toy_sampler(queries=10, seed=2), 0)):
        assert any(first[query][1] != other[query][1] for query in first)
    counts = Counter(document for number in range(60) for document in epoch_documents(sampler, number)["q3"][1])
    assert len(counts) == 9 and max(counts.values()) < 2.5 * min(counts.values())


def test_positives_rotate_or_the_first_is_that_of_the_first_file_in_every_epoch():
    merged = examples.merge_examples([[Example("q", ("b", "a"), ("n",))], [Example("q", ("c", "a"), ("m",))]], ["1", "2"])
    assert make_sampler(merged, batch_size=1, negatives=0, seed=1, source="both", positives="first").batch_at(3).documents == ("b",)
    rotating = make_toy_sampler(make_examples(positives=3))
    first = make_sampler(rotating.examples, batch_size=4, negatives=3, seed=1, source="t", positives="first")
    turns = []
    for step in range(12):
        batch, other = first.batch_at(step), rotating.batch_at(step)
        assert batch.queries == other.queries and batch.known_positives == other.known_positives
        rotated = documents_by_query(other)
        for query, (positive, negatives) in documents_by_query(batch).items():
            assert positive == f"p{query[1:]}.0" and negatives == rotated[query][1] and len(set(negatives)) == 3
            assert all(one.startswith(f"n{query[1:]}.") for one in negatives)
        turns += [rotated[query][0] for query in rotated if query == "q5"]
    assert set(turns[:3]) == {"p5.0", "p5.1", "p5.2"}, "positives take turns"


def test_too_few_negatives_are_drawn_again_and_none_can_be_asked_for():
    sampler = make_toy_sampler(make_examples(negatives=2), negatives=5)
    for _, negatives in documents_by_query(sampler.batch_at(0)).values():
        assert len(negatives) == 5 and len(set(negatives)) <= 2
    batch = make_toy_sampler(make_examples(negatives=0), negatives=0).batch_at(0)
    assert len(batch.documents) == len(batch.queries)


def test_known_positives_elsewhere_in_the_batch_are_ignored_under_any_id_and_for_equal_queries():
    batch = BatchIds(("a", "b"), ("x", "n", "y", "x"), (frozenset({"x", "y"}), frozenset({"y"})))
    assert batch.false_negative_mask().tolist() == [[False, False, True, True], [False, False, False, False]]
    batch = BatchIds(("a", "b"), ("x", "n", "y", "twin"), (frozenset({"x"}), frozenset({"y"})))
    assert batch.false_negative_mask({"x": 1, "twin": 1}).tolist() == [[False, False, False, True], [False, False, False, False]]
    assert batch.false_negative_mask({}, {"a": 7, "b": 7}).tolist() == [[False, False, True, False], [True, False, False, False]]
    own = BatchIds(("a", "b"), ("x", "a", "y", "a"), (frozenset({"x"}), frozenset({"y"})))
    assert own.false_negative_mask().tolist() == [[False, False, False, True], [False, False, False, False]]


class LengthsOnly:
    """Texts of which only the lengths matter; a packed part is the list of its rows."""

    def __init__(self, lengths):
        self.starts = np.cumsum([0, *lengths])

    def pack(self, rows, side):
        return SimpleNamespace(rows=list(rows), sort_by_length=lambda: SimpleNamespace(rows=list(rows)))


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_texts_are_dealt_by_length_back_and_forth_and_found_again(processes):
    lengths = np.random.default_rng(processes).permutation(np.arange(1, 24)).tolist()
    hands = [[] for _ in range(processes)]
    for number, row in enumerate(sorted(range(23), key=lengths.__getitem__)):
        turn, seat = divmod(number, processes)
        hands[processes - 1 - seat if turn % 2 else seat].append(row)
    shares = [shard_texts(LengthsOnly(lengths), range(23), "document", ShardSpec(rank, processes)) for rank in range(processes)]
    dealt = [row for share in shares for part in share.parts for row in part.rows]
    assert dealt == [row for hand in hands for row in hand]
    for share in shares:
        assert [dealt[number] for number in share.restore_order.tolist()] == list(range(23)) and share.total_tokens == sum(lengths)


def test_no_examples_or_negatives_are_refused():
    with pytest.raises(DataError, match=r"train.jsonl: no training examples"):
        make_toy_sampler([])
    with pytest.raises(DataError, match=r"query q0 has no negatives; mine some, or train with --negatives 0"):
        make_toy_sampler(make_examples(negatives=0))


def test_examples_that_name_absent_texts_are_refused():
    sampler = make_toy_sampler(make_examples(1))
    check_training_examples(sampler, {"q0"}, texts := {"p0.0", "p0.1", *sampler.examples[0].negative_ids}, "train.jsonl", None)
    with pytest.raises(DataError, match=r"train.jsonl: query q0 names document n0.8, which is not in the corpus"):
        check_training_examples(sampler, {"q0"}, texts - {"n0.8"}, "train.jsonl", None)


def test_negatives_that_repeat_and_a_batch_of_all_queries_are_logged(caplog):
    make_toy_sampler(negatives=9, queries=10)
    assert not caplog.text
    make_toy_sampler([*make_examples(3, negatives=4), *make_examples(2)], negatives=5, queries=10)
    assert "train.jsonl: 3 of 5 queries have fewer than --negatives 5, the fewest 4; their negatives repeat within a group" in caplog.text
    assert "train.jsonl: has 5 queries, fewer than --batch-size 10; a batch holds them all" in caplog.text
