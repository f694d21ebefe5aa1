"""The form of layers for inference scores as the plain form does: every architecture, every family of weights, both dtypes."""

import copy

import pytest
import torch

from moeir.backbones.config import ACTIVATIONS
from moeir.backbones.device import autocast
from moeir.backbones.layers import Attention, FrozenLinear, pack_layers
from moeir.backbones.packed_tokens import PackedTokens
from moeir.kernels.int8_linear import Int8Linear, supports_int8
from moeir.kernels.packed_linear import FUSED_ACTIVATIONS, PackedLinear, pack_linear, supports_packing
from tests.architectures.test_expert_architectures import SPECS, TEXTS, build, perturb, scores
from tests.backbones.tiny_models import LENGTHS, TINY_MODELS, is_close, make_pair, random_ids
from tests.mixtures.test_adapters import draw_adapters

OTHERS = ["dense", "dense:pooling=mean,normalise=true", "splade", "colbert:dim=8", "coil", "bge-m3:fresh_heads=true"]
OTHERS += ["dense:adapters=4", "splade:queries=tokens", "came:shared_layers=2,lexical_queries=tokens,local_dim=8"]
ROUTED = "taser:adapters=4,experts=3,routing=token"
needs_packing = pytest.mark.skipif(not supports_packing(torch.float32), reason="this torch has no packed products")
needs_int8 = pytest.mark.skipif(not supports_int8(), reason="this processor has no exact products of 8-bit integers")
needs_bfloat16 = pytest.mark.skipif(not supports_packing(torch.bfloat16), reason="this processor has no packed products of bfloat16")


def test_products_are_packed_in_the_dtypes_that_the_processor_has():
    has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    supported = [supports_packing(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    assert supported == [torch.backends.mkldnn.is_available(), has_bfloat16, False]


def build_any(model, spec):
    """A checkpoint whose experts differ, with adapters that change its scores by far more than a dtype does."""
    checkpoint = perturb(build(model, spec))
    draw_adapters(checkpoint.architecture)
    return checkpoint


@needs_packing
@pytest.mark.parametrize("spec", [*SPECS, *OTHERS])
def test_scores_are_those_of_the_plain_form(tiny_model_with_head, spec):
    """Adapters are merged, but for those that a gate chooses, over a base that is held once."""
    packed = build_any(tiny_model_with_head, spec)
    expected = scores(packed)
    packed.pack_for_inference(torch.float32)
    maps = [module for layer in packed.architecture.encoder.layers for module in layer.attention.modules()]
    assert all(module.packed is not None for module in maps if isinstance(module, torch.nn.Linear))
    assert all(parameter.requires_grad for parameter in packed.architecture.parameters()), "autocast casts others anew for each batch"
    left = [module for module in packed.architecture.modules() if isinstance(module, FrozenLinear)]
    assert bool(left) == ("adapters" in spec and "routing=" in spec)
    assert all(part.weight is None and part.packed is not None for part in left)
    for name, actual in scores(packed).items():
        assert is_close(actual, expected[name]), name


@needs_bfloat16
@pytest.mark.parametrize(
    "spec",
    ["came:shared_layers=2,local_dim=8", "taser:routing=token,experts=3,every=1", "mote", "dense", "mote:adapters=4", ROUTED],
)
def test_bfloat16_is_as_near_to_float32_as_autocast_is(tiny_model_with_head, spec):
    checkpoint = build_any(tiny_model_with_head, spec)
    expected = scores(checkpoint)
    with autocast(torch.bfloat16, "cpu"):
        half = scores(checkpoint)
    checkpoint.pack_for_inference(torch.bfloat16)
    with autocast(torch.bfloat16, "cpu"):
        own = scores(checkpoint)
    for name, values in expected.items():
        spread = (values.max() - values.min()).item()
        assert (own[name] - values).abs().max() <= 2 * (half[name] - values).abs().max() + 0.02 * spread, name


@needs_int8
@pytest.mark.parametrize("spec", ["mote", "sbmoe", "mote:encoders=separate", *SPECS[-11:], *OTHERS[:7]])
def test_int8_scores_are_near_those_of_float32(tiny_model_with_head, spec):
    packed = build_any(tiny_model_with_head, spec)
    expected = scores(packed)
    packed.pack_for_inference(torch.int8)
    layers = [module for module in packed.architecture.modules() if isinstance(module, Int8Linear)]
    assert len(layers) >= 4 * len(packed.architecture.encoder.layers)
    with autocast(torch.int8, "cpu"):
        own = scores(packed)
    for name, values in expected.items():
        spread = (values.max() - values.min()).item()
        assert (own[name] - values).abs().max() <= 0.15 * spread, name


@needs_packing
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        *((spec, torch.float32) for spec in ("splade", "mote:adapters=4", ROUTED, "sbmoe:experts=2")),
        *(("came:shared_layers=2,local_dim=8", dtype) for dtype in (torch.float32, torch.bfloat16, torch.int8)),
    ],
)
def test_bytes_do_not_depend_on_the_number_of_threads(tiny_model_with_head, spec, dtype):
    if not supports_packing(dtype):
        pytest.skip(f"this processor has no packed products of {dtype}")
    checkpoint = build_any(tiny_model_with_head, spec)
    windows = [checkpoint.tokenize_batches(texts, "document", max_tokens=24) for texts in (TEXTS * 3, TEXTS[:1], TEXTS)]
    for window, encoded in zip(windows, checkpoint.iterate_encoded(iter(windows)), strict=True):
        assert all(map(torch.equal, encoded.tensors(), checkpoint.encode_batches(window).tensors()))
    checkpoint.pack_for_inference(dtype)
    is_concurrent = spec not in (ROUTED, "sbmoe:experts=2")
    outputs, before = {}, torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            assert (checkpoint.is_concurrent, checkpoint.batches_at_once) == (is_concurrent, threads if is_concurrent else 1)
            with autocast(dtype, "cpu"):
                outputs[threads] = [list(one.tensors()) for one in checkpoint.iterate_encoded(iter(windows))]
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
    assert len(outputs[3]) == len(windows)
    for one, many in zip(outputs[1], outputs[3], strict=True):
        assert all(torch.equal(*pair) if is_concurrent else torch.allclose(*pair, atol=1e-5) for pair in zip(one, many, strict=True))
        assert not any(part.requires_grad for part in many)


@needs_packing
@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_family_has_the_form(tmp_path, name):
    _, plain = make_pair(name, tmp_path)
    packed = copy.deepcopy(plain)
    pack_layers(packed, torch.float32)
    tokens = PackedTokens.from_lists(random_ids(), "document")
    with torch.no_grad():
        assert is_close(packed(tokens), plain(tokens))
    assert len(packed(tokens)) == sum(LENGTHS)


@needs_packing
def test_a_cross_encoder_has_the_form(tiny_model):
    plain, packed = (perturb(build(tiny_model, "cross-encoder")) for _ in range(2))
    packed.pack_for_inference(torch.float32)
    tokens = PackedTokens.from_lists(random_ids(lengths=(5, 9, 16)), "pair")
    with torch.no_grad():
        first, second = (one.architecture.eval()(tokens)["relevance"].vectors for one in (plain, packed))
    assert is_close(second, first)


@needs_packing
def test_layers_of_own_code_stay_as_they_are(tiny_model_with_head):
    class OwnAttention(Attention):
        pass

    checkpoint = build(tiny_model_with_head, "dense")
    own = checkpoint.architecture.encoder.layers[1].attention
    own.__class__ = OwnAttention
    checkpoint.pack_for_inference(torch.float32)
    assert own.qkv is None and isinstance(own.output, torch.nn.Linear)
    assert isinstance(checkpoint.architecture.encoder.layers[0].attention.qkv, PackedLinear)


@needs_packing
@pytest.mark.parametrize("activation", [None, *FUSED_ACTIVATIONS])
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_activation_and_residual_are_part_of_the_product(activation, rows):
    torch.manual_seed(0)
    linear, inputs, residual = torch.nn.Linear(24, 40), torch.randn(rows, 24), torch.randn(rows, 40)
    packed, plain = (pack_linear(linear.weight, linear.bias, torch.float32, one) for one in (activation, None))
    with torch.no_grad():
        product = linear(inputs)
        assert torch.allclose(packed(inputs), product if activation is None else ACTIVATIONS[activation](product), atol=1e-5)
        assert torch.allclose(plain.add_to_residual(inputs, residual), residual + product, atol=1e-5)
