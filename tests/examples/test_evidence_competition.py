"""The scripts on when competition helps run whole at toy size; what their programs write and compute."""

import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from moeir.architectures.base import EncoderOutput
from moeir.records import qrels, texts
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from moeir.training import objectives, regularizers
from moeir.training.losses import EncodedBatch
from tests.examples.shell import EVIDENCE, Experiment, run_program
from tests.test_evidence_tables import load_program


def test_unsuitable_queries(experiment: Experiment, tmp_path: Path) -> None:
    sources, work = Path(multiprocessing.__file__).parent, tmp_path / "work"
    experiment.run("unsuitable.sh", LIBRARY=sources)
    assert experiment.run("unsuitable.sh", LIBRARY=sources).count("is recorded") == 9, "all rows but prepare"
    rows = experiment.rows("unsuitable-toy-custom")
    arms = {f"{arm}-60-1" for arm in ("start", "standardised", "competitive", "loss", "permuted", "learnability")}
    assert rows.keys() == arms | {f"{arm}-wide-1" for arm in ("start", "standardised", "competitive")}
    row = rows["learnability-60-1"]
    assert "shares=learnability,temperature=0.1" in row["trainings"][""]["settings"]["objective"]
    assert row["scores"]["key"].keys() == {"lexical", "local", "global", "fused", "sumrr", "documents"}
    sizes = {name: of_set["questions"] for name, of_set in row["sets"].items()}
    assert sizes["test"] == sizes["plain"] + sizes["key"] > 0
    starts = [rows[f"{arm}-60-1"]["trainings"][""]["sources"]["model"] for arm in ("standardised", "permuted")]
    assert starts[0] == starts[1] != rows["standardised-wide-1"]["trainings"][""]["sources"]["model"]
    training, tested = (set(texts.read_texts_by_id(work / "data" / name)) for name in ("corpus.jsonl", "test-corpus.jsonl"))
    assert training and tested and not training & tested
    passages = texts.read_texts_by_id(work / "data/test-corpus.jsonl")
    keys = texts.read_texts_by_id(work / "data/key-queries.jsonl")
    for query, grades in qrels.read_qrels(work / "data/key.tsv").items():
        (passage,) = grades
        assert passages[passage].text.startswith(f"{keys[query].text}. ")
    refused = experiment.run("unsuitable.sh", "best-60-1", code=2)
    assert refused.startswith("best-60-1: no such row; expected prepare, or start, ")


def test_a_cut_vocabulary_reads_the_same_texts_with_the_same_vectors(tiny_model: Path, tmp_path: Path) -> None:
    read = ["owls hunt mice", "unheardof words"]
    load_program("cut_layers").cut_layers(tiny_model, tmp_path / "cut", 2)
    load_program("keys").cut_vocabulary(tmp_path / "cut", read)
    old, new = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (tiny_model, tmp_path / "cut"))
    name = "embeddings.word_embeddings.weight"
    rows, cut = (next(tensor for one, tensor in load_file(folder / "model.safetensors").items() if one.endswith(name))
                 for folder in (tiny_model, tmp_path / "cut"))  # fmt: skip
    assert len(cut) == new.get_vocab_size() < old.get_vocab_size()
    for text in read:
        whole, part = old.encode(text), new.encode(text)
        assert whole.tokens == part.tokens
        assert np.array_equal(rows[whole.ids], cut[part.ids])


def test_summed_losses_and_raw_scores(experiment: Experiment, tmp_path: Path) -> None:
    experiment.run("confound.sh", LIBRARY=Path(multiprocessing.__file__).parent)
    rows = experiment.rows("confound-toy-custom")
    assert rows.keys() == {"bm25", "start-wide-1", *(f"{arm}-wide-1" for arm in ("summed", "averaged", "competitive", "rescaled"))}
    objectives = {name: rows[f"{name}-wide-1"]["trainings"][""]["settings"]["objective"] for name in ("summed", "averaged", "competitive")}
    assert "standardised=1,normalise_standardised=false," in objectives["summed"] and "flops_document=3e-2" in objectives["summed"]
    assert objectives["averaged"] == objectives["summed"].replace("false", "true")
    assert {"fused", "sumrr", "normsum", "calibrated"} <= rows["summed-wide-1"]["scores"]["plain"].keys()
    tested, fitted = (texts.read_texts_by_id(tmp_path / f"work/data/{part}-queries.jsonl") for part in ("test", "dev"))
    assert fitted and not {text.text for text in tested.values()} & {text.text for text in fitted.values()}


def test_rescaled_shares_have_the_loss_of_learning_alike_and_the_gradient_of_competition_times_one_factor() -> None:
    generator = torch.Generator().manual_seed(3)
    vectors = [(3 * torch.rand(count, 4, generator=generator)).requires_grad_() for count in (5, 15, 5, 15)]
    queries, documents = (
        EncoderOutput({"dense": Dense(vectors[side]), "sparse": Sparse.from_matrix(vectors[side + 2])}) for side in (0, 1)
    )
    batch = EncodedBatch(queries, documents, torch.zeros(5, 15, dtype=torch.bool), 0, 10)
    penalty, none = (regularizers.RegularizerWeights(flops_query=weight, flops_document=weight) for weight in (0.1, 0.0))
    compete = partial(objectives.competitive, batch, normalise_standardised=True, temperature=0.3)
    output = load_program("rescaled_shares").rescaled(batch, temperature=0.3, regularizers=penalty)
    torch.testing.assert_close(output.loss, compete(standardised=1, regularizers=penalty).loss)
    factor = output.metrics["rescaling"]
    assert factor > 1.05 and output.metrics["loss"] == output.loss
    shares, penalised = (compete(standardised=0, regularizers=weights).loss for weights in (none, penalty))
    actual, wanted = (torch.autograd.grad(loss, vectors, retain_graph=True) for loss in (output.loss, factor * shares + penalised - shares))
    torch.testing.assert_close(actual, wanted)


def test_more_steps_and_unnamed_positives(experiment: Experiment) -> None:
    experiment.run("slower.sh", LIBRARY=Path(multiprocessing.__file__).parent)
    rows, quadrupled = experiment.rows("slower-toy-custom"), ("standardised4", "competitive4", "permuted4")
    assert rows.keys() == {f"{arm}-0-1" for arm in ("start", "standardised", "competitive", "rescaled", *quadrupled)}
    steps = {name: row["trainings"][""]["settings"]["steps"] for name, row in rows.items()}
    assert steps["competitive-0-1"] == 2 and steps["standardised4-0-1"] == steps["permuted4-0-1"] == 8
    unnamed = experiment._replace(folder=experiment.folder / "unnamed")
    unnamed.run("unnamed.sh")
    assert unnamed.rows("unnamed-toy").keys() == {"bm25", "start-50-1", "standardised-50-1", "competitive-50-1"}


def test_the_pool_has_a_share_of_the_unnamed_positives_and_no_answer_of_a_test_question(tmp_path: Path) -> None:
    folder = tmp_path / "medquad"
    (folder / "qrels").mkdir(parents=True)
    texts.write_texts([texts.Text(f"a{number}", f"answer {number}") for number in range(60)], folder / "corpus.jsonl.gz")
    texts.write_texts([texts.Text(f"q{number}", f"what is {number // 3}?") for number in range(45)], folder / "queries.jsonl.gz")
    qrels.write_qrels({f"q{number}": {f"a{number}": 1} for number in range(30)}, folder / "qrels/train.tsv.gz")
    qrels.write_qrels({f"q{number}": {f"a{number}": 1} for number in range(30, 45)}, folder / "qrels/dev.tsv.gz")
    sizes = ("--test", 5, "--first", 4, "--second", 6, "--others", 10)
    assert run_program("unnamed.py", folder, tmp_path / "data", *sizes, folder=EVIDENCE).code == 0
    parts = {part: qrels.read_qrels(tmp_path / f"data/{part}.tsv") for part in ("test", "first", "second")}
    assert [len(grades) for grades in parts["test"].values()] == [3] * 5
    named = {document for part in ("first", "second") for grades in parts[part].values() for document in grades}
    tested = {document for grades in parts["test"].values() for document in grades}
    pools = {share: set(texts.read_texts_by_id(tmp_path / f"data/pool-{share}.jsonl")) for share in (0, 50)}
    corpus = set(texts.read_texts_by_id(tmp_path / "data/corpus.jsonl"))
    assert len(named) == 10 and len(corpus) == 55 and pools[0] < pools[50] < corpus
    assert all(named <= pool and not tested & pool for pool in pools.values())
    assert len(pools[0]) == 20 and len(pools[50]) == 30, "of 20 unnamed answers none or ten"


def test_the_router(experiment: Experiment, tmp_path: Path) -> None:
    experiment.run("router.sh")
    assert experiment.run("router.sh").count("is recorded") == 2
    for row in ("docstrings", "squad"):
        header, *lines = [line.split("\t") for line in (tmp_path / f"results/router-toy-{row}.tsv").read_text().splitlines()]
        assert header[:4] == ["what", "experts", "p50 ms", "nDCG@10"] and len(lines) == 15 + 4 + 2
        values = {line[0]: line for line in lines}
        assert values["lexical+local"][1:3] == ["2.00", "7.00"] or values["local+lexical"][1:3] == ["2.00", "7.00"]
        assert float(values["oracle"][3]) >= max(float(line[3]) for line in lines[:-1])
        everything = next(line for line in lines if line[1] == "4.00")
        assert everything[6] == "0.0000" and float(values["router at 1"][1]) <= 4


def test_a_router_takes_the_expert_that_a_fact_of_the_query_points_to() -> None:
    router: Any = load_program("router")
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 2, 400)
    features = np.stack([np.ones(400), kind + 0.1 * rng.normal(size=400), rng.normal(size=400)], axis=1)
    values = np.stack([np.where(kind, 0.9, 0.2), np.where(kind, 0.3, 0.8), np.full(400, 0.7)])  # two experts, and both
    sizes = np.array([1.0, 1.0, 2.0])
    predicted = router.cross_fit(features, values, 1.0, 5)
    chosen = router.choose(predicted, sizes, 0.0)
    assert (chosen == 1 - kind).mean() > 0.97
    cheap = router.choose(predicted, sizes, router.find_price(predicted, sizes, 1.0))
    assert sizes[cheap].mean() == 1
    both = np.stack([np.where(kind, 0.9, 0.2), np.where(kind, 0.3, 0.8), np.full(400, 0.95)])
    predicted = router.cross_fit(features, both, 1.0, 5)
    prices = [router.find_price(predicted, sizes, budget) for budget in (1.0, 1.5, 2.0)]
    spent = [sizes[router.choose(predicted, sizes, price)].mean() for price in prices]
    assert spent[0] <= 1 and spent[1] <= 1.5 and 1.5 < spent[2] <= 2 and prices[0] >= prices[1] >= prices[2] == 0
    seen = np.arange(400) % 5 != 0
    weights = router.fit_ridge(features[seen], values[:, seen], 1.0)
    assert router.cross_fit(features, values, 1.0, 5)[:, ~seen] == pytest.approx((features[~seen] @ weights).T)
