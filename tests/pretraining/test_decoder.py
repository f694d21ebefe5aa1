"""Decoders: inputs, attention masks, parameter counts, gradients."""

import math
from dataclasses import replace

import pytest
import torch

from moeir.backbones.config import EncoderConfig
from moeir.backbones.encoder import VocabularyHead
from moeir.pretraining.decoder import BidirectionalDecoder, CausalDecoder
from tests.oracles import pretraining as oracles
from tests.pretraining.toy_models import BERT, SHAPES, SPANS, architecture, mask_texts

BASE = EncoderConfig(vocabulary=30522, hidden=768, layers=12, heads=12, intermediate_size=3072)


def vectors(count=4, seed=3):
    return torch.randn(count, BERT.hidden, generator=torch.Generator().manual_seed(seed))


def perturb(decoder, seed=4):
    torch.manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return decoder


@pytest.mark.parametrize(
    "shape, window, layers", [(BERT, 1, 1), (BERT, 3, 1), (BERT, -1, 1), *((shape, 2, 2) for shape in SHAPES.values())]
)
def test_one_changed_token_moves_what_sees_it_and_nothing_else(shape, window, layers):
    """Token j is visible from j to j + window - 1, through two blocks to j + 2 (window - 1), or from every later position."""
    model, decoder = architecture(shape=shape), perturb(CausalDecoder(shape, layers=layers, window=window))
    texts = mask_texts([SPANS[2], SPANS[0]], "document", set(), set())
    before = decoder.decode_states(vectors(2), texts, model.encoder)
    for index in range(1, 7):  # of the first text
        plain = texts.original_ids.clone()
        plain[index] = 33
        affected = (decoder.decode_states(vectors(2), replace(texts, original_ids=plain), model.encoder) - before).abs().amax(1) > 1e-6
        reach = 7 if window == -1 else layers * (window - 1)
        assert affected.nonzero()[:, 0].tolist() == list(range(index, min(7, index + reach + 1))), index
    changed = vectors(2)
    changed[0] *= -1.0  # a shift would be normalised away
    affected = (decoder.decode_states(changed, texts, model.encoder) - before).abs().amax(1) > 1e-6
    assert affected.nonzero()[:, 0].tolist() == list(range(7)), "the vector is seen from everywhere in its text"
    plain = texts.original_ids.clone()
    plain[0] = 33
    after = decoder.decode_states(vectors(2), replace(texts, original_ids=plain), model.encoder)
    assert torch.equal(after, before), "the first word is not"


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_in_a_window_the_order_of_words_matters(shape):
    """Also for embeddings without positions."""
    model, decoder = architecture(shape=shape), perturb(CausalDecoder(shape, window=3))
    texts = (mask_texts([text], "document", set()) for text in ([1, 7, 9, 8], [1, 9, 7, 8]))
    one, other = (decoder.decode_states(vectors(1), text, model.encoder) for text in texts)
    assert (one[3] - other[3]).abs().max() > 1e-4


@pytest.mark.parametrize("window", [-1, 1, 3])
def test_the_causal_loss_is_that_of_a_padded_batch(window):
    model, decoder = architecture(), perturb(CausalDecoder(BERT, window=window))
    results = []
    for loss in (
        lambda rows: oracles.causal_decoder_loss(decoder, model.encoder, rows, SPANS, window),
        lambda rows: decoder(rows, mask_texts(SPANS, "document", *[set()] * 4), model.encoder).value,
    ):
        rows = vectors().requires_grad_()
        value = loss(rows)
        parameters = [rows, *decoder.parameters(), *model.encoder.embeddings.parameters(), *model.encoder.vocabulary_head.parameters()]
        results.append([value.detach(), *torch.autograd.grad(value, parameters)])
    for expected, value in zip(*results, strict=True):
        assert torch.allclose(value, expected, atol=1e-5)


def test_every_token_but_the_first_is_told_from_the_one_before():
    model, decoder = architecture(), perturb(CausalDecoder(BERT))
    loss = decoder(vectors(), mask_texts(SPANS, "document", *[set()] * 4), model.encoder)
    alone = [decoder(vectors()[[row]], mask_texts([text], "document", set()), model.encoder) for row, text in enumerate(SPANS)]
    assert loss.count == sum(map(len, SPANS)) - 4 and [part.count for part in alone] == [5, 3, 6, 3]
    assert int(loss.correct) == sum(int(part.correct) for part in alone)
    assert torch.allclose(loss.value * loss.count, sum(part.value * part.count for part in alone), atol=1e-4)
    assert decoder(vectors(1), mask_texts([[1]], "document", set()), model.encoder).count == 0


def test_sizes_are_those_of_bert_base():
    with torch.device("meta"):
        block, head, words = CausalDecoder(BASE), BidirectionalDecoder(BASE, layers=2), VocabularyHead(BASE)
    count = {part: sum(parameter.numel() for parameter in part.parameters()) for part in (block.blocks, block.norm, head, words)}
    assert list(count.values()) == [7_087_872, 1_536, 14_175_744, 622_650]


def test_weights_start_as_the_release_draws_them():
    torch.manual_seed(0)
    shape = replace(BERT, hidden=64, initializer_range=0.02)
    decoder = CausalDecoder(shape, layers=2)
    for block in decoder.blocks:
        assert block.qkv.weight.std().item() == pytest.approx(0.02, rel=0.1) and not block.qkv.bias.any()
        for back in (block.output, block.down):
            assert back.weight.std().item() == pytest.approx(0.02 / math.sqrt(4), rel=0.1)
    assert BidirectionalDecoder(shape, layers=1).layers[0].feedforward.up.weight.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bidirectional_layers_are_the_encoders_own_kind_and_see_all_of_one_text(shape):
    model, decoder = architecture(shape=shape), perturb(BidirectionalDecoder(shape, layers=2))
    texts = mask_texts(SPANS, "document", *[set()] * 4)
    actual = decoder(vectors(), model.encoder.embeddings(texts.tokens), texts.tokens).split(texts.tokens.lengths)
    for row, (text, states) in enumerate(zip(SPANS, actual, strict=True)):
        alone = model.encoder.embeddings(mask_texts([text], "document", set()).tokens)
        assert torch.allclose(states, oracles.run_layers(decoder.layers, vectors()[row], alone), atol=1e-5)
    assert type(decoder.layers[0].attention) is type(model.encoder.layers[1].attention)
    assert type(decoder.layers[0].feedforward) is type(model.encoder.layers[0].feedforward), "without experts"
    assert (decoder.layers[1].final_norm is None) == (shape.prenorm is None)
