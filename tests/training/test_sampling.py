"""Sampling: the batch of any step, the same each time; of several data sets in turns, with the texts of each."""

from collections import Counter

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.records import examples
from moeir.records.examples import Example
from moeir.records.texts import Text
from moeir.training.sampling import BatchIds, MultiDatasetSampler, make_sampler
from moeir.training.text_stream import RowIndex, TextStream
from moeir.training.token_cache import ShardSpec, TokenCache, shard_texts


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
    assert sampler.batch_at(0).queries != make_toy_sampler(seed=2).batch_at(0).queries
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


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_texts_are_dealt_by_length_back_and_forth_and_found_again(processes):
    lengths = np.random.default_rng(processes).permutation(np.arange(1, 24)).tolist()
    hands = [[] for _ in range(processes)]
    for number, row in enumerate(sorted(range(23), key=lengths.__getitem__)):
        turn, seat = divmod(number, processes)
        hands[processes - 1 - seat if turn % 2 else seat].append(row)
    cache = TokenCache(np.repeat(np.arange(23), lengths), np.cumsum([0, *lengths]), np.zeros(23, np.int64))  # of tokens that are its row
    shares = [shard_texts(cache, range(23), "document", ShardSpec(rank, processes)) for rank in range(processes)]
    dealt = [row for share in shares for part in share.parts for row in part.ids[part.starts[:-1]].tolist()]
    assert dealt == [row for hand in hands for row in hand]
    for share in shares:
        assert [dealt[number] for number in share.restore_order.tolist()] == list(range(23)) and share.total_tokens == sum(lengths)


def test_no_examples_or_negatives_are_refused():
    with pytest.raises(DataError, match=r"train.jsonl: no training examples"):
        make_toy_sampler([])
    with pytest.raises(DataError, match=r"query q0 has no negatives; mine some, or train with --negatives 0"):
        make_toy_sampler(make_examples(negatives=0))


def test_negatives_that_repeat_and_a_batch_of_all_queries_are_logged(caplog):
    make_toy_sampler(negatives=9, queries=10)
    assert not caplog.text
    make_toy_sampler([*make_examples(3, negatives=4), *make_examples(2)], negatives=5, queries=10)
    assert "train.jsonl: 3 of 5 queries have fewer than --negatives 5, the fewest 4; their negatives repeat within a group" in caplog.text
    assert "train.jsonl: has 5 queries, fewer than --batch-size 10; a batch holds them all" in caplog.text


def make_set(name, count):
    examples = [Example(f"{name}{n}", (f"{name}p{n}",), tuple(f"{name}n{n}.{i}" for i in range(6))) for n in range(count)]
    return make_toy_sampler(examples, queries=2, negatives=2, seed=3)


def make_multi_sampler(rates, sizes=(8, 4, 6)):
    return MultiDatasetSampler(tuple(make_set(name, size) for name, size in zip("abc", sizes, strict=False)), rates, 3)


def epoch_batches(sampler, number):
    return [sampler.batch_at(step) for step in range(number * sampler.steps_per_epoch, (number + 1) * sampler.steps_per_epoch)]


def test_every_batch_is_of_one_set_and_an_epoch_walks_each_as_often_as_its_rate_says():
    sampler = make_multi_sampler((1.0, 2.0, 0.5))
    assert sampler.batches_per_dataset == [4, 4, 2] and sampler.steps_per_epoch == 10 and sampler.size == 18
    for number in range(3):
        batches = epoch_batches(sampler, number)
        assert Counter(one.dataset for one in batches) == {0: 4, 1: 4, 2: 2}
        assert all({query[0] for query in one.queries} == {"abc"[one.dataset]} for one in batches)
        counts = Counter(query for one in batches for query in one.queries)
        assert {query: count for query, count in counts.items() if query[0] == "a"} == {f"a{n}": 1 for n in range(8)}
        assert {query: count for query, count in counts.items() if query[0] == "b"} == {f"b{n}": 2 for n in range(4)}


def test_a_set_walked_twice_meets_other_negatives_and_half_a_set_waits_for_the_next_epoch():
    sampler = make_multi_sampler((1.0, 2.0, 0.5))
    second = [one for one in epoch_batches(sampler, 0) if one.dataset == 1]
    first_walk, second_walk = (
        {query: one.documents[3 * n : 3 * n + 3] for one in part for n, query in enumerate(one.queries)}
        for part in (second[:2], second[2:])
    )
    assert first_walk.keys() == second_walk.keys() and first_walk != second_walk
    halves = [[query for one in epoch_batches(sampler, number) if one.dataset == 2 for query in one.queries] for number in (0, 1)]
    assert len(halves[0]) == len(halves[1]) == 4
    order = [query for step in range(4) for query in make_set("c", 6).batch_at(step).queries]
    assert halves[0] + halves[1] == order


def test_within_a_set_batches_are_those_it_has_alone_in_turns_that_the_epoch_and_the_seed_decide():
    sampler, alone = make_multi_sampler((1.0, 1.0, 1.0)), make_set("b", 4)
    batches = [one for number in range(3) for one in epoch_batches(sampler, number) if one.dataset == 1]
    expected = [alone.batch_at(step) for step in range(6)]
    assert [(one.queries, one.documents) for one in batches] == [(one.queries, one.documents) for one in expected]
    turns = [[one.dataset for one in epoch_batches(sampler, number)] for number in (0, 1)]
    assert turns[0] != turns[1] and turns[0] != sorted(turns[0])
    assert [one.dataset for one in epoch_batches(MultiDatasetSampler(sampler.samplers, sampler.rates, 4), 0)] != turns[0]
    assert [sampler.batch_at(step) for step in reversed(range(14))] == [sampler.batch_at(step) for step in range(14)][::-1]


def test_a_rate_that_is_no_exact_number_gives_no_extra_batch():
    assert make_multi_sampler((0.1, 1.0), (60, 4)).batches_per_dataset == [3, 2]
    assert make_multi_sampler((0.3, 1.0), (20, 4)).batches_per_dataset == [3, 2]  # 0.3 · 10 is 3.0000000000000004 in some order of rounding


def test_a_teachers_scores_go_with_the_documents_drawn():
    scored = [
        Example(f"q{n}", ("a", "b"), ("c", "d", "e"), positive_scores=(n + 0.1, n + 0.2), negative_scores=(n + 0.3, n + 0.4, n + 0.5))
        for n in range(4)
    ]
    scores = dict(zip("abcde", (0.1, 0.2, 0.3, 0.4, 0.5), strict=True))
    sampler = make_sampler(scored, batch_size=2, negatives=2, seed=1, source="x")
    for batch in map(sampler.batch_at, range(6)):
        expected = [int(batch.queries[n // 3][1:]) + scores[document] for n, document in enumerate(batch.documents)]
        assert batch.teacher_matrix().flatten().tolist() == pytest.approx(expected)
    assert make_set("a", 4).batch_at(0).teacher_matrix() is None


def write_tsv(path, **texts):
    path.write_text("".join(f"{name}\t{text}\n" for name, text in texts.items()))
    return path


def texts_by_dataset(stream):
    """The texts of each set, by id."""
    contents_by_row = [text.content for text in stream.stream()]
    return [
        RowIndex(*({name: contents_by_row[row] for name, row in part.items()} for part in (one.queries, one.documents)))
        for one in stream.rows
    ]


ONE, TWO = [Example("q", ("d",), ("e",))], [Example("q", ("d",), ())]


def test_sets_share_a_collection_or_one_has_its_own_in_parts(tmp_path):
    queries, both = write_tsv(tmp_path / "q.tsv", q="who?"), write_tsv(tmp_path / "both.tsv", d="owl", e="cat")
    first, second = texts_by_dataset(TextStream([ONE, TWO], ["1", "2"], queries=[queries], corpora=[both]))
    assert (first.documents, second.documents, second.queries) == ({"d": "owl", "e": "cat"}, {"d": "owl"}, {"q": "who?"})
    parts = [write_tsv(tmp_path / "1.tsv", d="owl"), write_tsv(tmp_path / "2.tsv", e="cat")]
    assert texts_by_dataset(TextStream([ONE], ["1"], queries=[queries], corpora=parts))[0].documents == first.documents
    write_tsv(parts[1], d="bee")
    with pytest.raises(DataError, match=r"2\.tsv: 'd' has another text in an earlier file"):
        TextStream([ONE], ["1"], queries=[queries], corpora=parts)


def test_texts_that_examples_bring_need_no_collection():
    inline, other = (Example(name, ("d",), (), (), Text(name, "who?"), (Text("d", text),)) for name, text in (("q", "owl"), ("r", "bee")))
    texts = texts_by_dataset(TextStream([[inline]], ["1"], queries=[], corpora=[]))[0]
    assert (texts.queries, texts.documents) == ({"q": "who?"}, {"d": "owl"})
    with pytest.raises(DataError, match=r"one\.jsonl: passage 'd' has two texts"):
        TextStream([[inline, other]], ["one.jsonl"], queries=[], corpora=[])
