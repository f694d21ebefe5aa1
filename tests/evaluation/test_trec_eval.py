"""trec_eval's own test files, where they lie beside the project: our numbers are its numbers, to the four decimals it prints.

The option that made each expected file stands in trec_eval's Makefile.
"""

import re
from pathlib import Path

import pytest

from moeir.errors import UsageError
from moeir.evaluation import measures
from moeir.records import qrels, runs

FILES = Path(__file__).parents[2].parent / "shared" / "data" / "trec_eval"

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason=f"trec_eval's test files are not at {FILES}")

SUMS = {"num_q", "num_ret", "num_rel", "num_rel_ret"}


def expected(name):
    """{measure: {query or 'all': value}} of an output file, without the measures that we do not offer."""
    values: dict[str, dict[str, float]] = {}
    for line in (FILES / name).read_text().splitlines():
        measure, query, value = line.split()
        if offered(measure):
            values.setdefault(measure, {})[query] = float(value)
    return values


def offered(measure):
    try:
        measures.parse_measure(measure)
    except UsageError:
        return False
    return True


def compare(run, judgements, output, rename=lambda name: name):
    wanted = {name: by_query for name, by_query in expected(output).items() if offered(rename(name))}
    parsed = {name: measures.parse_measure(rename(name)) for name in wanted}
    values = measures.evaluate_run(run, judgements, list(parsed.values()))
    overall = measures.aggregate_values(values)
    for name, by_query in wanted.items():
        by_query_and_mean = values[str(parsed[name])] | {"all": overall[str(parsed[name])]}
        for query, value in by_query.items():
            assert f"{by_query_and_mean[query]:.4f}" == f"{value:.4f}", (output, name, query)
    return wanted


def test_averages_are_trec_evals():
    wanted = compare(runs.read_run(FILES / "results.test"), qrels.read_qrels(FILES / "qrels.test"), "out.test.a")
    families = {re.sub(r"_?[\d.]+$", "", name) for name in wanted}
    assert families >= {"ndcg", "ndcg_cut", "map", "map_cut", "P", "recall", "recip_rank", "Rprec", "bpref", "success", "infAP"}
    assert families >= SUMS | {"set_P", "set_recall", "set_map", "set_F", "set_relative_P"}


@pytest.mark.parametrize(
    ("results", "depth", "output"),  # values per query; options c (missing queries), M (a cut run) and m (options of measures)
    [
        ("results.test", None, "out.test.aq"),
        ("results.trunc", None, "out.test.aqc"),
        ("results.trunc", 100, "out.test.aqcM"),
        ("results.test", None, "out.test.meas_params"),
    ],
)
def test_values_are_trec_evals(results, depth, output):
    run = runs.read_run(FILES / results)
    assert len(compare(run if depth is None else run.top(depth), qrels.read_qrels(FILES / "qrels.test"), output)) > 5


def test_a_level_of_relevance_is_that_of_option_l():
    def at_level_two(name):
        measure = measures.parse_measure(name)
        graded = "rel" in measure.SUPPORTED_PARAMS and not (measure.NAME == "NumRet" and "rel" not in measure.params)
        return str(measure(rel=2)) if graded else name

    wanted = compare(runs.read_run(FILES / "results.test"), qrels.read_qrels(FILES / "qrels.rel_level"), "out.test.aql", at_level_two)
    assert len(wanted) > 50


def test_comments_in_judgements_are_skipped():
    commented, plain = qrels.read_qrels(FILES / "qrels.test.with-comments"), qrels.read_qrels(FILES / "qrels.test")
    plain["301"]["CR#93E-1860"] = plain["301"].pop("CR93E-1860")  # the one id that the commented file spells otherwise
    assert commented == plain
    compare(runs.read_run(FILES / "results.comment.test"), qrels.read_qrels(FILES / "qrels.comment.test"), "out.comment.test")
