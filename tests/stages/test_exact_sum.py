"""The exact sum of experts in search: scores that a list lacks are computed."""

from pathlib import Path

import pytest

from moeir import read_run

pytestmark = pytest.mark.usefixtures("work_folder")
SEARCH = "search --index idx --queries toy/test-queries.tsv --dtype float32"


def test_a_shallow_search_gives_right_sums(run):
    run(f"{SEARCH} --fuse exact_sum --output whole")
    run(f"{SEARCH} --fuse exact-sum --depth 2 --output shallow")
    whole, shallow = (read_run(f"{name}/fused.trec") for name in ("whole", "shallow"))
    for query in whole.queries:
        assert set(shallow.hits(query)) <= set(whole.hits(query))  # the same number whether it stood in a list or not


def test_named_experts_are_the_ones_summed(run):
    run(f"{SEARCH} --expert local --expert global --fuse exact-sum --output runs")
    local, dense, fused = (read_run(f"runs/{name}.trec") for name in ("local", "global", "fused"))
    assert not Path("runs/lexical.trec").exists()
    for query in fused.queries:
        one, other = dict(local.hits(query)), dict(dense.hits(query))
        assert dict(fused.hits(query)) == {name: pytest.approx(one[name] + other[name], rel=1e-6) for name in one}


def test_a_mixture_of_competitors_is_still_fused_as_came_unless_told(run):
    default, came, exact = (run(f"{SEARCH} --depth 3 {more}").stdout for more in ("", "--fuse came-sum", "--fuse exact-sum"))
    assert default == came != exact


def test_an_exact_sum_that_cannot_be_is_refused(run, refuse):
    run(f"{SEARCH} --depth 3 --output runs")
    fuse = "fuse --run runs/local.trec --run runs/global.trec --method exact-sum --output out.trec"
    refuse(2, "use moeir search --fuse exact-sum", fuse)
    refuse(2, "exact-sum has no option 'deeper'", f"{SEARCH} --fuse exact-sum:deeper=true --output out.trec")
    assert not Path("out.trec").exists()
