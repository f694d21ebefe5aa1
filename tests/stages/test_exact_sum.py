"""The exact sum of experts in search: scores that a list lacks are computed."""

from pathlib import Path

import pytest

from moeir import read_run

pytestmark = pytest.mark.usefixtures("work_folder")
SEARCH = "search --index idx --queries toy/test-queries.tsv --dtype float32"


@pytest.mark.parametrize("experts", [("local", "global"), ("lexical", "local", "global")])
def test_the_sums_are_those_of_the_named_experts_also_in_a_shallow_search(experts, run):
    flags = " ".join(f"--expert {name}" for name in experts)
    for folder, depth in (("whole", 100), ("shallow", 2)):
        run(f"{SEARCH} {flags} --fuse exact_sum --depth {depth} --output {folder}")
    assert sorted(path.stem for path in Path("whole").glob("*.trec")) == sorted((*experts, "fused"))
    whole, shallow = (read_run(f"{folder}/fused.trec") for folder in ("whole", "shallow"))
    lists = [read_run(f"whole/{name}.trec") for name in experts]
    for query in whole.queries:
        sums = {name: sum(dict(one.hits(query)).get(name, 0.0) for one in lists) for name in whole.documents_of(query)}
        assert dict(whole.hits(query)) == pytest.approx(sums, rel=1e-6)
        assert set(shallow.hits(query)) <= set(whole.hits(query))  # the same number whether it stood in a list or not


def test_a_mixture_of_competitors_is_fused_as_came_by_default(run):
    default, came, exact = (run(f"{SEARCH} --depth 3 {more}").stdout for more in ("", "--fuse came-sum", "--fuse exact-sum"))
    assert default == came != exact


def test_an_exact_sum_that_cannot_be_is_refused(run, refuse):
    run(f"{SEARCH} --depth 3 --output runs")
    fuse = "fuse --run runs/local.trec --run runs/global.trec --method exact-sum --output out.trec"
    refuse(2, "use moeir search --fuse exact-sum", fuse)
    refuse(2, "exact-sum has no option 'deeper'", f"{SEARCH} --fuse exact-sum:deeper=true --output out.trec")
    assert not Path("out.trec").exists()
