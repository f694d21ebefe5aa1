"""Architectures whose experts are adapters: against full copies with merged weights, and what trains."""

import re

import pytest
import torch

from moeir.mixtures.adapters import AdaptedLinear, list_adapters
from moeir.training import objectives
from moeir.training.param_groups import make_param_groups
from moeir.training.regularizers import RegularizerWeights
from tests.architectures.test_expert_architectures import TEXTS, build, scores
from tests.mixtures.test_adapters import draw_adapters
from tests.training.toy_examples import take_step

CAME = "came:shared_layers=2,local_dim=8"
ADAPTED = [
    "dense:adapters=4,adapter_maps=query+value", f"{CAME},adapters=4", f"{CAME},adapters=4,shared_adapters=3", "mote:adapters=4",
    "mote:encoders=siamese,adapters=4", "taser:adapters=4,every=1", "taser:adapters=4,experts=3,routing=token",
    "taser:adapters=4,routing=sequence,gate_input=block_input,gates=per_layer,every=1", "splade:adapters=4", "colbert:adapters=4,dim=8",
    "cross-encoder:adapters=4",
]  # fmt: skip


def build_any(model, spec):
    """A checkpoint with random adapters."""
    checkpoint = build(model, spec)
    draw_adapters(checkpoint.architecture)
    return checkpoint


def difference(actual, expected):
    """The largest difference of scores, relative to the largest score."""
    return max(float((actual[name] - one).abs().max() / one.abs().max()) for name, one in expected.items())


def merged_state(checkpoint, expert):
    """The encoder's weights by the plain names, W + 2 B A of an expert."""
    state = {}
    for name, module in checkpoint.architecture.encoder.named_modules():
        if isinstance(module, AdaptedLinear):
            number = expert if len(module.experts) > 1 else 0
            state[f"{name}.weight"] = module.weight.double() + 2.0 * module.up[number].double() @ module.down[number].double()
    plain = {key: value for key, value in checkpoint.architecture.encoder.state_dict().items() if not key.endswith((".down", ".up"))}
    return plain | {key: value.float() for key, value in state.items()}


TOWERS = ["adapters=4,shared_adapters=3", "adapters=4,lexical_queries=tokens"]


@pytest.mark.parametrize("options", TOWERS)
def test_towers_as_one_batch_are_towers_of_merged_weights(tiny_model_with_head, options):
    """Also for some of the experts alone, in whatever order, and in the form for inference."""
    checkpoint = build_any(tiny_model_with_head, f"{CAME},{options}")
    copies = build(tiny_model_with_head, ",".join([CAME, *(one for one in options.split(",") if "adapters" not in one)]))
    copies.architecture.heads.load_state_dict(checkpoint.architecture.heads.state_dict())
    for number, name in enumerate(("lexical", "local", "global")):
        state = merged_state(checkpoint, number)
        shared = {key: value for key, value in state.items() if not key.startswith(("layers.2.", "layers.3."))}
        copies.architecture.encoder.load_state_dict(shared)
        own = {key: value for key, value in state.items() if key.startswith(("layers.2.", "layers.3."))}
        copies.architecture.towers[name].load_state_dict({f"{int(key[7]) - 2}{key[8:]}": value for key, value in own.items()})
    expected = scores(copies)
    assert difference(scores(checkpoint), expected) <= 5e-6
    for wanted in (["global"], ["global", "lexical"]):
        some = checkpoint.encode(TEXTS, experts=wanted)
        assert all(torch.equal(some[name].scores(some[name]), checkpoint.encode(TEXTS)[name].scores(some[name])) for name in wanted)
    checkpoint.architecture.merge_adapters()
    assert not list_adapters(checkpoint.architecture) and difference(scores(checkpoint), expected) <= 5e-6
    assert len(checkpoint.architecture.encoder.layers) == 2 and list(checkpoint.architecture.towers) == ["lexical", "local", "global"]


@pytest.mark.parametrize(
    "spec", ["mote:adapters=4", "mote:adapters=4,layers=2+4", "taser:adapters=4,every=1", "taser:adapters=4,experts=4,every=0"]
)
def test_roles_are_two_encoders_of_merged_weights(tiny_model_with_head, spec):
    checkpoint = build_any(tiny_model_with_head, spec)
    plain = {"mote": "mote:encoders=separate", "taser": "dense:encoders=separate"}[spec.split(":")[0]]
    copies = build(tiny_model_with_head, plain).architecture
    copies.encoder.load_state_dict(merged_state(checkpoint, 0))
    copies.document_encoder.load_state_dict(merged_state(checkpoint, 2 if "experts=4" in spec else 1))
    plain = build(tiny_model_with_head, plain)
    plain.architecture = copies
    expected, architecture = scores(plain), checkpoint.architecture
    assert difference(scores(checkpoint), expected) <= 5e-6
    architecture.merge_adapters()
    assert difference(scores(checkpoint), expected) <= 5e-6 and not list_adapters(architecture)
    assert architecture.document_encoder.embeddings is architecture.encoder.embeddings, "what has no adapters is not copied"
    frozen = [number for number in range(4) if architecture.document_encoder.layers[number] is architecture.encoder.layers[number]]
    assert frozen == {"layers=2+4": [0, 2], "every=1": [0, 2]}.get(spec.split(",")[1] if "," in spec else "", [])


def test_each_text_has_the_vector_of_the_adapters_that_its_routers_choose(tiny_model_with_head):
    checkpoint = build_any(
        tiny_model_with_head, "taser:adapters=4,experts=3,routing=sequence,gate_input=block_input,every=0,gates=per_layer"
    )
    for router in checkpoint.architecture.routers().values():
        router.gate.weight.data.mul_(60)
        router.gate_offset.mul_(60)
    encoded = checkpoint.encode(TEXTS)
    assert list(encoded.routing) == ["layer1", "layer2", "layer3", "layer4"]
    choices = torch.stack([encoded.routing[name].probabilities.argmax(1) for name in encoded.routing], 1)  # [B, layers]
    assert len({tuple(row) for row in choices.tolist()}) > 1
    states = [merged_state(checkpoint, expert) for expert in range(3)]
    for text, row, vector in zip(TEXTS, choices.tolist(), encoded["global"].vectors, strict=True):
        plain = build(tiny_model_with_head, "dense")
        own = {key: states[row[int(key[7])] if key.startswith("layers.") else 0][key] for key in plain.architecture.encoder.state_dict()}
        plain.architecture.encoder.load_state_dict(own)
        assert difference({"global": vector}, {"global": plain.encode([text])["global"].vectors[0]}) <= 5e-6


@pytest.mark.parametrize("spec", ADAPTED)
def test_adapters_routers_and_heads_train_and_nothing_else(tiny_model_with_head, spec):
    checkpoint = build_any(tiny_model_with_head, spec)
    architecture = checkpoint.architecture
    balanced = RegularizerWeights(load_balance=0.01)
    objective = objectives.lce if "cross" in spec else lambda batch: objectives.contrastive(batch, regularizers=balanced)
    gradients = take_step(checkpoint, objective, batch_size=6)[3]
    trained = {name for name, parameter in architecture.named_parameters() if parameter.requires_grad}
    expected = re.compile(r".*\.(down|up)|(router|.*\.router\.gate)\.(weight|bias)|heads\..*|encoder\.(vocabulary_head|pooler)\..*")
    assert all(expected.fullmatch(name) for name in trained) and gradients.keys() <= trained
    unused = {name for name in trained - gradients.keys() if "vocabulary_head" not in name}
    assert not unused and all(bool(gradients[name].any()) for name in gradients if name.endswith((".down", ".up")))
    assert bool(re.search("routing=(sequence|token)", spec)) == any("router" in name for name in trained)
    members = {id(parameter) for group in make_param_groups(architecture, learning_rate=1e-3) for parameter in group["params"]}
    assert members == {id(parameter) for name, parameter in architecture.named_parameters() if name in trained}
    frozen = [parameter for name, parameter in architecture.named_parameters() if name not in trained]
    assert sum(map(torch.numel, frozen)) > 25_000 and architecture.encoder.embeddings.words.weight.grad is None
