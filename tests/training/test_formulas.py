"""Losses, ranks, shares and penalties against loops and the worked values of specs/came §2."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.architectures.base import EncoderOutput
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from moeir.training import competition, losses, regularizers
from tests.oracles import training as oracles

quick_settings = settings(deadline=None, max_examples=40)
half_integers = st.integers(-3, 3).map(lambda number: number / 2)  # many ties


@st.composite
def score_matrices(draw):
    """scores [Q, N], positives [Q], ignore_mask [Q, N]; a positive is never ignored."""
    queries, documents = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    scores = draw(st.lists(st.lists(half_integers, min_size=documents, max_size=documents), min_size=queries, max_size=queries))
    positives = draw(st.lists(st.integers(0, documents - 1), min_size=queries, max_size=queries))
    ignored = draw(st.lists(st.lists(st.booleans(), min_size=documents, max_size=documents), min_size=queries, max_size=queries))
    mask = torch.tensor(ignored)
    mask[torch.arange(queries), torch.tensor(positives)] = False
    return torch.tensor(scores), torch.tensor(positives), mask


def masked_columns(mask):
    return [set(row.nonzero()[:, 0].tolist()) for row in mask]


@quick_settings
@given(score_matrices())
def test_contrastive_is_that_of_the_loop(given_):
    scores, positives, ignored = given_
    expected = [oracles.info_nce(*parts) for parts in zip(scores.tolist(), positives.tolist(), masked_columns(ignored), strict=True)]
    assert losses.info_nce(scores, positives, ignored).tolist() == pytest.approx(expected, abs=1e-5)


@quick_settings
@given(score_matrices(), st.sampled_from(competition.TIES))
def test_ranks_are_those_of_the_loop(given_, ties):
    scores, positives, ignored = given_
    rows = zip(scores.tolist(), positives.tolist(), masked_columns(ignored), strict=True)
    assert competition.positive_ranks(scores, positives, ignored, ties).tolist() == [oracles.positive_rank(*row, ties) for row in rows]


@pytest.mark.parametrize(
    "ranks, temperature, expected",
    [
        ((1, 2, 4), 2.0, (0.4055, 0.3158, 0.2787)),
        ((3, 3, 3), 0.5, (1 / 3, 1 / 3, 1 / 3)),
        ((1, 8, 8), 0.5, (0.7421, 0.12895, 0.12895)),
        ((1, 8, 8), 2.0, (0.4364, 0.2818, 0.2818)),
    ],
)
def test_shares_are_the_worked_values_of_the_paper(ranks, temperature, expected):
    values = competition.expert_shares(1 / torch.tensor(ranks, dtype=torch.float32)[:, None], temperature)[:, 0].tolist()
    assert values == pytest.approx(expected, abs=6e-5)


def test_shares_are_constants():
    assert not competition.expert_shares(torch.ones(3, 2, requires_grad=True), 0.5).requires_grad


@pytest.mark.parametrize("queries", [1, 2, 3, 8])
def test_permuted_shares_are_the_same_shares_and_no_querys_own(queries):
    shares = torch.arange(3.0 * queries).view(3, queries)
    orders, state = set(), torch.get_rng_state()
    for step in range(30):
        permuted = competition.permute_queries(shares, step)
        assert torch.equal(permuted, competition.permute_queries(shares, step)), "of the step alone"
        assert torch.equal(permuted.sort(1).values, shares) and torch.equal(permuted - permuted[:1], (shares - shares[:1]))
        assert queries == 1 or not bool((permuted == shares).any())
        orders.add(tuple(permuted[0].tolist()))
    assert torch.equal(torch.get_rng_state(), state), "the random numbers of the training are left alone"
    assert len(orders) == {1: 1, 2: 1, 3: 2}.get(queries, len(orders)) and (queries < 8 or len(orders) > 20)


@quick_settings
@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(1, 8).map(lambda n: n / 4), max_size=4), min_size=1, max_size=4))
def test_flops_is_that_of_the_loop(texts):
    matrix = torch.zeros(len(texts), 6)
    for row, text in enumerate(texts):
        for term, weight in text.items():
            matrix[row, term] = weight
    assert regularizers.flops(Sparse.from_matrix(matrix).term_usage()[0]).item() == pytest.approx(oracles.flops_penalty(texts, 6), abs=1e-5)


def test_flops_has_the_gradient_of_the_plain_form():
    matrix = torch.rand(4, 6) + 0.1
    first, second = matrix.clone().requires_grad_(), matrix.clone().requires_grad_()
    regularizers.flops(Sparse.from_matrix(first).term_usage()[0]).backward()
    second.mean(0).square().sum().backward()
    assert torch.allclose(first.grad, second.grad)


def test_the_uniform_loss_is_the_loss_of_equal_scores_over_the_candidates_that_are_left():
    sides = (EncoderOutput({"global": Dense(torch.zeros(count, 3))}) for count in (2, 8))
    ignored = torch.zeros(2, 8, dtype=torch.bool)
    ignored[0, 5] = ignored[0, 6] = ignored[1, 1] = True
    batch = losses.EncodedBatch(*sides, ignored, 0, 1)
    facts = losses.contrastive_per_score(batch, losses.batch_scores(batch))[1]
    expected = torch.tensor([6.0, 7.0]).log().mean().item()
    assert facts["uniform_loss"].item() == pytest.approx(expected) and facts["loss.global"].item() == pytest.approx(expected)
