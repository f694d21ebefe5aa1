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
    assert [row[:3] for row in experts] == [["texts", str(number), count] for number, count in enumerate(chosen)]
    assert [row[3] for row in experts] == pytest.approx([count / len(probabilities) for count in chosen])
    assert [row[4] for row in experts] == pytest.approx(means)
    assert whole == ["texts", "all", len(probabilities), pytest.approx(1.0), pytest.approx(sum(means)), pytest.approx(entropy)]
