"""Objectives: gradients, required data, refused options."""

from dataclasses import replace

import pytest
import torch

from moeir.architectures.came import Came
from moeir.backbones.encoder import Encoder
from moeir.errors import UsageError
from moeir.pretraining.base import EncodedTexts
from moeir.pretraining.cotmae import Cotmae, CotmaeQc
from moeir.pretraining.mlm import Cocondenser, Condenser, Mlm
from moeir.pretraining.mote import Mote
from tests.pretraining.toy_models import BERT, CONTEXTS, SIGNS, SPANS, architecture, batch, mask_texts, objective

KINDS = (Mlm, Cotmae, CotmaeQc, Mote, Condenser, Cocondenser)


def gradients(model, texts):
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
    layers, shared, decoder = gradients(model, texts)
    assert sum(part.abs().sum() for part in layers if part is not None) > 0.1
    monkeypatch.setattr(EncodedTexts, "vectors", property(lambda read: read.pooled_vectors.index_select(0, read.original_order).detach()))
    bottleneck = Mote.sparse_bottleneck
    monkeypatch.setattr(Mote, "sparse_bottleneck", lambda self, read: bottleneck(self, read).detach())
    apart, still, own = gradients(model, texts)
    assert all(part is None or not part.any() for part in apart)
    for left, right in zip(shared + decoder, still + own, strict=True):
        assert right is not None and right.shape == left.shape
    assert all(part.any() for part in still) and any(part.any() for part in own)


def test_the_decoder_goes_with_the_objective_and_nothing_of_the_encoder_is_doubled():
    model = architecture("mote")
    own = {parameter for parameter in model.parameters()}
    for kind in KINDS:
        added = [name for name, parameter in objective(kind, model).named_parameters() if parameter not in own]
        assert all(name.startswith("decoder.") for name in added) and bool(added) == (kind is not Mlm)


def test_the_sparse_bottleneck_keeps_no_logits_of_all_positions():
    model, texts = objective(Mote, architecture("mote")), batch("query")
    saved_shapes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved_shapes.append(tuple(tensor.shape)) or tensor, lambda tensor: tensor):
        model(texts)
    positions = {sum(map(len, SPANS)), sum(map(len, CONTEXTS)), sum(map(len, CONTEXTS)) - 4}
    assert not [shape for shape in saved_shapes if len(shape) > 1 and shape[-1] == BERT.vocabulary and shape[0] in positions]


def test_routers_keep_no_graph_of_a_past_step():
    came = Came(Encoder(BERT), SIGNS, shared_layers=4, experts=("global",), routing="token")
    came.encoder.vocabulary_head = architecture().encoder.vocabulary_head
    model = Mlm(came)
    model(batch())
    assert came.routers() and all(router.last_routing is None for router in came.routers().values())


WRONG = [
    (Mlm, {"rate": 0.0}, "rate=0.0"),
    (Mlm, {"rate": 1.0}, "rate=1.0"),
    (Cotmae, {"decoder_rate": 1.5}, "decoder_rate=1.5"),
    (Cotmae, {"layers": 0}, "layers=0"),
    (CotmaeQc, {"window": 0}, "window=0"),
    (CotmaeQc, {"window": -2}, "window=-2"),
    (CotmaeQc, {"layers": 0}, "layers=0"),
    (CotmaeQc, {"decoder_weight": -1.0}, "decoder_weight=-1.0"),
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


def test_an_architecture_that_is_not_one_encoder_is_refused():
    towers = Came(Encoder(replace(BERT), vocabulary_head=True), SIGNS, shared_layers=2, local_dim=4)
    with pytest.raises(UsageError, match=r"came cannot be pre-trained as one encoder: .* 2 of 4 layers, .* --arch dense"):
        Mlm(towers)
    headless = architecture()
    headless.encoder.vocabulary_head = None
    with pytest.raises(UsageError, match="needs a vocabulary head"):
        Mlm(headless)
