"""Published runs of TREC DL 2019, where they lie beside the project: their published numbers, from us and from other tools' rules."""

from functools import partial
from pathlib import Path

import pytest

from moeir.evaluation import measures
from moeir.fusion import formulas
from moeir.records import qrels, runs

FILES = Path(__file__).parents[2].parent / "shared" / "data" / "msmarco-dl19"
PUBLISHED = {"BM25": 0.5058, "BM25_RM3": 0.5216, "SPLADE_P_P_ENSEMBLE_DISTIL": 0.7308, "D_BERT_KD_TASB": 0.7210, "OPEN_AI_ADA2": 0.7035}
NDCG = measures.parse_measure("nDCG@10")

pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason=f"the runs of TREC DL 2019 are not at {FILES}")


def path(name):
    return FILES / "runs" / f"{name}.dl19.txt.gz"


@pytest.fixture(scope="module")
def judged():
    return qrels.read_qrels(FILES / "qrels" / "nist.txt.gz")


@pytest.mark.parametrize("tool", ["trec_eval", "beir"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_run_has_its_published_number(name, tool, judged):
    values = measures.evaluate_as(tool, runs.read_run(path(name)), judged, [NDCG])
    assert f"{measures.aggregate_values(values)['nDCG@10']:.4f}" == f"{PUBLISHED[name]:.4f}"


def test_reciprocal_rank_fusion_of_three_neural_runs_is_above_the_best_of_them(judged):
    neural = [runs.read_run(path(name)) for name in list(PUBLISHED)[2:]]
    merged = formulas.fuse_runs(neural, partial(formulas.rrf, constant=60.0), depth=100)
    ndcg = measures.aggregate_values(measures.evaluate_run(merged, judged, [NDCG]))["nDCG@10"]
    assert ndcg > max(PUBLISHED.values()) and f"{ndcg:.4f}" == "0.7503"
