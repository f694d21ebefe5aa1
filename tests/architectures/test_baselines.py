"""COIL, SPLADE and ColBERT: parameter counts, and every option against plain computations on the same states."""

from itertools import pairwise

import pytest
import torch
from transformers import BertModel

from moeir import variants
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.encoder import Encoder, EncoderConfig
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from tests.oracles import representations as oracles

TEXTS = ["An owl hunts mice at night, and sleeps!", "bee", "A bat finds moths in the dark, a bat by its echo.", "?"]
RULES = {"query_length": 12, "document_length": 16}
BERT_BASE, BERT = EncoderConfig(vocabulary=30522, hidden=768, layers=12, heads=12, intermediate_size=3072), 108_891_648
SIGNS = SpecialTokens(1, 2, 3, 4, 5, (6, 7))
TOKEN, CLS = 768 * 32 + 32, 768 * 768 + 768


def build(model, spec):
    return build_checkpoint(model, spec, RULES)


def split(representation):
    return [representation.vectors[first:last] for first, last in pairwise(representation.starts.tolist())]


@torch.no_grad()
def reference_states(model, checkpoint, side, *, mask=None):
    """States [L, H] of every text, by transformers; `mask` selects the tokens attended to."""
    theirs = BertModel.from_pretrained(model).eval()
    ids = checkpoint.token_ids(TEXTS, side)[0]
    return ids, [theirs(input_ids=torch.tensor([text]), attention_mask=mask and mask(text)).last_hidden_state[0] for text in ids]


@pytest.mark.parametrize(
    "spec, count",
    [
        ("coil", BERT + TOKEN + CLS),
        ("coil:cls_dim=0", BERT + TOKEN),
        ("coil:dim=8,cls_dim=128", BERT + 768 * 8 + 8 + 768 * 128 + 128),
        ("coil:token_norm=true,cls_norm=true", BERT + TOKEN + CLS + 2 * 32 + 2 * 768),
        ("splade:pooling=sum", BERT + 622_650),
        ("colbert:markers=true,augmentation=true,attend_masks=true", BERT + 98_304),
    ],
)
def test_bert_base_counts_are_those_of_the_parts(spec, count):
    with torch.device("meta"):
        assert variants.bind_variant("architectures", spec)(Encoder(BERT_BASE, vocabulary_head=True), SIGNS).parameter_count() == count


@pytest.mark.parametrize("options", ["", ",separator=true", ",token_norm=true,cls_norm=true", ",relu=true"])
def test_coil_scores_are_those_of_loops_over_the_states(tiny_model, options):
    checkpoint = build(tiny_model, f"coil:dim=4,cls_dim=6{options}")
    exact, dense = (checkpoint.architecture.heads[name] for name in ("exact", "global"))
    sides = {}
    for side in ("query", "document"):
        ids, every = reference_states(tiny_model, checkpoint, side)
        tokens = [exact.projection(part) for part in every]
        tokens = [torch.nn.functional.layer_norm(part, (4,)) for part in tokens] if "token_norm" in options else tokens
        tokens = [part.relu() for part in tokens] if "relu" in options else tokens
        first = [dense.projection(part[0]) for part in every]
        first = [torch.nn.functional.layer_norm(part, (6,)) for part in first] if "cls_norm" in options else first
        last = None if "separator" in options else -1
        pairs = [list(zip(text[1:last], part[1:last].tolist(), strict=True)) for text, part in zip(ids, tokens, strict=True)]
        sides[side] = [part.tolist() for part in first], pairs
    queries, documents = (checkpoint.encode(TEXTS, side) for side in ("query", "document"))
    for name, index, score in (("global", 0, oracles.dense), ("exact", 1, oracles.exact_match)):
        expected = [[score(query, document) for document in sides["document"][index]] for query in sides["query"][index]]
        assert torch.allclose(queries[name].scores(documents[name]), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_coil_is_trained_and_searched_as_one_score(tiny_model):
    checkpoint = build(tiny_model, "coil:dim=4,cls_dim=6")
    assert checkpoint.encode(TEXTS).score_groups == {"hybrid": ("global", "exact")}
    assert checkpoint.architecture.default_fusion == "exact-sum"
    alone = build(tiny_model, "coil:dim=4,cls_dim=0")
    assert alone.encode(TEXTS).score_groups == {"exact": ("exact",)} and set(alone.architecture.representation_kinds) == {"exact"}


def test_company_order_and_batches_change_nothing(tiny_model):
    checkpoint = build(tiny_model, "coil:dim=4,cls_dim=6")
    together = checkpoint.encode(TEXTS, max_tokens=20)
    for index, text in enumerate(TEXTS):
        alone = checkpoint.encode([text])
        for name, part in alone.representations.items():
            actual = together[name].select(torch.tensor([index]))
            assert all(torch.allclose(actual.columns()[key], column, atol=1e-5) for key, column in part.columns().items())


def test_splade_sums_the_weights_of_all_positions_where_asked(tiny_model_with_head):
    checkpoint = build(tiny_model_with_head, "splade:pooling=sum")
    largest = build(tiny_model_with_head, "splade").encode(TEXTS)["lexical"].to_matrix()
    actual = checkpoint.encode(TEXTS)["lexical"].to_matrix()
    encoder = checkpoint.architecture.encoder
    for row, text in zip(actual.tolist(), TEXTS, strict=True):
        with torch.no_grad():
            expected = oracles.sum_pooled_lexical(encoder.logits(encoder(checkpoint.tokenize([text], "document"))).tolist())
        assert row == pytest.approx([expected.get(term, 0.0) for term in range(len(row))], rel=1e-4, abs=1e-5)
    assert bool((actual >= largest - 1e-5).all()) and bool((actual > largest + 1e-3).any())


@pytest.mark.parametrize("attended", [False, True])
def test_masks_of_a_query_are_looked_at_only_where_asked(tiny_model, attended):
    checkpoint = build(tiny_model, f"colbert:dim=4,normalise=true,markers=true,augmentation=true,attend_masks={attended}".lower())
    sign = checkpoint.tokenizer.special_tokens.mask
    _, every = reference_states(
        tiny_model, checkpoint, "query", mask=lambda ids: torch.tensor([[int(attended or one != sign) for one in ids]])
    )
    weight = checkpoint.architecture.heads["local"].projection.weight
    for actual, part in zip(split(checkpoint.encode(TEXTS, "query")["local"]), every, strict=True):
        assert torch.allclose(actual, torch.nn.functional.normalize(part @ weight.T, dim=-1), atol=1e-4)


def test_colbert_as_published(tiny_model):
    """[CLS] [Q] q [SEP] [MASK] … of one length; [CLS] [D] d [SEP] without punctuation; unit vectors; scores are sums of cosines."""
    checkpoint = build(tiny_model, "colbert:dim=4,normalise=true,markers=true,augmentation=true,punctuation=false")
    queries, documents = checkpoint.encode(TEXTS, "query")["local"], checkpoint.encode(TEXTS)["local"]
    assert {len(part) for part in split(queries)} == {12}
    ids = checkpoint.token_ids(TEXTS, "document")[0]
    words = [[checkpoint.tokenizer.id_to_token(number) for number in text] for text in ids]
    kept_rows = [[index for index, word in enumerate(text) if word not in tuple(",.?!")] for text in words]
    assert [len(part) for part in split(documents)] == [len(positions) for positions in kept_rows]
    _, every = reference_states(tiny_model, checkpoint, "document")
    weight = checkpoint.architecture.heads["local"].projection.weight
    for actual, part, positions in zip(split(documents), every, kept_rows, strict=True):
        assert torch.allclose(actual, torch.nn.functional.normalize(part[positions] @ weight.T, dim=-1), atol=1e-4)
    assert float(queries.scores(documents).detach().abs().max()) <= 12.001


@pytest.mark.parametrize(
    "spec, message",
    [
        ("coil:dim=0", "exact dimension 0: expected at least 1"),
        ("coil:cls_dim=-1", "coil:cls_dim=-1: expected 1 or more, or 0 for no"),
        ("coil:cls_dim=0,cls_norm=true", "with cls_dim=0 there is no"),
        ("coil:exact_scale=-1", "coil:exact_scale=-1.0: expected 0 or more"),
        ("splade:pooling=mean", "lexical pooling=mean: expected one of max, sum"),
        ("colbert:attend_masks=true", "it needs augmentation=true, which adds the .MASK. tokens"),
    ],
)
def test_impossible_options_are_refused(tiny_model, spec, message):
    with pytest.raises(UsageError, match=message) as caught:
        build(tiny_model, spec)
    assert "\n" not in str(caught.value)
