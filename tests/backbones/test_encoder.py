"""The encoder on packed batches: dropout, compiled layers, adjacent weights."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moeir.backbones.config import EncoderConfig, PreNormConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.families.weights_io import write_tensors
from moeir.backbones.layers import compile_layers, set_attention_dropout, store_adjacent
from moeir.backbones.packed_tokens import PackedTokens
from moeir.mixtures.adapters import AdapterOptions, insert_adapters, insert_experts
from moeir.pretraining.base import vocabulary_loss
from tests.backbones.tiny_models import random_ids
from tests.mixtures.test_adapters import draw_adapters


def make_encoder(kind, layers=2, **settings):
    shape = EncoderConfig(61, 24, layers, 4, 40, positions=32, dropout=0.0, **settings)
    return Encoder(replace(shape, prenorm=PreNormConfig(windows=(None, 4), thetas=(10.0, 10.0))) if kind == "prenorm" else shape).train()


@pytest.mark.parametrize("kind", ["prenorm", "adapters", "roles"])
def test_compiled_layers_say_the_same_and_learn_the_same(kind):
    """Tests the traced graph; the kernels compiled for CUDA are compared on a real device. Plain maps are beside those with adapters."""
    torch.manual_seed(1)
    encoder = make_encoder(kind, 2 if kind == "prenorm" else 1, initializer_range=0.3, attention_dropout=0.0)
    if kind == "adapters":
        insert_adapters(encoder, AdapterOptions(2, adapter_maps=("output", "down")), ["global"])
    elif kind == "roles":
        insert_experts(encoder, AdapterOptions(2, adapter_maps=("query",)), [0], experts=2, one_gate=False, routing="role")
    draw_adapters(encoder)
    compiled = copy.deepcopy(encoder)
    compile_layers(compiled, backend="aot_eager")
    for batch in (PackedTokens.from_lists(random_ids(), "query"), PackedTokens.from_lists(random_ids()[:3], "document")):
        results = []
        for one in (encoder, compiled):
            one.zero_grad()
            states = one(batch)
            states.square().sum().backward()
            results.append({"states": states.detach()} | {name: parameter.grad for name, parameter in one.named_parameters()})
        for name, value in results[0].items():
            assert value is results[1][name] is None or torch.allclose(results[1][name], value, atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize("replaced", [None, "query", "value"])
def test_query_key_and_value_are_read_where_they_are_stored(tmp_path, replaced):
    """Oracle: an encoder whose weights are concatenated at each step; also where a weight moved elsewhere in memory meanwhile."""
    torch.manual_seed(1)
    encoder = make_encoder("plain", initializer_range=0.3, attention_dropout=0.0)
    stored, batch, copies, results = copy.deepcopy(encoder), PackedTokens.from_lists(random_ids(), "query"), [], []
    store_adjacent(stored)
    if replaced is not None:
        getattr(stored.layers[1].attention, replaced).to(torch.float64).to(torch.float32)
    for one in (encoder, stored):
        optimiser = torch.optim.AdamW(one.parameters(), lr=1e-2)
        with OperationNames() as operations:
            for _ in range(2):
                optimiser.zero_grad()
                states = one(batch)
                states.square().sum().backward()
                optimiser.step()
        copies.append(operations.names.count("aten.cat.default"))
        results.append({"states": states.detach()} | {name: parameter.grad for name, parameter in one.named_parameters()})
        write_tensors(one.state_dict(), tmp_path / "weights")
        results[-1]["file"] = torch.tensor(list((tmp_path / "weights").read_bytes()))
    assert copies[0] - copies[1] == 2 * 2 * (2 if replaced is None else 1), "a weight and a bias, in two steps, in each layer"
    for name, value in results[0].items():
        assert value is results[1][name] is None or torch.equal(results[1][name], value), name


class OperationNames(TorchDispatchMode):
    """Lists the operations that torch runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        self.names.append(str(operation))
        return operation(*arguments, **(keywords or {}))


def test_the_loss_of_masked_words_is_compiled_with_the_layers():
    encoder = Encoder(EncoderConfig(61, 24, 2, 4, 40, positions=32), vocabulary_head=True)
    states, words, losses, traced = torch.randn(5, 24), torch.arange(5), [], []

    def record(graph, inputs):
        traced.append(graph)
        return graph.forward

    for _ in range(2):
        losses.append(vocabulary_loss(states, words, encoder).value.item())
        assert bool(traced) == (len(losses) == 2)
        compile_layers(encoder, backend=record)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", ["plain", "prenorm"])
def test_the_dropout_of_attention_weights_can_be_set_whatever_the_configuration_says(kind):
    encoder = make_encoder(kind)
    if kind == "prenorm":
        for layer in encoder.layers:
            layer.attention.dropout.p = 0.0  # of the attention output: ModernBERT has one rate for both
    tokens = PackedTokens.from_lists(random_ids(), "document")
    assert not torch.equal(encoder(tokens), encoder(tokens))
    set_attention_dropout(encoder, 0.0)
    assert torch.equal(encoder(tokens), encoder(tokens))
