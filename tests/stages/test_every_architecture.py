"""Every architecture, and some combinations, through every stage on the toy texts."""

import numpy as np
import pytest

from moeir import variants
from moeir.architectures.checkpoint import open_checkpoint
from moeir.records import runs, texts
from tests.conftest import run_moeir
from tests.processes import read_metrics

SEARCH = ("search", "--dtype", "float32")  # as the documents
SMALL_SIZES = {"came": "shared_layers=2,local_dim=8", "coil": "dim=8,cls_dim=16", "colbert": "dim=8", "bge-m3": "fresh_heads=true"}
NAMES = [variant.name for variant in variants.list_variants("architectures") if variant.name != "cross-encoder"]  # which reads pairs
PLAIN = [f"{name}:{SMALL_SIZES[name]}" if name in SMALL_SIZES else name for name in NAMES]
VARIED = [
    "coil:dim=8,cls_dim=0", "sbmoe:inference=all", "colbert:dim=8,markers=true,augmentation=true,normalise=true,punctuation=false",
    f"came:{SMALL_SIZES['came']},adapters=4,shared_adapters=2,lexical_queries=tokens",
    "taser:adapters=4,experts=3,routing=sequence,gate_input=block_input",
]  # fmt: skip
RULES = ("--query-length", 12, "--document-length", 24)
TRAINING = ("--steps", 3, "--batch-size", 2, "--negatives", 2, "--learning-rate", 1e-3, "--dtype", "float32")


@pytest.fixture(scope="module")
def room(tmp_path_factory, toy, bm25_index):
    """Examples, and BM25's run of the test queries."""
    folder = tmp_path_factory.mktemp("architectures")
    run_moeir(*SEARCH, "--index", bm25_index, "--queries", toy / "train-queries.jsonl", "--output", folder / "train.trec")
    run_moeir("mine-negatives", "--run", folder / "train.trec", "--qrels", toy / "train.qrels", "--output", folder / "train.jsonl")
    run_moeir(*SEARCH, "--index", bm25_index, "--queries", toy / "test-queries.tsv", "--output", folder / "bm25.trec")
    return folder


@pytest.mark.parametrize("spec", [*PLAIN, *VARIED])
def test_it_trains_saves_reopens_encodes_is_indexed_searched_fused_and_evaluated(spec, room, toy, tmp_path, tiny_model_with_head):
    sources = ("--train", room / "train.jsonl", "--corpus", toy / "corpus.jsonl", "--queries", toy / "train-queries.jsonl")
    objective = "competitive" if spec.startswith(("came", "bge-m3")) else "contrastive:load_balance=0.01"
    model_flags = ("--model", tiny_model_with_head, "--arch", spec, "--objective", objective)
    run_moeir("finetune", *model_flags, *sources, *RULES, *TRAINING, "--output", tmp_path / "ckpt")
    losses = [line["loss"] for line in read_metrics(tmp_path / "ckpt")]
    assert len(losses) == 3 and np.isfinite(losses).all()
    run_moeir("init", "--model", tmp_path / "ckpt", "--output", tmp_path / "again")  # reopened and written again
    names = [path.relative_to(tmp_path / "ckpt") for path in (tmp_path / "ckpt").rglob("*.safetensors")]
    for name in (*names, "moeir.json", *(["config.json"] if "adapters" not in spec else [])):
        assert (tmp_path / "ckpt" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    run_moeir("encode", "--model", tmp_path / "ckpt", "--corpus", toy / "corpus.jsonl", "--dtype", "float32", "--output", tmp_path / "enc")
    run_moeir("index", "--encodings", tmp_path / "enc", "--output", tmp_path / "idx")
    run_moeir(*SEARCH, "--index", tmp_path / "idx", "--queries", toy / "test-queries.tsv", "--depth", 50, "--output", tmp_path / "runs")
    _check_runs(tmp_path / "ckpt", toy, tmp_path / "runs")
    runs_of_both = ("--run", sorted((tmp_path / "runs").glob("*.trec"))[0], "--run", room / "bm25.trec")
    run_moeir("fuse", *runs_of_both, "--output", tmp_path / "all.trec")
    table = run_moeir("evaluate", "--run", tmp_path / "all.trec", *runs_of_both, "--qrels", toy / "test-qrels.tsv").stdout
    assert "nDCG@10" in table and "bm25" in table


def _check_runs(checkpoint, toy, run_folder):
    """The runs have the checkpoint's scores of all pairs; where a sum is trained, the fused run is the sum."""
    model = open_checkpoint(checkpoint)
    documents, queries = (list(texts.read_texts(toy / name)) for name in ("corpus.jsonl", "test-queries.tsv"))
    sides = model.encode([text.content for text in queries], "query"), model.encode([text.content for text in documents], "document")
    scores = {name: sides[0][name].scores(sides[1][name]).numpy() for name in sides[0].representations}
    if model.architecture.default_fusion == "exact-sum" and len(scores) > 1:
        scores["fused"] = sum(scores.values())
    rows = {text.id: number for number, text in enumerate(documents)}
    for name, expected in scores.items():
        run = runs.read_run(run_folder / f"{name}.trec")
        for row, query in enumerate(queries):
            hits = run.hits(query.id)
            assert np.allclose([score for _, score in hits], [expected[row, rows[document]] for document, _ in hits], rtol=2e-3, atol=2e-3)
            assert len(hits) == len(documents) or name in ("lexical", "exact", "fused")
