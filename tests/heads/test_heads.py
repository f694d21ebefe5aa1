"""Pooling, lexical and token vector heads: each option against a plain computation from the states."""

import math
from itertools import pairwise

import pytest
import torch

from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import UsageError
from moeir.heads.lexical import LexicalHead
from moeir.heads.pooling import POOLINGS, PoolingHead
from moeir.heads.token_vectors import TokenVectorHead
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


def vectors(representation):
    bounds = representation.starts.tolist()
    return [representation.vectors[first:last] for first, last in pairwise(bounds)]


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


def test_projections_are_linear_maps_of_the_pooled_vector_with_their_activations():
    torch.manual_seed(0)
    head = PoolingHead(pooling="mean", hidden=H, projections=("8", "5-bias-tanh"), normalise=True)
    first, second = head.projections
    assert first.linear.bias is None and {name for name, _ in head.named_parameters()} == {
        "projections.0.linear.weight", "projections.1.linear.weight", "projections.1.linear.bias",
    }  # fmt: skip
    second.linear.bias.data.normal_()
    mean = PoolingHead(pooling="mean")(states(), tokens()).vectors
    mapped = torch.tanh(mean @ first.linear.weight.T @ second.linear.weight.T + second.linear.bias)
    assert torch.allclose(head(states(), tokens()).vectors, mapped / mapped.norm(dim=1, keepdim=True), atol=1e-6)
    for text in ("", "x", "8-swish", "8-bias-bias", "8-tanh-relu", "0"):
        with pytest.raises(UsageError, match=r"projections=.*: expected a width|projections dimension 0: expected at least 1"):
            PoolingHead(hidden=H, projections=(text,))


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


def make_token_head():
    head = LexicalHead(queries="tokens", vocabulary=20, special_tokens=SIGNS)
    head.set_query_weights(torch.arange(20.0) - 11.0)
    return head


def test_queries_of_tokens_have_the_weight_of_each_token_once_and_a_rate_for_encoders_moves_it():
    head = make_token_head()
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


def test_documents_of_a_head_with_queries_of_tokens_are_read_by_the_encoder():
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(20, H, 1, 1, 8, "gelu", 1e-5, 32, 0), vocabulary_head=True)
    plain, own = (head(states(), tokens(), encoder) for head in (LexicalHead(), make_token_head()))
    assert torch.equal(plain.to_matrix(), own.to_matrix())


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


@pytest.mark.parametrize(
    "options, side, kept",
    [
        ({}, "document", [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2, 3]]),
        ({"punctuation": False}, "document", [[0, 1, 3, 4], [0, 1, 2], [0, 3]]),
        ({"punctuation": False}, "query", [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2, 3]]),
    ],
)
def test_punctuation_is_dropped_where_asked(options, side, kept):
    every = vectors(make_head()(states(), tokens(side)))
    output = vectors(make_head(**options)(states(), tokens(side)))
    for actual, text, positions in zip(output, every, kept, strict=True):
        assert torch.equal(actual, text[positions])


def test_every_text_keeps_a_token():
    """Even one that is dropped elsewhere."""
    signs = SpecialTokens(COMMA, COMMA, MASK, None, None, punctuation=(COMMA,))
    texts = PackedTokens.from_lists([[COMMA, COMMA, COMMA], [COMMA, COMMA]], "document")
    head = TokenVectorHead(H, signs, dimension=4, punctuation=False)
    assert head(states()[:5], texts).starts.tolist() == [0, 1, 2]


def test_gradients_reach_the_states_through_every_option():
    leaf_states = states().requires_grad_()
    make_head(punctuation=False, normalise=True)(leaf_states, tokens("document")).vectors.sum().backward()
    dropped = torch.tensor([number in (COMMA, 7) for text in IDS for number in text])
    assert bool((leaf_states.grad[dropped] == 0).all()) and bool((leaf_states.grad[~dropped].abs().sum(-1) > 0).all())
