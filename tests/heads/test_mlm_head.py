"""A fitted vocabulary head recovers the input words and starts sparse."""

import pytest
import torch

from moeir.backbones.config import PreNormConfig
from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.heads import mlm_head

V, H, COUNT = 300, 32, 3000


@pytest.fixture(scope="module")
def read():
    """States that are a noisy linear map of each token's own word, as those of an encoder are."""
    torch.manual_seed(0)
    words = torch.randn(V, H) * 0.05 + 0.02
    ids = torch.randint(0, V, (COUNT,))
    states = words[ids] @ torch.randn(H, H) + 0.05 * torch.randn(COUNT, H) + 0.3
    return words, states, ids


def fit_head(inputs, activation="gelu", seed=0, **options):
    torch.manual_seed(seed)
    head = Encoder(EncoderConfig(V, H, 1, 4, 8, activation=activation), vocabulary_head=True).vocabulary_head
    return head, mlm_head.fit_mlm_head(head, *inputs, **options)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu"])
def test_most_tokens_find_their_own_word(read, activation):
    head, report = fit_head(read, activation)
    assert report.token_count == COUNT and report.top1_share > 0.9
    words, states, ids = read
    with torch.no_grad():
        logits = head(states) @ words.T + head.bias
    assert (logits.argmax(1) == ids).float().mean() > 0.9  # of the head itself, not only of the report


@pytest.mark.parametrize("positive, strongest", [(2e-2, 2.0), (1e-2, 5.0)])
def test_the_share_of_positive_pairs_and_the_strongest_terms_are_near_those_asked_for(read, positive, strongest):
    head, report = fit_head(read, positive=positive, strongest=strongest)
    assert report.positive_share == pytest.approx(positive, rel=0.1)
    words, states, _ = read
    with torch.no_grad():
        logits = head(states) @ words.T + head.bias
    assert (logits > 0).float().mean() == pytest.approx(positive, rel=0.2)
    assert logits.amax(1).median() == pytest.approx(strongest, rel=0.1)


def test_the_report_counts_the_pairs_above_zero_and_not_the_one_at_zero(read):
    words, states, ids = read
    _, report = fit_head((words, states[:100], ids[:100]), positive=2e-2)
    assert report.positive_share * V * 100 == pytest.approx(2e-2 * V * 100, abs=0.5)


def test_the_map_of_a_head_without_bias_is_the_ridge_regression_on_centred_words(read):
    words, states, ids = (part.double() if part.is_floating_point() else part for part in read)
    head = Encoder(EncoderConfig(V, H, 1, 4, 8, prenorm=PreNormConfig((None,), (1e4,))), vocabulary_head=True).vocabulary_head
    report = mlm_head.fit_mlm_head(head, *read, ridge=0.1)
    assert head.transform.bias is None and report.top1_share > 0.8
    targets = torch.nn.functional.normalize(words - words.mean(0), dim=-1)[ids]
    penalty = (0.1 * states.square().sum(0).mean()).sqrt() * torch.eye(H)  # as further rows of a least-squares problem
    rows, wanted = torch.cat([states, penalty]), torch.cat([targets - targets.mean(0), torch.zeros(H, H)])
    expected = torch.linalg.lstsq(rows, wanted).solution
    expected = (expected / (states @ expected).std()).T.float()
    torch.testing.assert_close(head.transform.weight.detach(), expected, rtol=1e-3, atol=1e-4)


def test_weights_are_finite_of_a_few_tokens_too_and_nothing_random_remains(read):
    words, states, ids = read
    for inputs in (read, (words, states[:2], ids[:2])):
        first, second = (fit_head(inputs, seed=seed)[0].state_dict() for seed in (1, 2))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert all(bool(value.isfinite().all()) for value in first.values())


def test_a_small_vocabulary_keeps_two_terms_a_token(read):
    head, report = fit_head(read, positive=2e-4)
    assert report.positive_share == pytest.approx(2 / V, rel=0.1)
    assert head.norm.weight.abs().max() < 1000
