"""Our encoder gives the numbers of `transformers`, for every text of a batch, whatever else is in the batch."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM, BertModel

from moeir.backbones.config import EncoderConfig, PreNormConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.families import weights_io
from moeir.backbones.layers import compile_layers, set_attention_dropout
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError

LENGTHS = (5, 1, 7, 7, 2, 12)
SHAPES = {
    "gelu": {"hidden_act": "gelu"},
    "gelu_new": {"hidden_act": "gelu_new", "num_attention_heads": 1, "layer_norm_eps": 1e-6},
    "relu": {"hidden_act": "relu", "type_vocab_size": 1, "num_hidden_layers": 1},
    "wide": {"hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 20, "type_vocab_size": 4, "num_hidden_layers": 3},
}
SIZES = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def make_config(**changes):
    return BertConfig(**(SIZES | {"max_position_embeddings": 16, "initializer_range": 0.3} | changes))


def randomize_weights(model, seed=3):
    """Every parameter random, biases and normalisations too."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def make_pair(folder, kind=BertModel, **changes):
    """A model of transformers with random weights, and ours read from its files."""
    theirs = randomize_weights(kind(make_config(**changes)))
    theirs.save_pretrained(folder)
    return theirs, weights_io.read_encoder(folder, vocabulary_head=None).eval()


def random_ids(lengths=LENGTHS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, SIZES["vocab_size"], (length,), generator=generator).tolist() for length in lengths]


def pad_batch(ids):
    longest = max(map(len, ids))
    batch = torch.tensor([text + [0] * (longest - len(text)) for text in ids])
    return {"input_ids": batch, "attention_mask": torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in ids])}


def is_close(actual, expected):
    return (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_states_are_those_of_transformers(name, tmp_path):
    theirs, ours = make_pair(tmp_path, **SHAPES[name])
    ids = random_ids()
    expected = theirs(**pad_batch(ids))
    states = ours(PackedTokens.from_lists(ids, "document"))
    for text, part in enumerate(states.split(LENGTHS)):
        assert is_close(part, expected.last_hidden_state[text, : LENGTHS[text]]), text
        alone = theirs(input_ids=torch.tensor([ids[text]])).last_hidden_state[0]
        assert is_close(part, alone), text


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_vocabulary_logits_are_those_of_transformers(name, tmp_path):
    theirs, ours = make_pair(tmp_path, BertForMaskedLM, **SHAPES[name])
    ids = random_ids()
    expected = theirs(**pad_batch(ids)).logits
    logits = ours.logits(ours(PackedTokens.from_lists(ids, "document"))).split(LENGTHS)
    for text, part in enumerate(logits):
        assert is_close(part, expected[text, : LENGTHS[text]]), text


@torch.no_grad()
def test_segments_are_those_of_transformers(tmp_path):
    theirs, ours = make_pair(tmp_path)
    ids = random_ids()
    segments = [[int(position >= 3) for position in range(len(text))] for text in ids]
    tokens = PackedTokens.from_lists(ids, "document")
    tokens = replace(tokens, segments=torch.tensor([number for text in segments for number in text]))
    for text, part in enumerate(ours(tokens).split(LENGTHS)):
        expected = theirs(input_ids=torch.tensor([ids[text]]), token_type_ids=torch.tensor([segments[text]])).last_hidden_state[0]
        assert is_close(part, expected), text


@torch.no_grad()
def test_silent_tokens_are_an_attention_mask_of_transformers(tmp_path):
    """ColBERT's [MASK]s attend to the query and yield vectors, but are not attended to."""
    theirs, ours = make_pair(tmp_path)
    ids, silent = random_ids(), (2, 0, 3, 0, 1, 11)
    states = ours(PackedTokens.from_lists(ids, "query", silent)).split(LENGTHS)
    for text, part in enumerate(states):
        mask = [1] * (LENGTHS[text] - silent[text]) + [0] * silent[text]
        expected = theirs(input_ids=torch.tensor([ids[text]]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
        assert is_close(part, expected), text


@settings(deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), seed=st.integers(0, 99))
@torch.no_grad()
def test_the_company_of_a_text_does_not_matter(lengths, seed):
    torch.manual_seed(1)
    encoder = Encoder(EncoderConfig(61, 24, 2, 4, 40, positions=16, initializer_range=0.3)).eval()
    ids = random_ids(lengths, seed)
    together = encoder(PackedTokens.from_lists(ids, "document")).split(lengths)
    for text, part in zip(ids, together, strict=True):
        assert is_close(part, encoder(PackedTokens.from_lists([text], "document")))


def test_dropout_is_on_in_training_and_off_in_evaluation():
    torch.manual_seed(1)
    encoder, tokens = Encoder(EncoderConfig(61, 24, 2, 4, 40, positions=16)), PackedTokens.from_lists(random_ids(), "document")
    torch.manual_seed(2)
    first, second = encoder(tokens), encoder(tokens)
    assert not torch.equal(second, first)
    torch.manual_seed(2)
    assert torch.equal(encoder(tokens), first), "dropout follows torch's generator"
    encoder.eval()
    assert torch.equal(encoder(tokens), encoder(tokens))


@pytest.mark.parametrize("kind", ["plain", "prenorm"])
def test_compiled_layers_say_the_same_and_learn_the_same(kind):
    """Tests the traced graph; the kernels compiled for CUDA are compared on a real device."""
    torch.manual_seed(1)
    shape = EncoderConfig(61, 24, 2, 4, 40, positions=16, initializer_range=0.3, dropout=0.0, attention_dropout=0.0)
    encoder = Encoder(replace(shape, prenorm=PreNormConfig(windows=(None, 4), thetas=(10.0, 10.0))) if kind == "prenorm" else shape).train()
    compiled = copy.deepcopy(encoder)
    compile_layers(compiled, backend="aot_eager")
    for batch in (PackedTokens.from_lists(random_ids(), "query"), PackedTokens.from_lists(random_ids()[:3], "query")):
        results = []
        for one in (encoder, compiled):
            one.zero_grad()
            states = one(batch)
            states.square().sum().backward()
            results.append({"states": states.detach()} | {name: parameter.grad for name, parameter in one.named_parameters()})
        for name, value in results[0].items():
            assert value is results[1][name] is None or torch.allclose(results[1][name], value, atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize("kind", ["plain", "prenorm"])
def test_the_dropout_of_attention_weights_can_be_set_whatever_the_configuration_says(kind):
    shape = EncoderConfig(61, 24, 2, 4, 40, positions=16, dropout=0.0)
    encoder = Encoder(
        replace(shape, prenorm=PreNormConfig(windows=(None, None), thetas=(10.0, 10.0))) if kind == "prenorm" else shape
    ).train()
    if kind == "prenorm":
        for layer in encoder.layers:
            layer.attention.dropout.p = 0.0  # of the attention output: ModernBERT has one rate for both
    tokens = PackedTokens.from_lists(random_ids(), "document")
    assert not torch.equal(encoder(tokens), encoder(tokens))
    set_attention_dropout(encoder, 0.0)
    assert torch.equal(encoder(tokens), encoder(tokens))


def test_a_tower_is_an_independent_copy():
    encoder = Encoder(EncoderConfig(61, 24, 3, 4, 40, positions=16))
    tower = encoder.copy_layers_from(1)
    assert len(tower) == 2
    for copied, layer in zip(tower.parameters(), list(encoder.layers)[1:][0].parameters(), strict=False):
        assert torch.equal(copied, layer) and copied.data_ptr() != layer.data_ptr()


def test_impossible_shapes_are_refused():
    with pytest.raises(UsageError, match="not a multiple of 5"):
        EncoderConfig(61, 24, 2, 5, 40)
    with pytest.raises(UsageError, match="activation 'swish2' is not one of gelu"):
        EncoderConfig(61, 24, 2, 4, 40, activation="swish2")
