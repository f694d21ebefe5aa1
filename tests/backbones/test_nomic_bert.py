"""nomic-embed-text-v2-moe, an encoder with routed layers: its states and gradients are those of the published formula."""

import copy

import pytest
import torch

from moeir.backbones import layers
from moeir.backbones.device import autocast
from moeir.backbones.encoder import pack_encoders
from moeir.backbones.families import nomic_bert, weights_io
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import ArtifactError
from moeir.kernels.packed_linear import supports_packing
from tests.architectures.folders import assert_refused
from tests.backbones.tiny_models import random_ids
from tests.backbones.tiny_nomic import CONFIG, EXPERTS, encode_text, make_weights, write_folder

LENGTHS = (5, 1, 3, 3, 7)
W1 = "encoder.layers.1.mlp.experts.mlp.w1"


@pytest.mark.parametrize("top_k", [2, 1])
def test_states_and_gradients_are_those_of_the_formula(tmp_path, top_k):
    encoder = weights_io.read_encoder(write_folder(tmp_path, moe_top_k=top_k)).train()
    texts = random_ids(LENGTHS)
    theirs = {name: value.double().requires_grad_() for name, value in make_weights().items()}
    expected = torch.cat([encode_text(theirs, ids, top_k)[0] for ids in texts])
    states = encoder(PackedTokens.from_lists(texts, "document"))
    assert (states - expected).abs().max() <= 1e-6
    slopes = torch.randn(states.shape)
    (states * slopes).sum().backward()
    (expected * slopes).sum().backward()
    names = weights_io.import_family(weights_io.read_config(tmp_path), tmp_path).NAMES
    parameters = {name: parameter for name, parameter in encoder.named_parameters() if not name.startswith("vocabulary_head.")}
    assert len(theirs) == len(parameters)
    pairs = {name: (parameter.grad, theirs[names.to_hf(name, has_head=False)].grad) for name, parameter in parameters.items()}
    whole, reference = (torch.cat([pair[part].flatten() for pair in pairs.values()]) for part in (0, 1))
    assert (whole - reference).norm() <= 5e-7 * reference.norm()
    for name, (gradient, own) in pairs.items():
        assert (gradient - own).norm() <= 2e-6 * own.norm(), name


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.01), (torch.int8, 0.02)])
@torch.no_grad()
def test_the_form_for_inference_is_near_the_plain_one(tmp_path, dtype, tolerance):
    if not supports_packing(dtype):
        pytest.skip(f"this processor has no packed products of {dtype}")
    plain = weights_io.read_encoder(write_folder(tmp_path)).eval()
    tokens, packed = PackedTokens.from_lists(random_ids(LENGTHS), "document"), copy.deepcopy(plain)
    pack_encoders(packed, dtype)
    assert sorted(name for name, parameter in packed.layers[1].named_parameters() if parameter.ndim > 1) == ["feedforward.gate.weight"]
    expected = plain(tokens)
    with autocast(dtype, "cpu"):
        states = packed(tokens)
    assert (states - expected).norm() <= tolerance * expected.norm()


def test_a_configuration_without_dropout_of_embeddings_has_that_of_gpt_2():
    config = {name: value for name, value in CONFIG.items() if name != "embd_pdrop"}
    assert nomic_bert.parse_config(config).classification_head.dropout == 0.1
    assert nomic_bert.parse_config(config | {"classifier_dropout": 0.0}).classification_head.dropout == 0.0


def test_grouped_products_say_what_expert_by_expert_says(tmp_path, monkeypatch):
    """The CUDA path under bfloat16 autocast, on a CPU: values and gradients within bfloat16."""
    encoder, results = weights_io.read_encoder(write_folder(tmp_path)).layers[1].feedforward, []
    states, slopes = torch.randn(2, 20, CONFIG["n_embd"])
    states.requires_grad_()
    tokens = PackedTokens.from_lists(random_ids((20,)), "document")
    for grouped in (True, False):
        monkeypatch.setattr(layers, "supports_grouped_linear", lambda *_, grouped=grouped: grouped)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = encoder(states, tokens, states)
        gradients = torch.autograd.grad((output * slopes).sum(), [states, *encoder.parameters()])
        results.append([output.detach(), *gradients])
    for one, other in zip(*results, strict=True):
        assert (one - other).norm() < 0.03 * other.norm()


@pytest.mark.parametrize(
    "change, changes, message",
    [
        (lambda weights: weights.pop(W1), {}, rf"weights are missing, first {W1} \(1 in all\)"),
        (lambda weights: weights.update({f"{W1}_shared": torch.zeros(2, 24)}), {}, f"1 weights are not read, first {W1}_shared"),
        (lambda weights: None, {"num_experts": EXPERTS - 1}, r"expert_up has shape \[200, 24\]; config.json says \[160, 24\]"),
        (lambda weights: None, {"moe_every_n_layers": 3}, "layers.1.feedforward.expert_up has|weights are missing, first encoder.layers.3"),
    ],
)
def test_experts_that_are_missing_or_too_many_are_named(tmp_path, change, changes, message):
    weights = make_weights()
    change(weights)
    assert_refused(ArtifactError, message, weights_io.read_encoder, write_folder(tmp_path, weights, **changes))


def test_without_experts_the_layers_are_those_of_transformers():
    written = CONFIG | {"model_type": "moeir", "moeir_family": "nomic_bert"}
    assert not weights_io.uses_transformers(CONFIG) and not weights_io.uses_transformers(written)
    assert all(weights_io.uses_transformers(config | {"num_experts": 0}) for config in (CONFIG, written))
