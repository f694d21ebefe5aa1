"""Architectures with experts: inputs, trained parameters, gates, and some of the experts alone."""

import re

import pytest
import torch

from moeir.architectures.checkpoint import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.errors import UsageError
from tests.architectures.folders import assert_refused, save

TEXTS = ["An owl hunts mice at night.", "bee", "A bat finds moths in the dark by listening to its own echo.", "What eats moths?"]
RULES = {"query_length": 12, "document_length": 16}
SPECS = [
    "taser", "taser:routing=shared", "taser:routing=sequence,experts=3,every=1", "taser:routing=token,gates=per_layer,layers=2+4",
    "taser:experts=5,every=1", "mote", "mote:encoders=siamese", "mote:encoders=separate",
    "mote:similarity=dense", "mote:similarity=sparse", "sbmoe", "sbmoe:gate=random,experts=3",
    "sbmoe:experts=1,normalise=true",
    "sbmoe:combine=release", "dense:encoders=separate",
    "came:shared_layers=2,local_dim=8,adapters=4,shared_adapters=3,adapter_dropout=0.1",
    "came:shared_layers=0,adapters=4,experts=local+global",
    "mote:adapters=4", "mote:encoders=siamese,adapters=4", "taser:adapters=4,every=1", "taser:adapters=4,experts=3,routing=token",
    "taser:adapters=4,experts=3,routing=sequence,gate_input=block_input,gates=per_layer,every=1", "taser:adapters=4,experts=5,every=0",
]  # fmt: skip


def build(model, spec, seed=0):
    return build_checkpoint(model, spec, RULES, TEXTS, seed)


def scores(checkpoint, texts=TEXTS, **options):
    queries, documents = (checkpoint.encode(texts, side, **options) for side in ("query", "document"))
    return {name: queries[name].scores(documents[name]) for name in queries.representations}


def perturb(checkpoint, seed=5):
    """Perturb the weights, so that copies of an expert differ."""
    torch.manual_seed(seed)
    for parameter in checkpoint.architecture.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return checkpoint


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "sbmoe" not in spec])
def test_copied_experts_start_as_the_plain_model(tiny_model_with_head, spec):
    name = spec.split(":")[0]
    plain = {"mote": "mote:encoders=siamese", "taser": "taser:routing=shared", "dense": "dense", "came": "came:shared_layers=2"}[name]
    if name == "mote" and "similarity" in spec:
        plain += "," + spec.split(":")[1]
    reference = scores(build(tiny_model_with_head, plain))
    for expert, actual in scores(build(tiny_model_with_head, spec)).items():
        if expert == "local":  # its projection is initialised after the gate
            continue
        assert torch.allclose(actual, reference[expert], atol=1e-4), expert


PLAIN = ["came:shared_layers=2,pooling=mean", "colbert:dim=8,markers=true,augmentation=true", "coil:dim=4,cls_dim=6"]


@pytest.mark.parametrize("spec", [*SPECS, *PLAIN])
def test_company_batches_and_order_change_nothing(tiny_model_with_head, spec):
    checkpoint = perturb(build(tiny_model_with_head, spec))
    together, alone = scores(checkpoint), scores(checkpoint, max_tokens=1)
    batches = scores(checkpoint, TEXTS[::-1], max_tokens=20)
    for name, actual in together.items():
        assert torch.allclose(alone[name], actual, atol=1e-4), name
        assert torch.allclose(batches[name].flip(0, 1), actual, atol=1e-4), name




LEARNED = [spec for spec in SPECS if any(word in spec for word in ("sequence", "token"))]
LEARNED += ["sbmoe", "sbmoe:normalise=true", "sbmoe:combine=weighted"]
RELEASED = ["sbmoe:combine=release", "taser:routing=token,gradient=none"]


@pytest.mark.parametrize("spec", [*LEARNED, *RELEASED])
def test_every_learned_gate_but_that_of_a_release_learns_from_the_ranking_loss_alone(tiny_model_with_head, spec):
    checkpoint = perturb(build(tiny_model_with_head, spec))
    architecture = checkpoint.architecture.train()
    torch.manual_seed(1)
    queries, documents = (architecture(checkpoint.tokenize(TEXTS, side)) for side in ("query", "document"))
    for name in queries.representations:
        queries[name].scores(documents[name]).log_softmax(1).diag().mean().neg().backward(retain_graph=True)
    kinds = {"gate": r"(.*\.)?router\..*|.*\.gate\..*", "noise": r".*\.noise\..*", "expert": r".*\.experts\..*|.*\.(down|up)"}
    named = [(name, parameter.grad) for name, parameter in architecture.named_parameters() if parameter.grad is not None]
    norms = {kind: sum(float(grad.square().sum()) for name, grad in named if re.fullmatch(words, name)) for kind, words in kinds.items()}
    for kind in ("gate", *(["noise"] if "sbmoe" in spec else [])):
        ratio = (norms[kind] / norms["expert"]) ** 0.5
        assert ratio < 1e-5 if spec in RELEASED else ratio > (1e-3 if kind == "gate" else 1e-4), norms


def test_routers_say_where_they_sent_each_text(tiny_model_with_head):
    checkpoint = perturb(build(tiny_model_with_head, "taser:routing=sequence,experts=3,every=1"))
    outputs = checkpoint.encode(TEXTS, "query", max_tokens=8).routing
    assert list(outputs) == ["layer2", "layer4"] and all(len(routing) == len(TEXTS) for routing in outputs.values())
    alone = [checkpoint.encode([text], "query").routing["layer4"].probabilities[0] for text in TEXTS]
    assert torch.allclose(outputs["layer4"].probabilities, torch.stack(alone), atol=1e-5)
    by_token = perturb(build(tiny_model_with_head, "taser:routing=token")).encode(TEXTS, "document").routing["layer3"]
    assert (by_token.starts[1:] - by_token.starts[:-1]).tolist() == [len(ids) for ids in checkpoint.token_ids(TEXTS, "document")[0]]
    assert list(build(tiny_model_with_head, "sbmoe:experts=3").encode(TEXTS).routing) == ["gate"]
    assert not build(tiny_model_with_head, "taser").encode(TEXTS).routing, "roles need no router"


@pytest.mark.parametrize("routing", ["sequence", "token"])
@pytest.mark.parametrize("gates", ["one", "per_layer"])
def test_a_fresh_router_has_no_favourite(tiny_model, routing, gates):
    """A random gate sends nearly all texts to one expert, because their common component decides."""
    who = ["owl", "bat", "bee", "ant", "cat", "dog", "fox", "hen", "pig", "rat"]
    what = ["eats", "sees", "hunts", "finds", "hears"] * 2
    words = [f"{one} {other}" for one, other in zip(who, what, strict=True)]
    checkpoint = build_checkpoint(tiny_model, f"taser:routing={routing},gates={gates},every=1", RULES, words)
    for name, output in checkpoint.encode(words[::2]).routing.items():
        assert torch.allclose(output.probabilities.mean(0), torch.full((2,), 0.5), atol=0.05), name
        assert len(set(output.probabilities.argmax(1).tolist())) == 2, name


def test_an_inference_mode_is_rewritten_without_training(tiny_model_with_head, tmp_path):
    trained = perturb(build(tiny_model_with_head, "sbmoe:experts=3"))
    trained.save(tmp_path)
    modes = {mode: build_checkpoint(tmp_path, f"sbmoe:inference={mode}", {}) for mode in ("top1", "all")}
    scores_by_mode = {mode: scores(checkpoint)["global"] for mode, checkpoint in modes.items()}
    assert torch.equal(scores_by_mode["top1"], scores(trained)["global"])
    assert not torch.allclose(scores_by_mode["all"], scores_by_mode["top1"])
    assert "experts=3" in modes["all"].spec and "inference=all" in modes["all"].spec


def test_separate_encoders_get_the_same_fitted_head(tiny_model):
    separate = build_checkpoint(tiny_model, "mote:encoders=separate", RULES, TEXTS * 20).architecture
    one, other = separate.encoder.vocabulary_head.state_dict(), separate.document_encoder.vocabulary_head.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_gate_is_centred_unless_it_is_left_as_drawn(tiny_model_with_head, tmp_path):
    spec = "taser:routing=sequence,every=1"
    for start in ("centred", "drawn"):
        checkpoint = build(tiny_model_with_head, f"{spec},gate_start={start}")
        for one in (checkpoint, open_checkpoint(save(checkpoint, tmp_path / start))):
            offsets = [router.gate_offset for router in one.architecture.routers().values()]
            assert len(offsets) == 2 and all(bool((offset != 0).all()) == (start == "centred") for offset in offsets)


@pytest.mark.parametrize("spec", ["came:shared_layers=2,local_dim=8", "came:shared_layers=2,local_dim=8,lexical_queries=tokens", "mote",
    "mote:adapters=4", "came:shared_layers=2,local_dim=8,adapters=4"])  # fmt: skip
@pytest.mark.parametrize("side", ["query", "document"])
def test_some_experts_are_what_they_are_among_all_and_cost_no_other(tiny_model_with_head, spec, side):
    checkpoint = perturb(build(tiny_model_with_head, spec))
    every, ran = checkpoint.encode(TEXTS, side), []
    towers = getattr(checkpoint.architecture, "towers", {})
    for name, tower in towers.items():
        tower[0].register_forward_hook(lambda *_, name=name: ran.append(name))
    for wanted in (["global"], ["global", "lexical"], ["lexical"]):
        ran.clear()
        some = checkpoint.encode(TEXTS, side, experts=wanted)
        assert set(some) == set(wanted)
        for name in wanted:
            assert torch.equal(some[name].scores(every[name]), every[name].scores(every[name])), name
        unread = {"lexical"} if side == "query" and "tokens" in spec else set()
        assert set(ran) == (set(wanted) - unread if towers else set())
    for wrong in ("global", [], ["global", "none"]):
        assert_refused(UsageError, r"encode: experts=.*: expected a list of some of ", checkpoint.encode, TEXTS, side, experts=wrong)
    assert_refused(UsageError, "expected at least one text", checkpoint.encode, [], side)
