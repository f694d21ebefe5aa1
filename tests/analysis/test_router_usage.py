import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.analysis.router_usage import RouterUsage
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
    *experts, whole = usage.rows()
    assert [row[2] for row in experts] == chosen and whole[:3] == ["texts", "all", len(probabilities)]
    assert [row[4] for row in experts] == pytest.approx(means)
    assert whole[5] == pytest.approx(entropy)


def test_a_row_for_each_expert_and_their_sum():
    usage = RouterUsage.from_probabilities(np.array([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.5, 0.3, 0.2]]), texts=2)
    shares = [("0", 3, 0.75), ("1", 1, 0.25), ("2", 0, 0.0), ("all", 4, 1.0)]
    assert [tuple(row[:4]) for row in usage.rows()] == [("tokens", *row) for row in shares]
    assert [row[4] for row in usage.rows()] == pytest.approx([0.55, 0.4, 0.05, 1.0])
    assert next(RouterUsage.from_probabilities(np.eye(2), 2).rows())[0] == "texts"
