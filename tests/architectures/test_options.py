"""Options of architectures, against plain computations on the states that transformers gives."""

import shutil
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from transformers import BertModel

from moeir.architectures.initialize import build_checkpoint
from tests.oracles import representations as oracles

TEXTS = ["An owl hunts mice at night, and sleeps!", "bee", "A bat finds moths in the dark, a bat by its echo.", "?"]
RULES = {"query_length": 12, "document_length": 16}
CAME = "came:shared_layers=2,local_dim=8"
COLBERT = "colbert:dim=8,normalise=true,markers=true"


def build(model, spec, **rules):
    return build_checkpoint(model, spec, RULES | rules)


def split(representation):
    return [representation.vectors[first:last] for first, last in pairwise(representation.starts.tolist())]


def tokens_of(checkpoint, text, side="document"):
    return [checkpoint.tokenizer.id_to_token(number) for number in checkpoint.token_ids([text], side)[0][0]]


@pytest.fixture(scope="module")
def model(tiny_model_with_head):
    return tiny_model_with_head


@torch.no_grad()
def reference_states(model, checkpoint, side, *, mask=None):
    """Ids and states [L, H] of every text, by transformers; `mask` selects the tokens attended to."""
    theirs = BertModel.from_pretrained(model).eval()
    ids = checkpoint.token_ids(TEXTS, side)[0]
    return ids, [theirs(input_ids=torch.tensor([text]), attention_mask=mask and mask(text)).last_hidden_state[0] for text in ids]


def test_separate_encoders_read_their_own_side(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    changed = BertModel.from_pretrained(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    changed.save_pretrained(other)
    checkpoint = build(model, "dense:pooling=mean,encoders=separate")
    checkpoint.architecture.document_encoder.load_state_dict(build(other, "dense").architecture.encoder.state_dict())
    for side, folder in (("query", model), ("document", other)):
        expected = torch.stack([states.mean(0) for states in reference_states(folder, checkpoint, side)[1]])
        actual = checkpoint.encode(TEXTS, side)["global"].vectors
        assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max(), side


@pytest.mark.parametrize("normalise", ["false", "true"])
def test_an_untrained_came_says_what_its_experts_say_alone(model, normalise):
    together = build(model, f"{CAME},local_normalise={normalise},normalise={normalise}")
    singles = {"lexical": "splade", "local": f"colbert:dim=8,normalise={normalise}", "global": f"dense:normalise={normalise}"}
    for expert, alone in singles.items():
        single = build(model, alone)
        if expert == "local":
            single.architecture.heads["local"].load_state_dict(together.architecture.heads["local"].state_dict())
        for side in ("query", "document"):
            actual, expected = together.encode(TEXTS, side)[expert], single.encode(TEXTS, side)[expert]
            assert all(torch.allclose(actual.columns()[name], column, atol=1e-5) for name, column in expected.columns().items())
            assert expert == "lexical" or normalise == "false" or torch.allclose(actual.vectors.norm(dim=-1), torch.tensor(1.0))


def test_texts_are_cut_to_their_length_with_markers_and_the_last_sign_kept(model):
    checkpoint = build(model, CAME, query_length=4, document_length=5)
    assert tokens_of(checkpoint, TEXTS[0], "query") == ["[CLS]", "an", "owl", "[SEP]"]
    assert tokens_of(checkpoint, TEXTS[0]) == ["[CLS]", "an", "owl", "hunts", "[SEP]"]
    marked = build(model, COLBERT, query_length=5, document_length=6)
    assert tokens_of(marked, TEXTS[0], "query") == ["[CLS]", "[unused0]", "an", "owl", "[SEP]"]
    assert tokens_of(marked, TEXTS[0]) == ["[CLS]", "[unused1]", "an", "owl", "hunts", "[SEP]"]
    assert tokens_of(marked, "bee") == ["[CLS]", "[unused1]", "bee", "[SEP]"]


@pytest.mark.parametrize("spec", [COLBERT, f"{COLBERT},attend_masks=true"])
def test_augmentation_fills_queries_with_masks_that_are_looked_at_only_where_asked(model, spec):
    checkpoint = build(model, f"{spec},augmentation=true")
    own = ["[CLS]", "[unused0]", "bee", "[SEP]"]
    assert tokens_of(checkpoint, "bee", "query") == [*own, *["[MASK]"] * (12 - len(own))]
    assert len(tokens_of(checkpoint, "bee")) == len(own)
    sign = checkpoint.tokenizer.special_tokens.mask
    _, every = reference_states(
        model, checkpoint, "query", mask=lambda ids: torch.tensor([[int("attend_masks" in spec or one != sign) for one in ids]])
    )
    for vectors, states in zip(split(checkpoint.encode(TEXTS, "query")["local"]), every, strict=True):
        expected = states @ checkpoint.architecture.heads["local"].projection.weight.T
        assert vectors.shape == (12, 8)
        assert torch.allclose(vectors, F.normalize(expected, dim=-1) if "normalise" in spec else expected, atol=1e-4)


def test_colbert_as_published(model):
    checkpoint = build(model, f"{COLBERT},augmentation=true,punctuation=false")
    queries, documents = checkpoint.encode(TEXTS, "query")["local"], checkpoint.encode(TEXTS)["local"]
    assert {len(part) for part in split(queries)} == {12}
    ids, every = reference_states(model, checkpoint, "document")
    weight = checkpoint.architecture.heads["local"].projection.weight
    for actual, states, text in zip(split(documents), every, ids, strict=True):
        rows = [index for index, number in enumerate(text) if checkpoint.tokenizer.id_to_token(number) not in ",.?!"]
        assert torch.allclose(actual, F.normalize(states[rows] @ weight.T, dim=-1), atol=1e-4)
    assert float(queries.scores(documents).detach().abs().max()) <= 12.001


@pytest.mark.parametrize("arch", [CAME, "dense:pooling=cls", "splade:activation=relu", "colbert:dim=8"])
def test_a_scale_multiplies_the_scores_of_its_expert_and_no_other(model, arch):
    one = build(model, arch)
    factors = dict(zip(one.architecture.representation_kinds, (2.5, 0.5, 3.0), strict=False))
    options = [f"{f'{name}_' if len(factors) > 1 else ''}scale={factor}" for name, factor in factors.items()]
    scaled = build(model, ",".join([arch, *options]))
    before, after = ((checkpoint.encode(TEXTS, "query"), checkpoint.encode(TEXTS)) for checkpoint in (one, scaled))
    for name, factor in factors.items():
        assert torch.allclose(after[0][name].scores(after[1][name]), factor * before[0][name].scores(before[1][name]), rtol=1e-4, atol=1e-4)
        stored = [encoded[1][name].columns() for encoded in (before, after)]
        assert all(torch.equal(stored[0][column], stored[1][column]) for column in stored[0])  # the scale is applied to queries only


def test_a_prefix_stands_before_every_text_of_its_side(model):
    plain, prefixed = build(model, CAME), build(model, CAME, query_prefix="bee ", document_prefix="owl ")
    assert tokens_of(prefixed, "bat", "query") == ["[CLS]", "bee", "bat", "[SEP]"]
    assert tokens_of(prefixed, "bat") == ["[CLS]", "owl", "bat", "[SEP]"]
    assert torch.allclose(prefixed.encode(["bat"])["global"].vectors, plain.encode(["owl bat"])["global"].vectors, atol=1e-6)


@pytest.mark.parametrize("spec", [CAME, "dense:pooling=mean", "coil:dim=4,cls_dim=6"])
def test_half_precision_still_gives_float32_near_the_full_one(model, spec):
    checkpoint = build(model, spec)
    full = checkpoint.encode(TEXTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = checkpoint.encode(TEXTS)
    for expert, representation in half.representations.items():
        scores, expected = representation.scores(representation), full[expert].scores(full[expert])
        assert scores.dtype == torch.float32 and (scores - expected).abs().max() < 0.05 * expected.abs().max()
        assert all(column.dtype != torch.bfloat16 for column in representation.columns().values())


def test_coil_scores_are_those_of_loops_over_the_states(model):
    checkpoint = build(model, "coil:dim=4,cls_dim=6")
    exact, dense = (checkpoint.architecture.heads[name] for name in ("exact", "global"))
    sides = {}
    for side in ("query", "document"):
        ids, every = reference_states(model, checkpoint, side)
        tokens, first = [exact.projection(part) for part in every], [dense.projection(part[0]) for part in every]
        pairs = [list(zip(text[1:-1], part[1:-1].tolist(), strict=True)) for text, part in zip(ids, tokens, strict=True)]
        sides[side] = [part.tolist() for part in first], pairs
    queries, documents = (checkpoint.encode(TEXTS, side) for side in ("query", "document"))
    for name, index, score in (("global", 0, oracles.dense), ("exact", 1, oracles.exact_match)):
        expected = [[score(query, document) for document in sides["document"][index]] for query in sides["query"][index]]
        assert torch.allclose(queries[name].scores(documents[name]), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_coil_is_trained_and_searched_as_one_score(model):
    checkpoint = build(model, "coil:dim=4,cls_dim=6")
    assert checkpoint.encode(TEXTS).score_groups == {"hybrid": ("global", "exact")}
    assert checkpoint.architecture.default_fusion == "exact-sum"
    alone = build(model, "coil:dim=4,cls_dim=0")
    assert alone.encode(TEXTS).score_groups == {"exact": ("exact",)} and set(alone.architecture.representation_kinds) == {"exact"}
