"""Heads of COIL (which tokens are kept, their vectors), and lexical weights summed over positions."""

import pytest
import torch

from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import UsageError
from moeir.heads.lexical import LexicalHead
from moeir.heads.pooling import ProjectionHead
from moeir.heads.token_vectors import CoilHead
from tests.oracles import representations as oracles

CLS, SEP = 1, 2
SIGNS = SpecialTokens(CLS, SEP, 3, query_marker=5, document_marker=6, punctuation=(4,))
IDS = [[CLS, 11, 4, 11, SEP], [CLS, 13, SEP], [CLS, SEP]]
H = 6


def tokens(side="document", silent=None):
    return PackedTokens.from_lists(IDS, side, silent)


def states(seed=0):
    return torch.randn(sum(map(len, IDS)), H, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize("separator, kept", [(False, [[1, 2, 3], [1], []]), (True, [[1, 2, 3, 4], [1, 2], [1]])])
def test_every_token_but_the_beginning_has_its_term_and_a_vector(side, separator, kept):
    torch.manual_seed(0)
    head = CoilHead(H, SIGNS, dimension=4, separator=separator)
    output = head(states(), tokens(side))
    assert output.starts.tolist() == torch.tensor([0, *map(len, kept)]).cumsum(0).tolist()
    assert output.terms.tolist() == [ids[index] for ids, positions in zip(IDS, kept, strict=True) for index in positions]
    expected = states() @ head.projection.weight.T + head.projection.bias
    rows = [int(start) + index for start, positions in zip(tokens().starts, kept, strict=False) for index in positions]
    assert torch.allclose(output.vectors, expected[rows], atol=1e-6) and output.vectors.dtype == torch.float32


def test_a_layer_norm_stands_behind_the_map_and_relu_behind_that():
    torch.manual_seed(0)
    head = CoilHead(H, SIGNS, dimension=4, layer_norm=True, relu=True)
    plain = CoilHead(H, SIGNS, dimension=4)
    plain.projection.load_state_dict(head.projection.state_dict())
    expected = torch.nn.functional.layer_norm(plain(states(), tokens()).vectors, (4,)).relu()
    assert torch.allclose(head(states(), tokens()).vectors, expected, atol=1e-6)
    dense = ProjectionHead(H, dimension=3, layer_norm=True)
    first = states()[[0, 5, 8]] @ dense.projection.weight.T
    assert torch.allclose(dense(states(), tokens()).vectors, torch.nn.functional.layer_norm(first, (3,)), atol=1e-5)


def test_projected_is_a_linear_map_with_bias_of_the_first_token():
    head = ProjectionHead(H, dimension=3)
    torch.nn.init.normal_(head.projection.bias)
    actual = head(states(), tokens()).vectors
    assert torch.allclose(actual, states()[[0, 5, 8]] @ head.projection.weight.T + head.projection.bias, atol=1e-6)


def test_half_precision_ends_in_float32():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = CoilHead(H, SIGNS, layer_norm=True)(states(), tokens()), ProjectionHead(H, layer_norm=True)(states(), tokens())
    assert {part.vectors.dtype for part in output} == {torch.float32}


@pytest.mark.parametrize("silent", [None, (1, 0, 1)])
def test_summed_lexical_weights_add_up_all_positions_that_are_looked_at(silent):
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(20, H, 1, 2, 8, initializer_range=1.0), vocabulary_head=True).eval()
    encoder.vocabulary_head.bias.data.normal_()
    output = LexicalHead(pooling="sum")(states(), tokens("query", silent), encoder)
    logits = encoder.logits(states()).detach().split([len(text) for text in IDS])
    for weights, text, quiet in zip(output.to_matrix().tolist(), logits, silent or (0, 0, 0), strict=True):
        expected = oracles.sum_pooled_lexical(text[: len(text) - quiet].tolist())
        assert weights == pytest.approx([expected.get(term, 0.0) for term in range(20)], abs=1e-5)
    assert bool((output.weights > 0).all())


def test_impossible_options_are_refused():
    with pytest.raises(UsageError, match="lexical pooling=mean: expected one of max, sum"):
        LexicalHead(pooling="mean")
    with pytest.raises(UsageError, match="exact dimension 0: expected at least 1"):
        CoilHead(H, SIGNS, dimension=0)
    with pytest.raises(UsageError, match="cls dimension 0: expected at least 1"):
        ProjectionHead(H, dimension=0)
    assert ProjectionHead(H, dimension=1)(states(), tokens()).vectors.shape == (3, 1)
