import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.analysis.overlap import overlap, rbo
from moeir.errors import UsageError
from tests.oracles import overlap as by_sets

rankings = st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1)


@given(rankings, rankings, st.sampled_from([0.1, 0.5, 0.9, 0.98]))
def test_rank_biased_overlap_is_the_sum_of_the_paper(first, second, persistence):
    similarity = rbo(first, second, persistence=persistence)
    assert similarity == pytest.approx(by_sets.rbo(first, second, persistence), abs=1e-12)
    assert similarity == pytest.approx(rbo(second, first, persistence=persistence), abs=1e-12)
    assert -1e-12 <= similarity <= 1 + 1e-12

    assert rbo(first, first) == pytest.approx(1.0) and overlap(first, first) == 1.0


def test_empty_lists_agree_with_each_other_only_and_persistence_lies_between_zero_and_one():
    assert (rbo([], []), rbo([], ["a"]), overlap([], []), overlap([], ["a"])) == (1.0, 0.0, 0.0, 0.0)
    for persistence in (0.0, 1.0, -1.0, 2.0):
        with pytest.raises(UsageError, match="persistence of rank-biased overlap lies between 0 and 1"):
            rbo(["a"], ["b"], persistence=persistence)
