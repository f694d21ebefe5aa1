"""trec_eval's own test files, where they lie beside the project: our numbers are its numbers, to the four decimals it prints.

The option that made each expected file stands in trec_eval's Makefile.
"""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from moeir.errors import UsageError
from moeir.evaluation import measures
from moeir.records import qrels, runs

FILES = Path(__file__).parents[2].parent / "shared" / "data" / "trec_eval"

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason=f"trec_eval's test files are not at {FILES}")


def offered(measure):
    with suppress(UsageError):
        return measures.parse_measure(measure)


def compare(results, judgements, output, depth=None, rename=lambda name: name):
    """Compare each value of an output file, but for measures that we do not offer, and return the names of the measures."""
    lines = [line.split() for line in (FILES / output).read_text().splitlines()]
    parsed = {name: measure for name in dict.fromkeys(line[0] for line in lines) if offered(name) and (measure := offered(rename(name)))}
    run = runs.read_run(FILES / results)
    values = measures.evaluate_run(run if depth is None else run.top(depth), qrels.read_qrels(FILES / judgements), list(parsed.values()))
    overall = measures.aggregate_values(values)
    for name, query, value in (line for line in lines if line[0] in parsed):
        ours = overall[str(parsed[name])] if query == "all" else values[str(parsed[name])][query]
        assert f"{ours:.4f}" == f"{float(value):.4f}", (output, name, query)
    return parsed


def test_averages_are_trec_evals():
    families = {re.sub(r"_?[\d.]+$", "", name) for name in compare("results.test", "qrels.test", "out.test.a")}
    assert families >= {"ndcg", "ndcg_cut", "map", "map_cut", "P", "recall", "recip_rank", "Rprec", "bpref", "success", "infAP"}
    assert families >= {"num_q", "num_ret", "num_rel", "num_rel_ret", "set_P", "set_recall", "set_map", "set_F", "set_relative_P"}


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
    assert len(compare(results, "qrels.test", output, depth)) > 5


def test_a_level_of_relevance_is_that_of_option_l():
    def at_level_two(name):
        measure = measures.parse_measure(name)
        graded = "rel" in measure.SUPPORTED_PARAMS and not (measure.NAME == "NumRet" and "rel" not in measure.params)
        return str(measure(rel=2)) if graded else name

    assert len(compare("results.test", "qrels.rel_level", "out.test.aql", rename=at_level_two)) > 50


def test_comments_in_judgements_are_skipped():
    commented, plain = qrels.read_qrels(FILES / "qrels.test.with-comments"), qrels.read_qrels(FILES / "qrels.test")
    plain["301"]["CR#93E-1860"] = plain["301"].pop("CR93E-1860")  # the one id that the commented file spells otherwise
    assert commented == plain
    compare("results.comment.test", "qrels.comment.test", "out.comment.test")
