"""Pooling, lexical and token vector heads: each option against a plain computation from the states; a fitted vocabulary head recovers the
input words and starts sparse."""

import math

import pytest
import torch

from moeir.backbones.config import PreNormConfig
from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import UsageError
from moeir.heads import mlm_head
from moeir.heads.lexical import LexicalHead
from moeir.heads.pooling import POOLINGS, PoolingHead
from moeir.heads.token_vectors import TokenVectorHead
from tests.architectures.folders import assert_refused
from tests.oracles import representations as oracles

CLS, SEP, MASK, COMMA = 1, 2, 3, 4
SIGNS = SpecialTokens(CLS, SEP, MASK, query_marker=5, document_marker=6, punctuation=(COMMA, 7))
IDS = [[CLS, 11, COMMA, 12, SEP], [CLS, 13, SEP], [CLS, COMMA, 7, SEP]]
H = 6


def tokens(side="document", silent=None):
    return PackedTokens.from_lists(IDS, side, silent)


def states(seed=0):
    return torch.randn(sum(map(len, IDS)), H, generator=torch.Generator().manual_seed(seed))


def rows(states):
    return [part.tolist() for part in states.split([len(text) for text in IDS])]


def make_head(**options):
    torch.manual_seed(0)
    return TokenVectorHead(H, SIGNS, dimension=4, **options)


def unit(vector):
    return [value / math.sqrt(oracles.dense(vector, vector)) for value in vector]


def pool_plainly(pooling, text):
    """A pooled text, from tokens that are looked at, in lists."""
    if pooling in ("cls", "last"):
        return text[0 if pooling == "cls" else -1]
    if pooling == "max":
        return [max(vector[number] for vector in text) for number in range(H)]
    weights = [number if pooling == "weighted_mean" else 1 for number, _ in enumerate(text, 1)]
    return [sum(weight * vector[number] for weight, vector in zip(weights, text)) / sum(weights) for number in range(H)]


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("silent", [None, (1, 0, 2)])
def test_a_text_is_pooled_over_the_tokens_that_are_looked_at(pooling, silent):
    for normalise in (False, True) if pooling in ("cls", "mean") else (False,):
        head = PoolingHead(pooling=pooling, normalise=normalise)
        output = head(states(), tokens("query", silent)).vectors
        for actual, text, quiet in zip(output, rows(states()), silent or (0, 0, 0), strict=True):
            seen = text if pooling == "cls" else text[: len(text) - quiet]
            expected = pool_plainly(pooling, seen)
            assert actual.tolist() == pytest.approx(unit(expected) if normalise and any(expected) else expected, abs=1e-6)


def test_projections_that_are_no_maps_are_refused():
    for text in ("", "x", "8-swish", "8-bias-bias", "8-tanh-relu", "0"):
        words = r"projections=.*: expected a width|projections dimension 0: expected at least 1"
        assert_refused(UsageError, words, PoolingHead, hidden=H, projections=(text,))


def test_vectors_too_long_for_float32_are_not_numbers_and_all_others_are_those_of_torch():
    plain, huge = states(), states()
    huge[3] = 3e38
    for head in (PoolingHead(pooling="mean", normalise=True), make_head(normalise=True)):
        output, normal = head(huge, tokens()).vectors, head(plain, tokens()).vectors
        assert output[-1].isfinite().all() and not output.eq(0).all(-1).any() and output.isnan().all(-1).sum() == 1
        head.normalise = False
        assert torch.equal(normal, torch.nn.functional.normalize(head(plain, tokens()).vectors))


@pytest.mark.parametrize("silent", [None, (1, 0, 2)])
def test_lexical_weights_are_the_saturated_maxima_of_the_logits(silent):
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(20, H, 1, 2, 8, initializer_range=1.0), vocabulary_head=True).eval()
    encoder.vocabulary_head.bias.data.normal_()
    encoder.vocabulary_head.bias.data[7] = encoder.embeddings.words.weight.data[7] = 0.0  # a logit of 0, which is no weight
    output = LexicalHead()(states(), tokens("query", silent), encoder)
    logits = rows(encoder.logits(states()).detach())
    actual = [row.tolist() for row in output.to_matrix()]
    for weights, text, quiet in zip(actual, logits, silent or (0, 0, 0), strict=True):
        expected = oracles.lexical(text[: len(text) - quiet])
        assert weights == pytest.approx([expected.get(term, 0.0) for term in range(20)], abs=1e-5)
    assert bool((output.weights > 0).all())


def test_queries_of_tokens_have_the_weight_of_each_token_once_and_a_rate_for_encoders_moves_it():
    head = LexicalHead(queries="tokens", vocabulary=20, special_tokens=SIGNS)
    head.set_query_weights(torch.arange(20.0) - 11.0)
    assert head.state_dict().keys() == {"query_weights"}
    texts = [[CLS, 5, 13, 12, 13, 11, SEP], [CLS, SEP, MASK], [CLS, 14, SEP]]
    output = head(None, PackedTokens.from_lists(texts, "query"), Encoder(EncoderConfig(20, H, 1, 1, 8, "gelu", 1e-5, 32, 0)))
    assert output.starts.tolist() == [0, 2, 2, 3] and output.vocabulary == 20, "a weight of 0 or less is none, a special token is no term"
    assert output.terms.tolist() == [12, 13, 14] and output.weights.tolist() == pytest.approx([1.0, 2.0, 3.0])
    output.weights[2].backward()
    assert head.query_weights.grad.count_nonzero() == 1
    torch.optim.AdamW(head.parameters(), lr=5e-5).step()
    after = head.weigh_tokens(PackedTokens.from_lists(texts, "query")).weights
    assert (output.weights - after)[2].item() == pytest.approx(0.005, rel=1e-2)


def test_lexical_weights_are_positive_under_autocast_too():
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(3000, H, 1, 2, 8, initializer_range=0.02), vocabulary_head=True).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = LexicalHead()(states(), tokens(), encoder)
    assert output.weights.dtype == torch.float32 and bool((output.weights > 0).all())


def test_tokenwise_is_one_linear_map_without_bias_and_of_length_1_if_normalised():
    head, unit = make_head(), make_head(normalise=True)
    assert [name for name, _ in head.named_parameters()] == ["projection.weight"]
    expected = states() @ head.projection.weight.T
    for side in ("query", "document"):
        assert torch.allclose(head(states(), tokens(side)).vectors, expected, atol=1e-6)
    assert torch.allclose(unit(states(), tokens()).vectors, torch.nn.functional.normalize(expected, dim=-1))


def test_every_text_keeps_a_token():
    signs = SpecialTokens(COMMA, COMMA, MASK, None, None, punctuation=(COMMA,))
    texts = PackedTokens.from_lists([[COMMA, COMMA, COMMA], [COMMA, COMMA]], "document")
    head = TokenVectorHead(H, signs, dimension=4, punctuation=False)
    assert head(states()[:5], texts).starts.tolist() == [0, 1, 2]


V, WIDTH, COUNT = 300, 32, 3000


@pytest.fixture(scope="module")
def read():
    """States that are a noisy linear map of each token's own word, as those of an encoder are."""
    torch.manual_seed(0)
    words = torch.randn(V, WIDTH) * 0.05 + 0.02
    ids = torch.randint(0, V, (COUNT,))
    states = words[ids] @ torch.randn(WIDTH, WIDTH) + 0.05 * torch.randn(COUNT, WIDTH) + 0.3
    return words, states, ids


def fit_head(inputs, activation="gelu", seed=0, **options):
    torch.manual_seed(seed)
    head = Encoder(EncoderConfig(V, WIDTH, 1, 4, 8, activation=activation), vocabulary_head=True).vocabulary_head
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
    head = Encoder(EncoderConfig(V, WIDTH, 1, 4, 8, prenorm=PreNormConfig((None,), (1e4,))), vocabulary_head=True).vocabulary_head
    report = mlm_head.fit_mlm_head(head, *read, ridge=0.1)
    assert head.transform.bias is None and report.top1_share > 0.8
    targets = torch.nn.functional.normalize(words - words.mean(0), dim=-1)[ids]
    penalty = (0.1 * states.square().sum(0).mean()).sqrt() * torch.eye(WIDTH)  # as further rows of a least-squares problem
    rows, wanted = torch.cat([states, penalty]), torch.cat([targets - targets.mean(0), torch.zeros(WIDTH, WIDTH)])
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
