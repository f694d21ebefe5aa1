"""Adapters on the maps of a frozen encoder: outputs and gradients against the formula, names, refused options."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from moeir.backbones.dispatch import choose_adapters
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.mixtures.adapters import AdaptedLinear, AdapterOptions, insert_adapters, list_adapters, merge_adapters
from tests.backbones import test_transformers_encoder as theirs
from tests.backbones import tiny_models

K, N, R, E, ROWS = 12, 20, 3, 4, 24
BLOCKS = [(2,), (0, 1, 2, 3), (3, 1), (1, 1, 0)]


def relative(actual, expected):
    return float((actual - expected).abs().max() / expected.abs().max())


def draw(module, seed=0):
    """Random adapters in place of fresh ones, whose B is zero."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, AdaptedLinear):
            part.up.data = torch.randn(part.up.shape, generator=generator) * 0.2
    return module


def adapted_linear(experts=E, **options):
    torch.manual_seed(1)
    names = [f"expert{number}" for number in range(experts)]
    return draw(AdaptedLinear(nn.Linear(K, N), path="query", experts=names, rank=R, alpha=6.0, **options))


def choices():
    generator = torch.Generator().manual_seed(2)
    one_hot = F.one_hot(torch.randint(E, (ROWS,), generator=generator), E).float()
    return [*BLOCKS, one_hot, torch.rand(ROWS, E, generator=generator)]


def expert_weights(choice):
    """[rows, E] the weights that a choice means."""
    if isinstance(choice, torch.Tensor):
        return choice
    return F.one_hot(torch.tensor(choice).repeat_interleave(ROWS // len(choice)), E).float()


def merged_rows(module, rows, choice):
    """Each row by its own merged matrix, W + Σ w_i · alpha / r · B_i A_i."""
    outputs = []
    for row, weights in zip(rows, expert_weights(choice), strict=True):
        updates = zip(weights, module.up, module.down, strict=True)
        matrix = module.weight + sum(weight * (6.0 / R) * (up @ down) for weight, up, down in updates)
        outputs.append(matrix @ row + module.bias)
    return torch.stack(outputs)


@pytest.mark.parametrize("number", range(6))
def test_outputs_and_gradients_are_those_of_merged_matrices(number):
    module, choice = adapted_linear(), choices()[number]
    rows = torch.randn(ROWS, K, requires_grad=True)
    factors, results = torch.randn(ROWS, N), []
    if isinstance(choice, torch.Tensor):
        choice.requires_grad_()
    with choose_adapters(choice, ROWS):
        actual = module(rows[None])[0]
    for output in (actual, merged_rows(module, rows, choice)):
        inputs = [module.down, module.up, rows, *([choice] if isinstance(choice, torch.Tensor) else [])]
        results.append([output.detach(), *torch.autograd.grad((output * factors).sum(), inputs)])
    assert all(relative(ours, formula) <= 6e-7 for ours, formula in zip(*results, strict=True))
    assert not module.weight.requires_grad and not module.bias.requires_grad


def test_a_fresh_adapter_changes_nothing_and_starts_as_in_peft():
    torch.manual_seed(0)
    linear = nn.Linear(400, 30)
    module = AdaptedLinear(linear, path="query", experts=["one", "two"], rank=8)
    rows = torch.randn(5, 400)
    with choose_adapters((0,), 5):
        assert torch.equal(module(rows), linear(rows))
    assert module.scaling == 2.0 and not module.up.any()
    reference = nn.init.kaiming_uniform_(torch.empty(2 * 8, 400), a=5**0.5)
    assert abs(float(module.down.detach().std() / reference.std()) - 1) < 0.03 and module.down.abs().max() <= reference.abs().max() * 1.01


def test_dropout_is_that_of_the_adapters_input_alone():
    module, rows = adapted_linear(experts=1, dropout=0.5).train(), torch.randn(6, K)
    torch.manual_seed(3)
    dropped = F.dropout(rows, 0.5)
    expected = F.linear(rows, module.weight, module.bias) + dropped @ module.down[0].T @ module.up[0].T * 2.0
    torch.manual_seed(3)
    assert relative(module(rows), expected) <= 6e-7
    assert torch.equal(module.eval()(rows), module(rows))


def test_several_adapters_need_a_choice_of_all_rows():
    module = adapted_linear()
    with pytest.raises(LookupError):
        module(torch.randn(4, K))
    with choose_adapters((0, 1), 6), pytest.raises(UsageError, match="query reads 4 rows of 6: it cannot have several adapters"):
        module(torch.randn(4, K))


ENCODERS = {
    "bert": {"attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense", "intermediate.dense"}
    | {"output.dense"},
    "distilbert": {"attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2"},
    "modernbert": {"attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo"},
}
DECODER = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}


def open_encoder(name, folder):
    if name in ENCODERS:
        return tiny_models.make_pair(name, folder)[1]
    return theirs.make_pair(name, folder)[1]


def names_in_layers(encoder, layer="1"):
    (adapters,) = list_adapters(encoder).values()
    return {path.split(f".{layer}.", 1)[1] for path in adapters if f".{layer}." in path}


@pytest.mark.parametrize("name", [*ENCODERS, "qwen3", "qwen3_moe", "t5"])
def test_every_map_of_a_layer_has_an_adapter_by_its_name_in_transformers(name, tmp_path):
    encoder = open_encoder(name, tmp_path)
    insert_adapters(encoder, AdapterOptions(2), ["global"])
    (adapters,) = list_adapters(encoder).values()
    model = tiny_models.make_model(name) if name in ENCODERS else theirs.make_model(name)
    modules = dict(model.base_model.named_modules())
    for path, (down, up) in adapters.items():
        assert down.shape == (2, modules[path].in_features) and up.shape == (modules[path].out_features, 2)
    if name != "t5":
        expected = ENCODERS.get(name) or ({one for one in DECODER if "self_attn" in one} if name == "qwen3_moe" else DECODER)
        assert names_in_layers(encoder) == expected
    linear = {path for path, module in modules.items() if type(module) is nn.Linear and "pooler" not in path}
    assert adapters.keys() == linear
    frozen = {name for name, parameter in encoder.named_parameters() if not parameter.requires_grad}
    trained = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert {name.rsplit(".", 1)[1] for name in trained if "vocabulary_head" not in name} == {"down", "up"}
    assert not [name for name in frozen if name.endswith((".down", ".up"))]


@pytest.mark.parametrize("name", [*ENCODERS, "qwen3", "embedding_gemma2_text", "jina_embeddings_v3", "gte", "deberta-v2", "mpnet", "t5"])
def test_an_encoder_with_adapters_learns_what_its_merged_weights_would(name, tmp_path):
    """Every adapter has a gradient, that of the merged matrix: B's is s · G Aᵀ, A's s · Bᵀ G."""
    encoder = open_encoder(name, tmp_path).eval()
    insert_adapters(encoder, AdapterOptions(2, adapter_alpha=3.0), ["global"])
    merged = copy.deepcopy(draw(encoder).double())
    merge_adapters(merged)
    assert not list_adapters(merged)
    texts = PackedTokens.from_lists(theirs.random_ids(lengths=(5, 1, 9, 9)), "document")
    states, expected = encoder(texts), merged(texts)
    assert relative(states.detach(), expected.detach()) <= 5e-6
    factors = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    for output in (states, expected):
        (output * factors).sum().backward()
    differences, sizes = [], []
    for path, module in encoder.named_modules():
        if isinstance(module, AdaptedLinear):
            gradient = merged.get_submodule(path).weight.grad
            assert module.up.grad[0].abs().max() > 0 and module.weight.grad is None
            for actual, formula in ((module.up.grad[0], gradient @ module.down[0].T), (module.down.grad[0], module.up[0].T @ gradient)):
                differences.append(float((actual - 1.5 * formula).abs().max()))
                sizes.append(float(actual.abs().max()))
    assert max(differences) <= 5e-6 * max(sizes)


def test_maps_are_chosen_by_group_or_by_name(tmp_path):
    plain = open_encoder("qwen3", tmp_path)
    for maps, expected in [
        (("attention",), {one for one in DECODER if "attn" in one}),
        (("feedforward",), {one for one in DECODER if "mlp" in one}),
        (("q_proj", "mlp.up_proj"), {"self_attn.q_proj", "mlp.up_proj"}),
        (("attention", "down_proj"), {one for one in DECODER if "attn" in one} | {"mlp.down_proj"}),
    ]:
        encoder = copy.deepcopy(plain)
        insert_adapters(encoder, AdapterOptions(2, adapter_maps=maps), ["global"])
        assert names_in_layers(encoder) == expected
    for maps in (("q_proj", "proj"), ("query",), ()):
        with pytest.raises(UsageError, match=r"expected all, attention, feedforward, or some of the maps of a layer: mlp.down_proj, mlp"):
            insert_adapters(copy.deepcopy(plain), AdapterOptions(2, adapter_maps=maps), ["global"])


def test_only_some_layers_have_adapters_and_all_are_frozen():
    encoder = Encoder(tiny_models.weights_io.EncoderConfig(61, 24, 3, 4, 40, positions=32))
    insert_adapters(encoder, AdapterOptions(2), ["global"], layers=[1], rank=3)
    assert {path.split(".")[1] for path in list_adapters(encoder)["global"]} == {"1"}
    assert {name.split(".")[1] for name, parameter in encoder.named_parameters() if parameter.requires_grad} == {"1"}
    assert all(down.shape[0] == 3 for down, _ in list_adapters(encoder)["global"].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapters": -1}, "dense:adapters=-1: expected the rank of adapters, 1 or more, or 0 for none"),
        ({"adapters": 2, "adapter_alpha": 0.0}, "dense:adapter_alpha=0: expected more than 0"),
        ({"adapters": 2, "adapter_dropout": 1.0}, "dense:adapter_dropout=1: expected 0 or more, less than 1"),
        ({"adapter_dropout": 0.1}, "dense: options of adapters, and no adapters; set their rank, as in dense:adapters=16"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        AdapterOptions(**options).check("dense")


@pytest.mark.parametrize("half", [False, True])
def test_a_trunk_in_half_precision_multiplies_in_the_dtype_of_its_inputs(half):
    module = adapted_linear(experts=1)
    module.weight.data, module.bias.data = module.weight.data.bfloat16(), module.bias.data.bfloat16()
    rows = torch.randn(6, K)
    expected = merged_rows(copy.deepcopy(module).float(), rows, torch.ones(6, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        output = module(rows)
    assert output.dtype == (torch.bfloat16 if half else torch.float32)
    assert relative(output.float(), expected) <= (2e-2 if half else 6e-7)
    assert module.down.dtype == module.up.dtype == torch.float32
