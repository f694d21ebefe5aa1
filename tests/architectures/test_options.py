"""Options of architectures, against plain computations on the states that transformers gives."""


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


def build(model, spec):
    return build_checkpoint(model, spec, RULES)


@pytest.fixture(scope="module")
def model(tiny_model_with_head):
    return tiny_model_with_head


@torch.no_grad()
def reference_states(model, checkpoint, side, *, mask=None):
    """Ids and states [L, H] of every text, by transformers; `mask` selects the tokens attended to."""
    theirs = BertModel.from_pretrained(model).eval()
    ids = checkpoint.token_ids(TEXTS, side)[0]
    return ids, [theirs(input_ids=torch.tensor([text]), attention_mask=mask and mask(text)).last_hidden_state[0] for text in ids]


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


@pytest.mark.parametrize("spec", [COLBERT, f"{COLBERT},attend_masks=true"])
def test_augmentation_fills_queries_with_masks_that_are_looked_at_only_where_asked(model, spec):
    checkpoint = build(model, f"{spec},augmentation=true")
    queries, documents = (checkpoint.token_ids(["bee"], side)[0][0] for side in ("query", "document"))
    tokens = [checkpoint.tokenizer.id_to_token(number) for number in queries]
    assert tokens == ["[CLS]", "[unused0]", "bee", "[SEP]", *["[MASK]"] * 8] and len(documents) == 4
    sign = checkpoint.tokenizer.special_tokens.mask
    _, every = reference_states(
        model, checkpoint, "query", mask=lambda ids: torch.tensor([[int("attend_masks" in spec or one != sign) for one in ids]])
    )
    actual = checkpoint.encode(TEXTS, "query")["local"]
    expected = torch.cat(every) @ checkpoint.architecture.heads["local"].projection.weight.T
    assert actual.starts.tolist() == [0, 12, 24, 36, 48]
    assert torch.allclose(actual.vectors, F.normalize(expected, dim=-1), atol=1e-4)


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
