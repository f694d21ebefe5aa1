import pytest
from hypothesis import given
from hypothesis import strategies as some

from moeir.analysis import wins
from tests.oracles import analysis

VALUES = some.integers(1, 4).flatmap(
    lambda count: some.fixed_dictionaries(
        {name: some.fixed_dictionaries({query: some.sampled_from([0.0, 0.5, 1.0]) for query in "pqrs"[:count]}) for name in ("a", "b", "c")}
    )
)


@given(VALUES)
def test_every_query_is_won_once_or_tied(values):
    rows = wins.analyze_wins(values, "RR").rows
    assert [row[0] for row in rows] == [*values, "tied"]
    assert sum(row[2] for row in rows) == rows[0][1] == len(values["a"]) and sum(row[3] for row in rows) == pytest.approx(1.0)
    for run, _, count, _, mean in rows[:-1]:
        assert count == analysis.count_wins(values, list(values["a"]), run)
        assert mean == pytest.approx(sum(values[run].values()) / len(values["a"]))
    assert rows[-1][4] is None
