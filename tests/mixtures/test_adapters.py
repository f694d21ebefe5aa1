"""Adapters on the maps of a frozen encoder: outputs and gradients against the formula, names, refused options."""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from moeir.backbones.config import EncoderConfig
from moeir.backbones.dispatch import choose_adapters
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.mixtures import router
from moeir.mixtures.adapters import (
    AdaptedEmbedding,
    AdaptedLinear,
    AdapterOptions,
    insert_adapters,
    insert_experts,
    merge_adapters,
)
from tests.backbones import test_transformers_encoder as theirs
from tests.backbones import tiny_models

K, N, R, E, ROWS = 12, 20, 3, 4, 24
BLOCKS = [(2,), (0, 1, 2, 3), (3, 1), (1, 1, 0)]


def list_adapters(model):
    """expert -> path of a map in transformers -> A [r, K] and B [N, r], views of the parameters."""
    adapters = {}
    for module in model.modules():
        if isinstance(module, AdaptedLinear | AdaptedEmbedding):
            for expert, down, up in zip(module.experts, module.down.detach(), module.up.detach(), strict=True):
                adapters.setdefault(expert, {})[module.path] = down, up
    return adapters


def draw_adapters(module, seed=0):
    """Random adapters in place of fresh ones, whose B is zero."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, AdaptedLinear):
            part.up.data = torch.randn(part.up.shape, generator=generator) * 0.2
    return module


def adapted_linear(experts=E, **options):
    torch.manual_seed(1)
    names = [f"expert{number}" for number in range(experts)]
    return draw_adapters(AdaptedLinear(nn.Linear(K, N), path="query", experts=names, rank=R, alpha=6.0, **options))


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
    assert all(theirs.difference(ours, formula) <= 6e-7 for ours, formula in zip(*results, strict=True))
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
    assert theirs.difference(module(rows), expected) <= 6e-7
    assert torch.equal(module.eval()(rows), module(rows))


def test_several_adapters_need_a_choice_of_all_rows_in_their_own_thread():
    module = adapted_linear()
    with pytest.raises(LookupError):
        module(torch.randn(4, K))
    with choose_adapters((0,), 4), ThreadPoolExecutor(1) as pool, pytest.raises(LookupError):
        pool.submit(module, torch.randn(4, K)).result()
    with choose_adapters((0, 1), 6), pytest.raises(UsageError, match="query reads 4 rows of 6: it cannot have several adapters"):
        module(torch.randn(4, K))


OWN = ["bert", "distilbert", "modernbert"]  # layers of ours; the others are of transformers
DECODER = {f"self_attn.{name}_proj" for name in "qkvo"} | {f"mlp.{name}_proj" for name in ("gate", "up", "down")}


def names_in_layers(encoder, layer="1"):
    (adapters,) = list_adapters(encoder).values()
    return {path.split(f".{layer}.", 1)[1] for path in adapters if f".{layer}." in path}


@pytest.mark.parametrize(
    "name", [*OWN, "qwen3", "qwen3_moe", "embedding_gemma2_text", "jina_embeddings_v3", "gte", "deberta-v2", "mpnet", "t5"]
)
def test_every_map_has_an_adapter_by_its_name_in_transformers_which_learns_what_its_merged_weights_would(name, tmp_path):
    """Every adapter has a gradient, that of the merged matrix: B's is s · G Aᵀ, A's s · Bᵀ G."""
    model, encoder = (tiny_models if name in OWN else theirs).make_pair(name, tmp_path)[:2]
    insert_adapters(encoder.eval(), AdapterOptions(2, adapter_alpha=3.0), ["global"])
    (adapters,) = list_adapters(encoder).values()
    modules = dict(model.base_model.named_modules())
    in_layers = {path for path in modules if any(map(str.isdigit, path.split(".")))}
    assert adapters.keys() == {path for path in in_layers if type(modules[path]) is nn.Linear}
    for path, (down, up) in adapters.items():
        assert down.shape == (2, modules[path].in_features) and up.shape == (modules[path].out_features, 2)
    trained = {name.rsplit(".", 1)[1]: parameter.requires_grad for name, parameter in encoder.named_parameters() if "vocab" not in name}
    assert {part for part, is_trained in trained.items() if is_trained} == {"down", "up"}
    if name == "qwen3_moe":
        return  # torch has no grouped products of float64
    merged = copy.deepcopy(draw_adapters(encoder).double())
    merge_adapters(merged, dtype=torch.float64)
    assert not list_adapters(merged)
    texts = PackedTokens.from_lists(theirs.random_ids(lengths=(5, 1, 9, 9)), "document")
    states, expected = encoder(texts), merged(texts)
    assert theirs.difference(states, expected) <= 5e-6
    factors = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    for output in (states, expected):
        (output * factors).sum().backward()
    differences, sizes = [], []
    for path, module in encoder.named_modules():
        if isinstance(module, AdaptedLinear):
            gradient = merged.get_submodule(path).weight.grad
            assert module.up.grad[0].abs().max() > 0 and module.weight.grad is None
            for actual, formula in ((module.up.grad[0], gradient @ module.down[0].T), (module.down.grad[0], module.up[0].T @ gradient)):
                differences.append(float((actual - 1.5 * formula).detach().abs().max()))
                sizes.append(float(actual.abs().max()))
    assert max(differences) <= 5e-6 * max(sizes)


def test_a_feedforward_that_is_taken_out_of_its_layer_keeps_its_names(tmp_path):
    encoder = theirs.make_pair("qwen3", tmp_path)[1]
    insert_experts(encoder, AdapterOptions(2), [0, 2], experts=3, one_gate=True, routing="token")
    adapters = list_adapters(encoder)
    assert list(adapters) == ["expert0", "expert1", "expert2"]
    assert set(adapters["expert1"]) == {f"layers.{number}.mlp.{name}_proj" for number in (0, 2) for name in ("gate", "up", "down")}


def test_maps_are_chosen_by_group_or_by_name(tmp_path):
    plain = theirs.make_pair("qwen3", tmp_path)[1]
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


@pytest.mark.parametrize("half", [False, True])
def test_a_trunk_in_half_precision_multiplies_in_the_dtype_of_its_inputs(half):
    module = adapted_linear(experts=1)
    module.weight.data, module.bias.data = module.weight.data.bfloat16(), module.bias.data.bfloat16()
    rows = torch.randn(6, K)
    expected = merged_rows(copy.deepcopy(module).float(), rows, torch.ones(6, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        output = module(rows)
    assert output.dtype == (torch.bfloat16 if half else torch.float32)
    assert theirs.difference(output.float(), expected) <= (2e-2 if half else 6e-7)
    assert module.down.dtype == module.up.dtype == torch.float32


TEXTS = [[1, 7, 9, 2], [1, 8, 2], [1, 3, 4, 5, 6, 2], [1, 11, 2]]


def routed_layer(routing, **options):
    """The first layer of a tiny encoder with four random adapters on each of its maps, or on those of its feed-forward."""
    torch.manual_seed(4)
    encoder = Encoder(EncoderConfig(40, 16, 1, 2, 24, positions=32, dropout=0.0, attention_dropout=0.0, initializer_range=0.3))
    insert_experts(encoder, AdapterOptions(2), [0], experts=E, one_gate=False, routing=routing, **options)
    layer = draw_adapters(encoder).layers[0]
    if routing != "role":
        layer.router.gate.weight.data = torch.randn(layer.router.gate.weight.shape)
    return layer


def run_layer(layer, states, side="query", seed=9):
    tokens = PackedTokens.from_lists(TEXTS, side)
    torch.manual_seed(seed)
    return layer(states, tokens, tokens.layout)


def layer_by_row(layer, states, weights, groups):
    """The layer with each row's own merged matrices: W + 2 Σ w_i B_i A_i in the maps of `groups`; weights [T, E]."""

    def multiply(module, rows):
        routed = "attention" if "attention" in module.path else "feedforward"
        matrices = [module.weight + 2.0 * torch.einsum("e,eor,erk->ok", row, module.up, module.down) for row in weights]
        matrices = matrices if routed in groups else [module.weight] * len(rows)
        return torch.stack([matrix @ row + module.bias for matrix, row in zip(matrices, rows, strict=True)])

    def plain(module, rows):
        return multiply(module, rows) if isinstance(module, AdaptedLinear) else module(rows)

    attention, feedforward, starts = layer.attention, layer.feedforward, [0, 4, 7, 13, 16]
    query, key, value = (
        plain(part, states).unflatten(1, (2, 8)).transpose(0, 1) for part in (attention.query, attention.key, attention.value)
    )
    mixed = []
    for first, last in pairwise(starts):
        scores = query[:, first:last] @ key[:, first:last].mT / 8**0.5
        mixed.append((scores.softmax(-1) @ value[:, first:last]).transpose(0, 1).flatten(1))
    attended = attention.norm(states + plain(attention.output, torch.cat(mixed)))
    inner = feedforward.activation(plain(feedforward.up, attended))
    return attended, feedforward.norm(attended + plain(feedforward.down, inner))


@pytest.mark.parametrize("routing", ["sequence", "token"])
@pytest.mark.parametrize("gate_input", ["ffn_input", "block_input"])
@pytest.mark.parametrize("gradient", ["inference", "full", "pair", "switch", "none"])
def test_rows_take_the_adapters_that_the_gate_chooses_and_its_gradient_is_the_formulas(routing, gate_input, gradient):
    """With m chosen by a Gumbel sample z: w = one-hot(m) + z - stop(z) is `full`; `pair` adds ½ (1 - p_m) (l_j - l_m - stop) (e_j - e_m)
    with j the second best; `switch` is one-hot(m) · (1 + z_m - stop(z_m)); `none` is one-hot(m)."""
    layer = routed_layer(routing, gate_input=gate_input, gradient="full" if gradient == "inference" else gradient, temperature=0.7)
    layer.train(gradient != "inference")
    states = torch.randn(16, 16, requires_grad=True)
    groups = ("feedforward",) if gate_input == "ffn_input" else ("attention", "feedforward")
    attended = layer_by_row(layer, states, torch.zeros(16, E), ())[0]
    inputs = attended if gate_input == "ffn_input" else states
    starts, rows = torch.tensor([0, 4, 7, 13]), torch.tensor([4, 3, 6, 3])
    logits = (inputs[starts] if routing == "sequence" else inputs) @ layer.router.gate.weight.T + layer.router.gate.bias
    torch.manual_seed(9)
    sample = router.gumbel_softmax(logits, 0.7, router.uniform_like(logits))
    best = (logits if gradient == "inference" else sample).topk(2).indices
    weights = F.one_hot(best[:, 0], E).float()
    if gradient == "full":
        weights = weights + sample - sample.detach()
    elif gradient == "switch":
        weights = weights * (1 + sample - sample.detach())
    elif gradient == "pair":
        chosen, other = logits.gather(1, best).T
        probability = logits.softmax(1).gather(1, best[:, :1])[:, 0].detach()
        factor = 0.5 * (1 - probability) * (other - chosen - (other - chosen).detach())
        weights = weights + factor[:, None] * (F.one_hot(best[:, 1], E) - weights)
    weights = weights.repeat_interleave(rows, 0) if routing == "sequence" else weights
    assert len(set(best[:, 0].tolist())) > 1, "the example is no example if one expert takes all"
    expected, actual = layer_by_row(layer, states, weights, groups)[1], run_layer(layer, states)
    assert theirs.difference(actual, expected) <= 2e-6
    factors = torch.randn(actual.shape)
    leaves = [states, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    results = [torch.autograd.grad((one * factors).sum(), leaves, allow_unused=True) for one in (actual, expected)]
    for ours, formula in zip(*results, strict=True):
        if formula is None:
            assert ours is None
        else:
            assert float((ours - formula).abs().max()) <= 2e-5 * float(formula.abs().max()) + 1e-7
    gate_gradient = results[0][[id(leaf) for leaf in leaves].index(id(layer.router.gate.weight))]
    assert (gate_gradient is not None and bool(gate_gradient.any())) == (gradient in ("full", "pair", "switch"))
    assert theirs.difference(layer.router.last_routing.probabilities, logits.softmax(1)) <= 2e-6


def test_a_role_takes_the_first_adapter_of_its_side_and_in_training_any_of_them():
    layer, states = routed_layer("role").eval(), torch.randn(16, 16)
    for side, expert in (("query", 0), ("document", 2)):
        weights = F.one_hot(torch.full((16,), expert), E).float()
        expected = layer_by_row(layer, states, weights, ("attention", "feedforward"))[1]
        assert theirs.difference(run_layer(layer, states, side), expected) <= 2e-6
    assert layer.router.last_routing is None
    trained = {run_layer(layer.train(), states, "document", seed=seed)[0, 0].item() for seed in range(20)}
    assert len(trained) == 2, "either adapter of the documents, the same for all tokens of a text"
