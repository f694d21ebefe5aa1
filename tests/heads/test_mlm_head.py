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


@pytest.mark.parametrize("positive", [2e-2, 1e-2])
def test_the_share_of_positive_pairs_is_near_the_one_asked_for(read, positive):
    head, report = fit_head(read, positive=positive)
    assert report.positive_share == pytest.approx(positive, rel=0.1)
    words, states, _ = read
    with torch.no_grad():
        assert ((head(states) @ words.T + head.bias) > 0).float().mean() == pytest.approx(positive, rel=0.2)


def test_the_report_counts_the_pairs_above_zero_and_not_the_one_at_zero(read):
    words, states, ids = read
    _, report = fit_head((words, states[:100], ids[:100]), positive=2e-2)
    assert report.positive_share * V * 100 == pytest.approx(2e-2 * V * 100, abs=0.5)


def test_the_map_of_a_head_without_bias_is_the_ridge_regression_on_centred_words(read):
    words, states, ids = (part.double() if part.is_floating_point() else part for part in read)
    head = Encoder(EncoderConfig(V, H, 1, 4, 8, prenorm=PreNormConfig((None,), (1e4,))), vocabulary_head=True).vocabulary_head
    mlm_head.fit_mlm_head(head, *read, ridge=0.1)
    targets = torch.nn.functional.normalize(words - words.mean(0), dim=-1)[ids]
    penalty = (0.1 * states.square().sum(0).mean()).sqrt() * torch.eye(H)  # as further rows of a least-squares problem
    rows, wanted = torch.cat([states, penalty]), torch.cat([targets - targets.mean(0), torch.zeros(H, H)])
    expected = torch.linalg.lstsq(rows, wanted).solution
    expected = (expected / (states @ expected).std()).T.float()
    torch.testing.assert_close(head.transform.weight.detach(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("strongest", [2.0, 5.0])
def test_the_strongest_terms_start_near_the_strength_asked_for(read, strongest):
    head, _ = fit_head(read, strongest=strongest)
    words, states, _ = read
    with torch.no_grad():
        best = (head(states) @ words.T + head.bias).amax(1)
    assert best.median() == pytest.approx(strongest, rel=0.1)


def test_weights_are_finite_and_nothing_random_remains(read):
    first, second = fit_head(read, seed=1)[0].state_dict(), fit_head(read, seed=2)[0].state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(bool(value.isfinite().all()) for value in first.values())


def test_a_few_tokens_are_enough_to_stay_finite(read):
    words, states, ids = read
    head, _ = fit_head((words, states[:2], ids[:2]))
    assert all(bool(value.isfinite().all()) for value in head.state_dict().values())


def test_a_small_vocabulary_keeps_two_terms_a_token(read):
    head, report = fit_head(read, positive=2e-4)
    assert report.positive_share == pytest.approx(2 / V, rel=0.1)
    assert head.norm.weight.abs().max() < 1000
