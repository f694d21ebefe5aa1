"""Objectives: loss and gradients against slow plain versions."""

from dataclasses import fields, replace

import pytest
import torch

from moeir.architectures.taser import Taser
from moeir.backbones.encoder import Encoder
from moeir.errors import UsageError
from moeir.pretraining import base
from moeir.pretraining.base import EncodedTexts
from moeir.pretraining.cotmae import Cotmae, CotmaeQc
from moeir.pretraining.mlm import Cocondenser, Condenser, Mlm, span_contrastive_loss
from moeir.pretraining.mote import Mote
from moeir.training.trainer import metrics_to_floats
from tests.oracles import pretraining as oracles
from tests.pretraining.toy_models import BERT, CONTEXTS, SHAPES, SIGNS, SPANS, architecture, batch, mask_texts, objective

KINDS = (Mlm, Cotmae, CotmaeQc, Mote, Condenser, Cocondenser)
ARCHITECTURES = {"dense": ("dense", {}), "mote": ("mote", {}), "separate": ("mote", {"encoders": "separate"})}
ARCHITECTURES |= {"siamese": ("mote", {"encoders": "siamese"}), "dense-separate": ("dense", {"encoders": "separate"})}


def encode_texts(encoder, texts, side):
    """(middle, last) states of each text, from its masked ids."""
    return [oracles.encode_text(encoder, masked_ids, side) for _, masked_ids, _ in oracles.split_batch(texts)]


def cls_states(states):
    return [last[0] for _, last in states]


def mlm(encoder, states, texts):
    return oracles.mlm_loss(encoder, [last for _, last in states], oracles.split_batch(texts))


def encode(model, texts, side="document"):
    encoder = model.architecture.encoder_for(side)
    return encoder, encode_texts(encoder, texts, side)


def plain_mlm(model, texts):
    encoder, states = encode(model, texts.anchors)
    return mlm(encoder, states, texts.anchors)


def plain_cotmae(model, inputs):
    encoder, anchors = encode(model, inputs.anchors)
    _, contexts = encode(model, inputs.contexts)
    texts = oracles.split_batch(inputs.anchors) + oracles.split_batch(inputs.contexts)
    again = oracles.split_batch(inputs.decoder_contexts) + oracles.split_batch(inputs.decoder_anchors)
    decoded = []
    for vector, (_, ids, _) in zip(cls_states(anchors + contexts), again, strict=True):
        embedded = encoder.embeddings(mask_texts([ids], "document", set()).tokens)
        decoded.append(oracles.run_layers(model.decoder.layers, vector, embedded))
    return oracles.mlm_loss(encoder, [last for _, last in anchors + contexts], texts) + oracles.mlm_loss(encoder, decoded, again)


def plain_cotmae_qc(model, texts):
    encoder, states = encode(model, texts.anchors)
    return mlm(encoder, states, texts.anchors) + oracles.causal_decoder_loss(model.decoder, encoder, cls_states(states), CONTEXTS, 3)


def plain_mote(model, inputs, other="query", switched=False, sparse=True):
    sides = ("query", "document") if switched else ("document", "query")
    total = 0.0
    for side, texts, expected in zip(
        sides, (inputs.anchors, inputs.contexts), (CONTEXTS, {"query": CONTEXTS, "passage": SPANS, "none": None}[other])
    ):
        encoder, states = encode(model, texts, side)
        total = total + mlm(encoder, states, texts)
        if expected is not None:
            total = total + oracles.causal_decoder_loss(model.decoder, encoder, cls_states(states), expected, 3)
        if expected is not None and sparse:
            mixed = [oracles.sparse_bottleneck(encoder, last) for _, last in states]
            total = total + oracles.causal_decoder_loss(model.decoder, encoder, mixed, expected, 3)
    return total


def head(model, encoder, states, texts):
    decoded = [oracles.run_layers(model.decoder.layers, last[0], middle) for middle, last in states]
    return oracles.mlm_loss(encoder, decoded, texts)


def plain_condenser(model, texts):
    encoder, states = encode(model, texts.anchors)
    return mlm(encoder, states, texts.anchors) + head(model, encoder, states, oracles.split_batch(texts.anchors))


def plain_cocondenser(model, inputs):
    encoder, anchors = encode(model, inputs.anchors)
    states = anchors + encode(model, inputs.contexts)[1]
    texts = oracles.split_batch(inputs.anchors) + oracles.split_batch(inputs.contexts)
    late = oracles.mlm_loss(encoder, [last for _, last in states], texts)
    return late + head(model, encoder, states, texts) + oracles.in_batch_contrastive(cls_states(states))


ORACLES = dict(zip(KINDS, (plain_mlm, plain_cotmae, plain_cotmae_qc, plain_mote, plain_condenser, plain_cocondenser)))
VARIANTS = {"query": {}, "passage": {"decode_from_query": "passage"}, "none": {"decode_from_query": "none"}}


def check_gradients(model, texts, expected):
    """Check the loss, and the gradient of every parameter, against the expected loss."""
    parameters = list(model.parameters())
    actual, facts = model(texts)
    (facts,) = metrics_to_floats([facts])
    assert facts["loss"] == pytest.approx(expected.item(), abs=1e-5)
    pairs = (torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (expected, actual))
    for (name, parameter), left, right in zip(model.named_parameters(), *pairs, strict=True):
        zero = torch.zeros_like(parameter)
        left, right = zero if left is None else left, zero if right is None else right
        assert torch.allclose(left, right, atol=2e-5), name
    return facts


@pytest.mark.parametrize(
    ("kind", "arch"), [(kind, arch) for kind in KINDS for arch in (ARCHITECTURES if kind.context == "query" else ("dense", "separate"))]
)
def test_loss_and_gradients_are_those_of_the_plain_form(kind, arch):
    name, options = ARCHITECTURES[arch]
    model, texts = objective(kind, architecture(name, **options)).eval(), batch(kind.context)
    facts = check_gradients(model, texts, ORACLES[kind](model, texts))
    parts = [key.removeprefix("loss.") for key in facts if key.startswith("loss.")]
    assert facts["loss"] == pytest.approx(sum(facts[f"loss.{part}"] for part in parts), abs=1e-5)
    assert all(0 <= facts[f"accuracy.{part}"] <= 1 for part in parts) and "bottleneck_gain" not in facts


@pytest.mark.parametrize("arch", ["mote", "separate"])
@pytest.mark.parametrize(
    "other, switched, sparse", [("query", True, True), ("query", False, False), ("passage", False, True), ("none", True, False)]
)
def test_queries_decode_and_change_experts_as_told(arch, other, switched, sparse):
    name, options = ARCHITECTURES[arch]
    model = objective(Mote, architecture(name, **options), switch_corpus=switched, sparse=sparse, **VARIANTS[other]).eval()
    texts = batch("query")
    facts = check_gradients(model, texts, plain_mote(model, texts, other, switched, sparse))
    sides = ["document"] if other == "none" else ["document", "query"]
    decoded = {f"loss.{kind}.{side}" for kind in (("dense", "sparse") if sparse else ("dense",)) for side in sides}
    assert {key for key in facts if key.startswith("loss.")} == {"loss.mlm.document", "loss.mlm.query", *decoded}


def test_weights_of_parts_are_those_said():
    model = objective(Mote, architecture("mote"), decoder_weight=0.5, sparse_weight=0.25).eval()
    loss, facts = model(batch("query"))
    (facts,) = metrics_to_floats([facts])
    expected = sum(
        facts[f"loss.mlm.{side}"] + 0.5 * facts[f"loss.dense.{side}"] + 0.25 * facts[f"loss.sparse.{side}"]
        for side in ("document", "query")
    )
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_spans_meet_by_hand():
    """Four unit vectors: partners 0-2 and 1-3; the pair 0-2 is alike, 1 and 3 are not."""
    vectors = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, -1]])
    loss = span_contrastive_loss(vectors)
    e = torch.tensor(1.0).exp()
    by_hand = torch.stack([(e + 2).log() - 1, (1 / e + 2).log() + 1, (e + 2).log() - 1, (1 / e + 2).log() + 1]).mean()
    assert loss.value.item() == pytest.approx(by_hand.item()) and int(loss.correct) == 2 and loss.count == 4
    assert oracles.in_batch_contrastive(vectors).item() == pytest.approx(by_hand.item())


def test_the_vector_is_pooled_as_the_architecture_pools():
    texts = batch().anchors
    for pooling in ("cls", "mean"):
        model = objective(Mlm, architecture("dense", pooling=pooling, normalise=True)).eval()
        states = [last for _, last in encode_texts(model.architecture.encoder, texts, "document")]
        expected = torch.stack([state[0] if pooling == "cls" else state.mean(0) for state in states])
        assert torch.allclose(model.encode(texts).vectors, expected, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_runs_in_half_precision_and_the_order_of_texts_is_nothing(kind, shape):
    free_layers = {} if shape.experts is None else {"layers": ("1", "3")}
    model, texts = objective(kind, architecture("mote", shape, **free_layers)).eval(), batch(kind.context)
    loss, facts = model(texts)
    assert not any(router.last_routing for side in ("query", "document") for router in model.architecture.routers(side).values())
    (facts,) = metrics_to_floats([facts])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, _ = model(texts)
    half.backward()
    assert half.dtype == torch.float32 and half.item() == pytest.approx(loss.item(), rel=0.05)
    assert all(parameter.grad is None or bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    (reversed_metrics,) = metrics_to_floats([model(reverse_texts(texts))[1]])
    assert reversed_metrics == pytest.approx(facts, abs=1e-4)


def reverse_texts(inputs):
    """The same texts in the opposite order."""

    def turned(texts):
        if texts is None:
            return None
        rows = oracles.split_batch(texts)[::-1]
        return mask_texts([plain for plain, _, _ in rows], texts.tokens.side, *(set(hidden) for _, _, hidden in rows))

    parts = (turned(getattr(inputs, name)) for name in (item.name for item in fields(inputs)[:4]))
    return type(inputs)(*parts, inputs.step, inputs.steps)


WEIGHTED = (Cotmae, CotmaeQc, Condenser, Cocondenser, Mote)


def make(kind, **options):
    return objective(kind, architecture("mote" if kind is Mote else "dense"), **options).eval()


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)


def mlm_share(metrics):
    return sum(value for name, value in metrics.items() if name.startswith("loss.mlm"))


@pytest.mark.parametrize("kind", WEIGHTED)
def test_the_loss_counts_the_encoders_own_part_by_its_weight(kind):
    inputs = batch(kind.context)
    plain, metrics = make(kind)(inputs)
    loss, weighted = make(kind, mlm_weight=0.25)(inputs)
    assert loss.item() == pytest.approx((plain - 0.75 * mlm_share(metrics)).item(), rel=1e-6)
    assert weighted.keys() == metrics.keys() and mlm_share(weighted) == mlm_share(metrics), "metrics are without weights"


@pytest.mark.parametrize("kind", WEIGHTED)
def test_with_weight_0_nothing_of_it_is_computed_and_the_rest_is_what_it_was(kind, monkeypatch):
    inputs, plain = batch(kind.context), make(kind)
    parts = {}
    combine = plain.combine_losses
    monkeypatch.setattr(plain, "combine_losses", lambda named: parts.update(named) or combine(named))
    plain(inputs)
    rest = sum(part.value for name, part in parts.items() if not name.startswith("mlm"))
    expected = gradients(plain, rest)

    def refuse(*_):
        raise AssertionError("computed in spite of mlm_weight=0")

    monkeypatch.setattr(base, "mlm_loss", refuse)
    model = make(kind, mlm_weight=0)
    loss, metrics = model(inputs)
    assert not [name for name in metrics if "mlm" in name]
    assert loss.item() == pytest.approx(rest.item(), rel=1e-6)
    for one, other in zip(gradients(model, loss), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_text_that_is_neither_predicted_nor_decoded_is_not_encoded(monkeypatch):
    model = make(Mote, mlm_weight=0, decode_from_query="none")
    encode, sides = model.encode, []
    monkeypatch.setattr(model, "encode", lambda texts: sides.append(texts.tokens.side) or encode(texts))
    model(batch("query"))
    assert sides == ["document"]


@pytest.mark.parametrize("kind, options", [(CotmaeQc, {}), (Mote, {"sparse_weight": 0}), (Mote, {"sparse": False})])
def test_weights_that_are_all_0_are_refused(kind, options):
    with pytest.raises(UsageError, match=r"decoder_weight=0, mlm_weight=0.*nothing would be learned"):
        make(kind, mlm_weight=0, decoder_weight=0, **options)


def gradients_by_part(model, texts):
    """Gradients of the encoder's layers, of the weights it shares with the decoder, and of the decoder."""
    encoder = model.architecture.encoder
    shared = [encoder.embeddings.words.weight, encoder.vocabulary_head.transform.weight]
    groups = [list(encoder.layers.parameters()), shared, list(model.decoder.parameters())]
    part_gradients = iter(torch.autograd.grad(model(texts)[0], [part for group in groups for part in group], allow_unused=True))
    return [[next(part_gradients) for _ in group] for group in groups]


@pytest.mark.parametrize("kind", [Cotmae, CotmaeQc, Mote])
def test_the_decoder_reaches_the_encoders_layers_through_the_vector_alone(kind, monkeypatch):
    """Nothing is masked for the encoder, so all loss is the decoder's: with the vectors detached no layer gets a gradient."""
    model, texts = objective(kind, architecture("mote")), batch(kind.context)
    side = "query" if kind.context == "query" else "document"
    open_texts = {"anchors": mask_texts(SPANS, "document", *[set()] * 4), "contexts": mask_texts(CONTEXTS, side, *[set()] * 4)}
    texts = replace(texts, **open_texts)
    layers, shared, decoder = gradients_by_part(model, texts)
    assert sum(part.abs().sum() for part in layers if part is not None) > 0.1
    monkeypatch.setattr(EncodedTexts, "vectors", property(lambda read: read.pooled_vectors.index_select(0, read.original_order).detach()))
    bottleneck = Mote.sparse_bottleneck
    monkeypatch.setattr(Mote, "sparse_bottleneck", lambda self, read: bottleneck(self, read).detach())
    apart, still, own = gradients_by_part(model, texts)
    assert all(part is None or not part.any() for part in apart)
    for left, right in zip(shared + decoder, still + own, strict=True):
        assert right is not None and right.shape == left.shape
    assert all(part.any() for part in still) and any(part.any() for part in own)


def test_what_the_data_side_must_bring():
    needs = [(kind.context, model.encoder_rate, model.decoder_rate) for kind in KINDS for model in [kind(architecture())]]
    assert needs[:3] == [("none", 0.15, None), ("span", 0.30, 0.45), ("query", 0.30, None)]
    assert needs[3:] == [("query", 0.30, None), ("none", 0.15, None), ("span", 0.15, None)]


def test_the_sparse_bottleneck_keeps_no_logits_of_all_positions():
    model, texts = objective(Mote, architecture("mote")), batch("query")
    saved_shapes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved_shapes.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
        model(texts)
    positions = {sum(map(len, SPANS)), sum(map(len, CONTEXTS)), sum(map(len, CONTEXTS)) - 4}
    assert not [shape for shape in saved_shapes if len(shape) > 1 and shape[-1] == BERT.vocabulary and shape[0] in positions]


def test_routers_keep_no_graph_of_a_past_step():
    taser = Taser(Encoder(BERT), SIGNS, routing="token")
    taser.encoder.vocabulary_head = architecture().encoder.vocabulary_head
    model = Mlm(taser)
    model(batch())
    assert taser.routers() and all(router.last_routing is None for router in taser.routers().values())


WRONG = [
    (Mlm, {"rate": 0.0}, "rate=0.0"),
    (Mlm, {"rate": 1.0}, "rate=1.0"),
    (Cotmae, {"decoder_rate": 1.5}, "decoder_rate=1.5"),
    (Cotmae, {"layers": 0}, "layers=0"),
    (CotmaeQc, {"window": 0}, "window=0"),
    (CotmaeQc, {"window": -2}, "window=-2"),
    (CotmaeQc, {"layers": 0}, "layers=0"),
    (CotmaeQc, {"decoder_weight": -1.0}, "decoder_weight=-1.0"),
    (Mote, {"decode_from_query": "both"}, "decode_from_query=both"),
    (Mote, {"sparse_weight": -0.5}, "sparse_weight=-0.5"),
    (Mote, {"rate": float("nan")}, "rate=nan"),
    (Cotmae, {"mlm_weight": -0.5}, "mlm_weight=-0.5"),
    (Mote, {"mlm_weight": float("nan")}, "mlm_weight=nan"),
    (Cocondenser, {"contrastive_weight": -1.0}, "contrastive_weight=-1.0"),
]


@pytest.mark.parametrize("kind, wrong, message", WRONG)
def test_an_option_that_cannot_be_is_refused_with_what_was_found(kind, wrong, message):
    with pytest.raises(UsageError, match=f"^{message}: expected"):
        kind(architecture(), **wrong)


def test_an_encoder_without_a_vocabulary_head_is_refused():
    headless = architecture()
    headless.encoder.vocabulary_head = None
    with pytest.raises(UsageError, match="needs a vocabulary head"):
        Mlm(headless)
