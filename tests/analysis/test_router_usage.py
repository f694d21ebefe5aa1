import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.analysis.router_usage import RouterUsage, parse_threshold
from moeir.errors import UsageError
from tests.oracles import router_usage as by_loops

rows = st.lists(st.lists(st.integers(0, 9).map(float), min_size=3, max_size=3), min_size=1, max_size=12)


@given(rows, st.data())
def test_usage_of_batches_is_that_of_single_decisions(probabilities, data):
    cut = data.draw(st.integers(0, len(probabilities)))
    parts = [part for part in (probabilities[:cut], probabilities[cut:]) if part]
    usage = RouterUsage.from_probabilities(np.array(parts[0]), len(parts[0]))
    for part in parts[1:]:
        usage = usage + RouterUsage.from_probabilities(np.array(part), len(part))
    chosen, means, entropy = by_loops.count_usage(probabilities)
    assert usage.counts.tolist() == chosen and usage.decisions == usage.texts == len(probabilities)
    assert usage.probabilities.tolist() == pytest.approx(means)
    assert usage.entropy_terms.sum() == pytest.approx(entropy)


def test_a_row_for_each_expert_and_their_sum():
    usage = RouterUsage.from_probabilities(np.array([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.5, 0.3, 0.2]]), texts=2)
    assert [row[:4] + row[6:] for row in usage.rows("2")] == [
        ["tokens", "0", 3, 0.75, 1], ["tokens", "1", 1, 0.25, 0], ["tokens", "2", 0, 0.0, 0], ["tokens", "all", 4, 1.0, 1],
    ]  # fmt: skip
    assert [row[4] for row in usage.rows("2")] == pytest.approx([0.55, 0.4, 0.05, 1.0])
    assert usage.rows("1").__next__()[0] == "tokens" and next(RouterUsage.from_probabilities(np.eye(2), 2).rows("1"))[0] == "texts"


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [("1", [1, 1, 1, 0]), ("100", [1, 1, 0, 0]), ("101", [1, 0, 0, 0]), ("10%", [1, 1, 0, 0]), ("10.1%", [1, 0, 0, 0]), ("100%", [0] * 4)],
)
def test_an_expert_is_used_from_the_threshold_on(threshold, expected):
    assert RouterUsage(np.array([890, 100, 10, 0]), np.ones(4), 1000).above_threshold(threshold).astype(int).tolist() == expected


@pytest.mark.parametrize("threshold", ["", "0", "-1", "0%", "101%", "many", "1.5", "nan", "inf", "%"])
def test_a_threshold_that_is_none_is_refused(threshold):
    with pytest.raises(UsageError, match=r"--threshold .*: expected a whole number above 0, or a share such as 1\.14%"):
        parse_threshold(threshold)
