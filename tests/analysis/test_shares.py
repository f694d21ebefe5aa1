from itertools import pairwise

import pytest

from moeir.analysis.shares import expert_means, read_expert_means
from moeir.errors import DataError

ALWAYS = {"loss.a": 1.0, "loss": 9.0, "rank.b": 2.0, "terms.a.query": 5.0}
STEPS = [{"step": number, "share.a": float(number), **ALWAYS} for number in range(1, 8)]


def test_rows_are_means_of_stretches_and_names_those_of_experts():
    names, rows = expert_means(STEPS, total=7, rows=3)
    assert names == ["step", "share.a", "rank.b", "loss.a"]
    assert [row[0] for row in rows] == [3, 5, 7]
    assert [row[1] for row in rows] == [2.0, 4.5, 6.5]  # 1 2 3 | 4 5 | 6 7


@pytest.mark.parametrize("total", [1, 2, 5, 19, 20, 21, 63])
def test_stretches_differ_by_at_most_one_step_and_cover_all(total):
    steps = [{"step": number + 1, "usage.layer3.0": 1.0} for number in range(total)]
    _, rows = expert_means(steps, total, 20)
    ends = [0, *(row[0] for row in rows)]
    lengths = {later - earlier for earlier, later in pairwise(ends)}
    assert len(rows) == min(20, total) and ends[-1] == total and max(lengths) - min(lengths) <= 1


def test_a_broken_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "share.a": 1.0}\n{"step"\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: broken JSON"):
        read_expert_means(tmp_path / "metrics.jsonl", 3)
