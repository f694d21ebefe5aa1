"""Small seeded architectures with vocabulary heads, and masked texts, for the tests of objectives."""

import torch

from moeir.architectures.dense import Dense
from moeir.architectures.mote import Mote
from moeir.backbones.config import EncoderConfig, ExpertsConfig, PreNormConfig
from moeir.backbones.encoder import Encoder, VocabularyHead
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.pretraining.batches import MaskedTexts, PretrainingBatch

CLS, SEP, MASK = 1, 2, 3
SIGNS = SpecialTokens(beginning=CLS, separator=SEP, mask=MASK, query_marker=None, document_marker=None, punctuation=())
SIZES = {"vocabulary": 40, "hidden": 16, "layers": 4, "heads": 2, "intermediate_size": 24, "positions": 32, "initializer_range": 0.3}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
BERT = EncoderConfig(**SIZES, **NO_DROPOUT)
NARROW_EMBEDDINGS = EncoderConfig(**SIZES, **NO_DROPOUT, factorized_embedding_size=10)
MODERN = EncoderConfig(**SIZES, **NO_DROPOUT, prenorm=PreNormConfig(windows=(None, 4, 4, None), thetas=(160.0, 10.0, 10.0, 160.0)))
ROUTED = EncoderConfig(**SIZES, **NO_DROPOUT, segments=1, theta=100.0, experts=ExpertsConfig(count=3, top_k=2, every=2))
SHAPES = {"bert": BERT, "narrow": NARROW_EMBEDDINGS, "modern": MODERN, "routed": ROUTED}
FAMILIES = {"dense": Dense, "mote": Mote}

SPANS = [[1, 7, 9, 11, 6, 2], [1, 8, 5, 2], [1, 13, 14, 5, 15, 16, 2], [1, 17, 20, 2]]
CONTEXTS = [[1, 9, 21, 2], [1, 22, 23, 8, 24, 5, 2], [1, 25, 2], [1, 26, 27, 28, 29, 2]]


def mask_texts(texts, side, *hidden):
    """Texts with the positions `hidden` of each text replaced by [MASK]."""
    input_ids = [
        [MASK if position in masked_positions else word for position, word in enumerate(text)]
        for text, masked_positions in zip(texts, hidden, strict=True)
    ]
    starts = torch.tensor([0, *map(len, texts)]).cumsum(0).tolist()
    flat_positions = [start + position for start, masked_positions in zip(starts, hidden) for position in sorted(masked_positions)]
    plain = torch.tensor([word for text in texts for word in text])
    return MaskedTexts(PackedTokens.from_lists(input_ids, side), plain, torch.tensor(flat_positions, dtype=torch.int64))


def batch(context="span"):
    """Four spans, and for each another span or a query."""
    side = "query" if context == "query" else "document"
    anchors, contexts = mask_texts(SPANS, "document", {1}, {2}, {3, 4}, {1}), mask_texts(CONTEXTS, side, {1}, {3, 5}, {1}, set())
    decoder_anchors = mask_texts(SPANS, "document", {1, 3}, {1}, {2, 4, 5}, {1, 2})
    decoder_contexts = mask_texts(CONTEXTS, side, {2}, {1, 2}, {1}, {2, 4})
    return PretrainingBatch(anchors, contexts, decoder_anchors, decoder_contexts, 0, 10)


def architecture(name="dense", shape=BERT, **options):
    """An architecture with perturbed weights: copies of an expert differ, norms and biases are not at their initial values."""
    torch.manual_seed(0)
    model = FAMILIES[name](Encoder(shape, vocabulary_head=True), SIGNS, **options)
    for encoder in (model.encoder, model.encoder_for("document")):
        if encoder.vocabulary_head is None:
            encoder.vocabulary_head = VocabularyHead(shape)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def objective(kind, base_model, **options):
    """An objective over an architecture, its decoder's weights perturbed."""
    torch.manual_seed(1)
    model = kind(base_model, **options)
    for name, parameter in model.named_parameters():
        if not name.startswith("architecture."):
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model
