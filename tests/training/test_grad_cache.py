"""Gradient caching and recomputed layers: the gradients of the plain step, with dropout, with a fraction of the memory."""

from functools import partial

import pytest
import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.packed_tokens import PackedTokens
from moeir.mixtures import router
from moeir.representations.dense import Dense
from moeir.training import grad_cache, objectives
from moeir.training.regularizers import RegularizerWeights
from moeir.training.retrieval_task import RetrievalTask
from moeir.training.sampling import make_sampler
from tests.kernels.peak_memory import peak_bytes
from tests.mixtures.test_adapters import draw_adapters
from tests.training.toy_examples import assert_same_gradients, make_examples, take_step, tokenize_in_memory

COMPETITIVE = partial(objectives.competitive, standardised=0.0, regularizers=RegularizerWeights(flops_query=1e-3, flops_document=1e-3))
BALANCED = partial(objectives.contrastive, regularizers=RegularizerWeights(load_balance=0.01, entropy_of="batch"))
KINDS = {
    "came": ("came:shared_layers=2,local_dim=8,normalise=true", COMPETITIVE),
    "dense": ("dense:pooling=mean,normalise=true", objectives.contrastive),
    "colbert": ("colbert:dim=8,augmentation=true", objectives.contrastive),
    "taser": ("taser:routing=sequence,every=1", BALANCED),
    "sbmoe": ("sbmoe:experts=3", BALANCED),
    "coil": ("coil", objectives.contrastive),
    "came, adapters": ("came:shared_layers=2,local_dim=8,adapters=4,shared_adapters=3,adapter_dropout=0.2", COMPETITIVE),
    "mote, adapters": ("mote:adapters=4", objectives.contrastive),
    "taser, adapters": ("taser:adapters=4,experts=3,routing=sequence,gate_input=block_input,every=1", BALANCED),
    "taser by token, adapters": ("taser:adapters=4,experts=3,routing=token,gradient=pair,gates=per_layer,every=1", BALANCED),
}


@pytest.fixture(scope="module")
def stepped(tiny_model_with_head):
    """`stepped(kind, …)`: the loss of a batch, its metrics and every gradient."""

    def step(kind, **options):
        arch, objective = KINDS[kind]
        checkpoint = build_checkpoint(tiny_model_with_head, arch, {"query_length": 12, "document_length": 24})
        draw_adapters(checkpoint.architecture)
        return take_step(checkpoint, objective, batch_size=3, **options)[:4]

    return step


PLAIN = ("came", "colbert", "taser", "sbmoe", "coil", "mote, adapters")
RANDOM = ("sbmoe", "came, adapters", "taser by token, adapters")


@pytest.mark.parametrize(("kind", "random"), [*((kind, False) for kind in PLAIN), *((kind, True) for kind in RANDOM)])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(kind, random, stepped, monkeypatch):
    """Without randomness, the gradients of the whole batch; with dropout, those of the same parts with all activations kept."""
    at_once = 20
    if random:
        with monkeypatch.context() as patch:
            patch.setattr(grad_cache, "_encode_recomputed", lambda encode, tokens, parameters: encode(tokens))
            loss, metrics, tokens, gradients = stepped(kind, at_once=at_once)
    else:
        monkeypatch.setattr(router, "uniform_like", lambda logits: torch.full_like(logits, 0.5))
        loss, metrics, tokens, gradients = stepped(kind, random=False)
    cached_loss, cached_metrics, count, cached = stepped(kind, at_once=at_once, random=random)
    assert cached_loss == pytest.approx(loss, abs=1e-5) and count == tokens
    assert cached_metrics == pytest.approx(metrics, abs=1e-5, rel=1e-4)
    assert_same_gradients(cached, gradients)


def test_what_the_loss_does_not_use_gets_no_gradient_in_parts_either():
    """No gradient, rather than one of 0, which an optimiser would answer with momentum and weight decay."""
    used, unused = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)

    def encode(tokens):
        numbers = tokens.ids.index_select(0, tokens.starts[:-1])[:, None].float()
        return EncoderOutput({"global": Dense(used(numbers)), "local": Dense(unused(numbers)), "constant": Dense(numbers)})

    parts = [PackedTokens.from_lists([[number, 9]], "query") for number in (3, 5, 8)]
    grad_cache.encode_with_grad_cache(encode, parts, torch.nn.ModuleList([used, unused]))["global"].vectors.sum().backward()
    assert used.weight.grad[:, 0].tolist() == [16.0, 16.0] and used.bias.grad.tolist() == [3.0, 3.0]
    assert unused.weight.grad is None and unused.bias.grad is None


@pytest.mark.parametrize("kind", RANDOM)
def test_recomputed_layers_change_no_byte(kind, stepped):
    loss, metrics, _, gradients = stepped(kind)
    assert stepped(kind, seed=6)[0] != loss, "dropout is there to be repeated"
    recomputed_loss, recomputed_metrics, _, recomputed = stepped(kind, recompute=True)
    assert recomputed_loss == loss and recomputed_metrics == metrics
    assert all(torch.equal(recomputed[name], one) for name, one in gradients.items()) and recomputed.keys() == gradients.keys()


@pytest.mark.parametrize("experts", ["adapters=0", "adapters=4"])
def test_recomputed_routers_hold_no_graph(experts, tiny_model_with_head):
    rules = {"query_length": 12, "document_length": 24}
    checkpoint = build_checkpoint(tiny_model_with_head, f"taser:routing=token,every=1,{experts}", rules)
    model = checkpoint.architecture.train()
    model.set_gradient_checkpointing(True)
    encoded = model(checkpoint.tokenize(["owl hunts", "bat"], "query"))
    encoded["global"].vectors.sum().backward()
    assert model.routers() and all(router.last_routing is None for router in model.routers().values())


def test_parts_and_recomputation_save_memory(tiny_model_with_head):
    checkpoint = build_checkpoint(tiny_model_with_head, "dense", {"query_length": 60, "document_length": 60})
    long = "owl bat bee fox cat hen oak eel " * 8
    texts = tokenize_in_memory(checkpoint, {f"q{n}": "owl" for n in range(8)}, {f"d{n}": long for n in range(16)})
    sampler = make_sampler(make_examples(8, 7), batch_size=4, negatives=7, seed=1, source="toy")
    model = checkpoint.architecture.train()

    def measure(at_once=None, recompute=False):
        model.set_gradient_checkpointing(recompute)
        task = RetrievalTask(checkpoint, sampler, texts, objectives.contrastive, 1, torch.float32, max_tokens=at_once)
        return peak_bytes(lambda: task.compute_loss(0)[0].backward())

    whole = measure()
    assert whole > 12e6  # bytes: 1,900 tokens
    assert measure(at_once=250) < whole / 4
    assert measure(recompute=True) < whole / 1.5  # four layers are few
