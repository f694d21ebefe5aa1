"""Nested dimensions of dense experts: the formula written anew, sentence-transformers as reference, trainings, and what is served."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.records.runs import read_run
from moeir.records.texts import read_texts_by_id
from moeir.representations.dense import Dense
from moeir.training import objectives
from tests.processes import assert_same_training, read_metrics
from tests.training.test_objectives import GROUP, IGNORED, NO_FLOPS, D, Q, batch, make_leaves
from tests.training.toy_examples import finetune_by, identical, write_training_files

SCALE = 20.0
OBJECTIVES = {
    "contrastive": partial(objectives.contrastive, regularizers=NO_FLOPS),
    "competitive": partial(objectives.competitive, standardised=0.0, temperature=0.5, regularizers=NO_FLOPS),
    "kl": partial(objectives.kl, regularizers=NO_FLOPS),
    "lce": objectives.lce,
    "self-distillation": objectives.self_distillation,
}


def cut(vectors, dimension, *, normalise):
    return F.normalize(vectors[:, :dimension], dim=1) if normalise else vectors[:, :dimension]


def cut_side(side, dimension, *, normalise):
    """What --matryoshka adds for a side."""
    return {"global": side.truncate(dimension, normalise=normalise)}


def as_formula(name, toy_batch, numbers, dimensions, teacher, *, normalise):
    """The loss with a loop over the scores of all experts, those of the global one in every dimension, {dimension: weight}."""
    total, ranks = 0.0, {}
    scores = {(expert, None): toy_batch.queries[expert].scores(toy_batch.documents[expert]) for expert in ("lexical", "local")}
    for dimension in dimensions:
        queries, documents = (cut(numbers[side, "global"], dimension, normalise=normalise) for side in ("query", "document"))
        scores["global", dimension] = (SCALE if normalise else 1.0) * queries @ documents.T
    for expert, matrix in (("lexical", scores["lexical", None]), ("local", scores["local", None]), ("global", scores["global", D])):
        own = [matrix[q, q * GROUP : (q + 1) * GROUP] for q in range(Q)]
        allowed = [[n for n in range(GROUP) if (q, q * GROUP + n) not in IGNORED] for q in range(Q)]
        ranks[expert] = [1 + sum(row[n].item() > row[0].item() for n in allowed[q]) for q, row in enumerate(own)]
    summed = scores["global", D] + 0.3 * scores["lexical", None] + scores["local", None]
    for (expert, dimension), matrix in scores.items():
        for q in range(Q):
            share = 1.0
            if name == "competitive":
                worth = {one: np.exp(1 / ranks[one][q] / 0.5) for one in ranks}
                share = worth[expert] / sum(worth.values())
            own = matrix[q, q * GROUP : (q + 1) * GROUP]
            if name == "kl":
                target = teacher[q].softmax(0)
                loss = (target * (target.log() - own.log_softmax(0))).sum()
            elif name == "lce":
                loss = own.logsumexp(0) - own[0]
            else:
                columns = [n for n in range(Q * GROUP) if (q, n) not in IGNORED]
                loss = matrix[q, columns].logsumexp(0) - matrix[q, q * GROUP]
            if name == "self-distillation":
                target, share = summed[q, columns].detach().softmax(0), 0.1 if expert == "lexical" else 1.0
                loss = (loss / 4 + (target * (target.log() - matrix[q, columns].log_softmax(0))).sum() / 3) / 2
            total = total + dimensions.get(dimension, 1.0) * share * loss / Q
    if name == "self-distillation":
        rows = [summed[q, [n for n in range(Q * GROUP) if (q, n) not in IGNORED]].logsumexp(0) - summed[q, q * GROUP] for q in range(Q)]
        total = total + torch.stack(rows).mean() / 8
    return total


@pytest.mark.parametrize("weights", [{}, {3: 0.5, 2: 0.2}])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_summed_over_dimensions_and_experts_rank_by_their_whole_vectors(name, normalise, weights):
    numbers, copies = make_leaves(3), make_leaves(3)
    teacher = torch.randn(Q, GROUP, generator=torch.Generator().manual_seed(4))
    toy_batch = batch(numbers, ignored=IGNORED)
    vectors = {side: numbers[side, "global"] for side in ("query", "document")}
    if normalise:
        vectors = {side: F.normalize(one, dim=1) * (SCALE if side == "query" else 1.0) for side, one in vectors.items()}
    sides = {}
    for side, encoded in (("query", toy_batch.queries), ("document", toy_batch.documents)):
        sides[side] = EncoderOutput(encoded.representations | {"global": Dense(vectors[side])})
    shorter = {number: tuple(cut_side(one["global"], number, normalise=normalise) for one in sides.values()) for number in (3, 2)}
    whole = objectives.EncodedBatch(sides["query"], sides["document"], toy_batch.ignore_mask, 5, 10, teacher, shorter, weights)
    output = OBJECTIVES[name](whole)
    expected = as_formula(name, batch(copies), copies, {D: 1.0, 3: 1.0, 2: 1.0} | weights, teacher, normalise=normalise)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert [metric for metric in output.metrics if metric.startswith("loss.global")] == ["loss.global", "loss.global.3", "loss.global.2"]
    output.loss.backward()
    expected.backward()
    for key, leaf in numbers.items():
        torch.testing.assert_close(leaf.grad, copies[key].grad, atol=1e-5, rtol=1e-4, msg=str(key))


def test_of_a_sum_of_experts_the_dense_one_is_cut():
    numbers = make_leaves(2)
    plain, groups = batch(numbers), {"hybrid": ("global", "lexical")}
    sides = [EncoderOutput(dict(one.representations), {}, groups) for one in (plain.queries, plain.documents)]
    shorter = {2: tuple(cut_side(side["global"], 2, normalise=False) for side in sides)}
    scores = objectives.batch_scores(objectives.EncodedBatch(*sides, plain.ignore_mask, 0, 10, None, shorter))
    lexical = sides[0]["lexical"].scores(sides[1]["lexical"])
    torch.testing.assert_close(scores["hybrid.2"], lexical + numbers["query", "global"][:, :2] @ numbers["document", "global"][:, :2].T)
    assert list(scores) == ["hybrid", "hybrid.2"]


def test_it_is_the_matryoshka_loss_of_sentence_transformers(tiny_model_without_dropout, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    checkpoint = build_checkpoint(tiny_model_without_dropout, "dense:pooling=mean,normalise=true,scale=20", {"document_length": 64})
    checkpoint.save(tmp_path)
    texts = (["an owl", "bees and bats", "a fox"], ["owls hunt", "the bee", "cats"])
    model = library.SentenceTransformer(str(tmp_path), device="cpu")
    reference = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model, scale=20.0), [32, 16, 4], [1.0, 0.5, 0.25])
    expected = reference([model.preprocess(side) for side in texts], None)
    expected.backward()
    queries, documents = (checkpoint.architecture(checkpoint.tokenize(part, side)) for part, side in zip(texts, ("query", "document")))
    objective = objectives.nest_dimensions(objectives.contrastive, "16:0.5, 4:0.25,32", checkpoint)
    loss = objective(objectives.EncodedBatch(queries, documents, torch.zeros(3, 3, dtype=torch.bool), 0, 1)).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    theirs = next(parameter for name, parameter in model.named_parameters() if "word_embeddings" in name)
    torch.testing.assert_close(checkpoint.architecture.encoder.embeddings.words.weight.grad, theirs.grad, atol=1e-5, rtol=1e-3)


@pytest.fixture
def train(tiny_model_without_dropout, tmp_path):
    """`train(size, *flags)`: a training by so many processes -> its folder and its messages."""
    write_training_files(tmp_path)

    def trained(size, *flags, arch="came:shared_layers=2,local_dim=8,normalise=true"):
        output, model = tmp_path / f"by-{size}", ("--model", tiny_model_without_dropout, "--arch", arch)
        return output, finetune_by(size, tmp_path, *model, *flags, output=output)

    return trained


def test_two_processes_with_gradient_cache_learn_what_one_does(train):
    flags = ("--objective", "competitive:standardised=0.3", "--matryoshka", "16,8")
    alone, (result,) = train(1, *flags)
    assert result["code"] == 0, result
    steps = read_metrics(alone)
    assert {"loss.global", "loss.global.16", "loss.global.8", "share.global"} <= steps[0].keys() and "share.global.8" not in steps[0]
    pair, results = train(2, *flags, "--gradient-cache", 60)
    assert [one["code"] for one in results] == [0, 0], results
    assert_same_training(alone, pair)


@pytest.mark.parametrize(
    ("arch", "dimensions", "message"),
    [
        ("dense", "64,8", "--matryoshka 64: the vectors have 32 numbers; expected dimensions of 1 to 32"),
        ("dense:dimension=8", "16", "--matryoshka 16: the vectors have 8 numbers"),
        ("dense", "8;4", "--matryoshka 8;4: expected numbers of 1 or more, as in 512,256,128,64"),
        ("dense", "8,0", "--matryoshka 8,0: expected numbers of 1 or more"),
        ("dense", "32:0.5,8", "--matryoshka 32:0.5: the whole vector weighs 1; set the weights of shorter ones"),
        ("dense", "8:x", "--matryoshka 8: expected a number, found 'x'"),
        ("dense", "8:nan", "--matryoshka 8: expected a number, found 'nan'"),
        ("dense", "8:0.5,4:0", "--matryoshka 8:0.5,4:0: expected weights above 0"),
        ("dense", "9" * 5000, "(5,001 characters) expected numbers of 1 or more"),
        ("splade", "8", "--matryoshka: splade has no dense expert"),
        ("came:shared_layers=2,experts=lexical+local", "8", "has no dense expert with an option `dimension`"),
        ("dense:dimension=33", "8", "dimension=33: expected 1 to 32, the width of the vectors"),
    ],
)
def test_dimensions_that_there_are_not_are_refused(arch, dimensions, message, train):
    _, (result,) = train(1, "--matryoshka", dimensions, arch=arch)
    assert result["code"] == 2 and message in result["stderr"], result


def test_a_dimension_is_cut_encoded_searched_and_taken_back(moeir, toy, tiny_model_with_head, tmp_path):
    def run(command, *flags, output, code=0):
        result = moeir(command, *flags, "--output", tmp_path / output)
        assert result.code == code, result.stderr
        return result.stderr

    arch = "came:shared_layers=2,local_dim=8,normalise=true,global_scale=5"
    run("init", "--model", tiny_model_with_head, "--arch", arch, "--query-length", 16, "--document-length", 32, output="whole")
    run("init", "--model", tmp_path / "whole", "--arch", "came:dimension=8", output="cut")
    run("init", "--model", tmp_path / "cut", "--arch", "came:dimension=32", output="again")
    message = run("init", "--model", tmp_path / "cut", "--arch", "came:dimension=33", output="x", code=2)
    assert "dimension=33: expected 1 to 32" in message
    whole, short, again = (open_checkpoint(tmp_path / name) for name in ("whole", "cut", "again"))
    assert identical(short.architecture.state_dict(), whole.architecture.state_dict())
    for side, scale in (("query", 5.0), ("document", 1.0)):
        full, few, same = (one.encode(["owl", "The bee dances."], side)["global"].vectors for one in (whole, short, again))
        torch.testing.assert_close(few, F.normalize(full[:, :8], dim=1) * scale, atol=1e-6, rtol=0)
        assert torch.equal(same, full)
    run("encode", "--model", tmp_path / "cut", "--corpus", toy / "corpus.jsonl", "--dtype", "float32", output="enc")
    assert np.load(next((tmp_path / "enc").rglob("global/vectors.npy"))).shape[1] == 8
    run("index", "--encodings", tmp_path / "enc", output="index")
    search = ("search", "--index", tmp_path / "index", "--queries", toy / "test-queries.tsv")
    run(*search, "--expert", "global", output="run.trec")
    queries, documents = (read_texts_by_id(toy / name) for name in ("test-queries.tsv", "corpus.jsonl"))
    hits = read_run(tmp_path / "run.trec")
    for query, text in queries.items():
        (name, score), *_ = hits.hits(query)
        pair = short.encode([text.content], "query")["global"], short.encode([documents[name].content])["global"]
        assert score == pytest.approx(pair[0].scores(pair[1]).item(), rel=2e-3, abs=2e-3)
    assert "checkpoint" in run(*search, "--model", tmp_path / "whole", output="y.trec", code=4)
