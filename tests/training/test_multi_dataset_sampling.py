"""Several data sets: interleaving, sampling rates, texts by set, and teacher scores."""

from collections import Counter

import pytest

from moeir.errors import DataError
from moeir.records.examples import Example
from moeir.records.texts import Text
from moeir.training.sampling import MultiDatasetSampler, make_sampler
from moeir.training.text_stream import RowIndex, TextStream


def make_toy_sampler(name, count):
    examples = [Example(f"{name}{n}", (f"{name}p{n}",), tuple(f"{name}n{n}.{i}" for i in range(6))) for n in range(count)]
    return make_sampler(examples, batch_size=2, negatives=2, seed=3, source="train.jsonl")


def make_multi_sampler(rates, sizes=(8, 4, 6)):
    return MultiDatasetSampler(tuple(make_toy_sampler(name, size) for name, size in zip("abc", sizes, strict=False)), rates, 3)


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
    order = [query for step in range(4) for query in make_toy_sampler("c", 6).batch_at(step).queries]
    assert halves[0] + halves[1] == order


def test_within_a_set_batches_are_those_it_has_alone_in_turns_that_the_epoch_and_the_seed_decide():
    sampler, alone = make_multi_sampler((1.0, 1.0, 1.0)), make_toy_sampler("b", 4)
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
    assert make_toy_sampler("a", 4).batch_at(0).teacher_matrix() is None


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
