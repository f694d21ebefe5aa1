"""Which texts meet at which step: a plan that can be asked for any step, and says the same every time."""

from collections import Counter

import pytest

from moeir.errors import DataError, UsageError
from moeir.learning.batches import Drawn, check_texts, planned
from moeir.records.examples import Example


def examples(count=10, positives=2, negatives=9):
    return [
        Example(f"q{n}", tuple(f"p{n}.{i}" for i in range(positives)), tuple(f"n{n}.{i}" for i in range(negatives))) for n in range(count)
    ]


def plan(given=None, *, queries=4, negatives=3, seed=1):
    return planned(examples() if given is None else given, queries=queries, negatives=negatives, seed=seed, place="train.jsonl")


def groups(drawn):
    """query -> (positive, negatives)."""
    size = len(drawn.documents) // len(drawn.queries)
    return {query: (drawn.documents[n * size], drawn.documents[n * size + 1 : (n + 1) * size]) for n, query in enumerate(drawn.queries)}


def epoch(made, number):
    found = {}
    for step in range(number * made.steps_per_epoch, (number + 1) * made.steps_per_epoch):
        found |= groups(made.at(step))
    return found


def test_any_step_can_be_asked_for_in_any_order():
    first, second = plan(), plan()
    forward = [first.at(step) for step in range(7)]
    assert [second.at(step) for step in reversed(range(7))] == forward[::-1]


def test_an_epoch_has_whole_batches_of_different_queries():
    made = plan()
    assert made.steps_per_epoch == 2
    assert len(epoch(made, 0)) == 8 and len(epoch(made, 1)) == 8  # the last two of ten wait for another epoch
    assert epoch(made, 0).keys() != epoch(made, 1).keys()
    assert plan(queries=10).steps_per_epoch == 1
    everyone = plan(queries=99)
    assert everyone.queries == 10 and len(everyone.at(0).queries) == 10


def test_what_a_query_meets_does_not_depend_on_its_place_in_the_file():
    forward, backward = plan(queries=10), plan(examples()[::-1], queries=10)
    for number in range(3):
        assert epoch(forward, number) == epoch(backward, number)


def test_what_a_query_meets_does_not_depend_on_the_batch_size():
    alone, together = epoch(plan(queries=1), 0), epoch(plan(queries=10), 0)
    assert alone == together


def test_negatives_change_with_the_epoch_and_the_seed():
    made = plan(queries=10)
    first, second, other = epoch(made, 0), epoch(made, 1), epoch(plan(queries=10, seed=2), 0)
    assert any(first[query][1] != second[query][1] for query in first)
    assert any(first[query][1] != other[query][1] for query in first)


def test_every_negative_is_drawn_in_time():
    made = plan(queries=10)
    seen = Counter(document for number in range(60) for document in epoch(made, number)["q3"][1])
    assert len(seen) == 9 and max(seen.values()) < 2.5 * min(seen.values())


def test_positives_take_turns():
    made = plan(examples(positives=3), queries=10)
    turns = [epoch(made, number)["q5"][0] for number in range(6)]
    assert set(turns[:3]) == {"p5.0", "p5.1", "p5.2"} and turns[:3] == turns[3:]


def test_a_querys_negatives_are_its_own_and_never_a_positive():
    made = plan()
    for step in range(20):
        for query, (positive, negatives) in groups(made.at(step)).items():
            assert positive.startswith(f"p{query[1:]}.") and all(one.startswith(f"n{query[1:]}.") for one in negatives)
            assert len(set(negatives)) == 3


def test_too_few_negatives_are_drawn_again():
    made = plan(examples(negatives=2), negatives=5)
    for _, negatives in groups(made.at(0)).values():
        assert len(negatives) == 5 and len(set(negatives)) <= 2


def test_no_negatives_can_be_asked_for():
    drawn = plan(examples(negatives=0), negatives=0).at(0)
    assert len(drawn.documents) == len(drawn.queries)


def test_known_positives_elsewhere_in_the_batch_are_ignored():
    drawn = Drawn(("a", "b"), ("x", "n", "y", "x"), (frozenset({"x", "y"}), frozenset({"y"})))
    assert drawn.ignored().tolist() == [[False, False, True, True], [False, False, False, False]]


@pytest.mark.parametrize(
    "given, options, error, message",
    [
        ([], {}, DataError, "train.jsonl: no training examples"),
        (examples(negatives=0), {}, DataError, "query q0 has no negatives; mine some, or train with --negatives 0"),
        (None, {"queries": 0}, UsageError, "--batch-size 0, --negatives 3"),
        (None, {"negatives": -1}, UsageError, "--negatives -1"),
    ],
)
def test_plans_that_cannot_be_are_refused(given, options, error, message):
    with pytest.raises(error, match=message):
        plan(given, **options)


def test_examples_that_name_absent_texts_are_refused():
    made, queries = plan(examples(1)), {"q0": "?"}
    documents = {name: "text" for name in (*made.examples[0].positive_ids, *made.examples[0].negative_ids)}
    check_texts(made, queries, documents, "train.jsonl")
    with pytest.raises(DataError, match=r"train.jsonl: query q0 is not among the queries"):
        check_texts(made, {}, documents, "train.jsonl")
    with pytest.raises(DataError, match=r"train.jsonl: query q0 names document n0.8, which is not in the corpus"):
        check_texts(made, queries, {name: text for name, text in documents.items() if name != "n0.8"}, "train.jsonl")
