"""Every option of every architecture, against plain computations on the same states."""

import shutil
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertModel

from moeir.architectures.initialize import build_checkpoint

TEXTS = ["An owl hunts mice at night, and sleeps!", "bee", "A bat finds moths in the dark by listening to its own echo.", "?"]
RULES = {"query_length": 12, "document_length": 16}
CAME = "came:shared_layers=2,local_dim=8"


def build(model, spec, **rules):
    return build_checkpoint(model, spec, RULES | rules)


def split(representation):
    bounds = representation.starts.tolist()
    return [representation.vectors[first:last] for first, last in pairwise(bounds)]


def tokens_of(checkpoint, text, side="document"):
    return [checkpoint.tokenizer.id_to_token(number) for number in checkpoint.token_ids([text], side)[0][0]]


@pytest.fixture(scope="module")
def model(tiny_model_with_head):
    return tiny_model_with_head


@torch.no_grad()
def by_hand(model, texts, reader, normalise=True):
    """Mean-pooled states of transformers, optionally normalised."""
    theirs = BertModel.from_pretrained(model).eval()
    vectors = [theirs(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in reader.encode(texts)]
    return F.normalize(torch.stack(vectors), dim=-1) if normalise else torch.stack(vectors)


@pytest.mark.parametrize("normalise", [True, False])
def test_dense_is_transformers_mean_pooled_and_normalised(model, normalise):
    checkpoint = build(model, f"dense:pooling=mean,normalise={normalise}".lower())
    actual = checkpoint.encode(TEXTS)["global"].vectors
    expected = by_hand(model, TEXTS, checkpoint.tokenizer, normalise)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_separate_encoders_read_their_own_side(model, tmp_path):
    """Documents with the weights of another model, loaded by transformers from its own folder; queries with the first one's."""
    other = shutil.copytree(model, tmp_path / "other")
    changed = BertModel.from_pretrained(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    changed.save_pretrained(other)
    checkpoint = build(model, "dense:pooling=mean,normalise=false,encoders=separate")
    of_other = build(other, "dense:pooling=mean,normalise=false").architecture.encoder
    checkpoint.architecture.document_encoder.load_state_dict(of_other.state_dict())
    for side, folder in (("query", model), ("document", other)):
        expected = by_hand(folder, TEXTS[:2], checkpoint.tokenizer, normalise=False)
        actual = checkpoint.encode(TEXTS[:2], side)["global"].vectors
        assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max(), side


def test_dense_cls_is_the_first_state(model):
    checkpoint = build(model, "dense")
    theirs = BertModel.from_pretrained(model).eval()
    with torch.no_grad():
        expected = torch.cat([theirs(input_ids=torch.tensor([ids])).last_hidden_state[:, 0] for ids in checkpoint.tokenizer.encode(TEXTS)])
    assert torch.allclose(checkpoint.encode(TEXTS)["global"].vectors, expected, atol=1e-5)


@pytest.mark.parametrize("spec, others", [(CAME, {"lexical": "splade", "local": "colbert:dim=8", "global": "dense"})])
def test_an_untrained_came_says_what_its_experts_say_alone(model, spec, others):
    together = build(model, spec)
    for expert, alone in others.items():
        single = build(model, alone)
        if expert == "local":
            single.architecture.heads["local"].load_state_dict(together.architecture.heads["local"].state_dict())
        for side in ("query", "document"):
            actual, expected = together.encode(TEXTS, side)[expert], single.encode(TEXTS, side)[expert]
            assert all(torch.allclose(actual.columns()[name], column, atol=1e-5) for name, column in expected.columns().items())


@pytest.mark.parametrize("spec", ["came:shared_layers=2,markers=true", "colbert:markers=true"])
def test_markers_stand_behind_the_first_token_and_count_for_the_length(model, spec):
    checkpoint = build(model, spec, query_length=5, document_length=6)
    assert tokens_of(checkpoint, TEXTS[0], "query") == ["[CLS]", "[unused0]", "an", "owl", "[SEP]"]
    assert tokens_of(checkpoint, TEXTS[0]) == ["[CLS]", "[unused1]", "an", "owl", "hunts", "[SEP]"]
    assert tokens_of(checkpoint, "bee") == ["[CLS]", "[unused1]", "bee", "[SEP]"]


@pytest.mark.parametrize("spec", ["came:shared_layers=2", "dense", "splade", "colbert"])
def test_texts_are_cut_to_their_length_with_the_last_sign_kept(model, spec):
    checkpoint = build(model, spec, query_length=4, document_length=5)
    assert tokens_of(checkpoint, TEXTS[0], "query") == ["[CLS]", "an", "owl", "[SEP]"]
    assert tokens_of(checkpoint, TEXTS[0]) == ["[CLS]", "an", "owl", "hunts", "[SEP]"]


@pytest.mark.parametrize("spec", ["came:shared_layers=2,local_dim=8,augmentation=true", "colbert:dim=8,augmentation=true"])
@torch.no_grad()
def test_augmentation_fills_queries_with_masks_that_nobody_looks_at(model, spec):
    checkpoint = build(model, spec)
    assert tokens_of(checkpoint, "bee", "query") == ["[CLS]", "bee", "[SEP]", *["[MASK]"] * 9]
    assert tokens_of(checkpoint, "bee") == ["[CLS]", "bee", "[SEP]"]
    assert checkpoint.token_ids(["bee"], "query")[1] == [9]
    actual = split(checkpoint.encode(TEXTS, "query")["local"])
    theirs = BertModel.from_pretrained(model).eval()
    for vectors, ids in zip(actual, checkpoint.tokenizer.encode(TEXTS), strict=True):
        ids = ids if len(ids) <= 12 else [*ids[:11], ids[-1]]
        padded = torch.tensor([ids + [checkpoint.tokenizer.special_tokens.mask] * (12 - len(ids))])
        mask = torch.tensor([[1] * len(ids) + [0] * (12 - len(ids))])
        expected = (
            theirs(input_ids=padded, attention_mask=mask).last_hidden_state[0] @ checkpoint.architecture.heads["local"].projection.weight.T
        )
        assert vectors.shape == (12, 8) and torch.allclose(vectors, expected, atol=1e-4)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_augmentation_changes_neither_the_lexical_nor_the_global_expert(model, pooling):
    plain, more = (build(model, f"{CAME},pooling={pooling},augmentation={word}").encode(TEXTS, "query") for word in ("false", "true"))
    assert torch.allclose(plain["global"].vectors, more["global"].vectors, atol=1e-5)
    assert torch.allclose(plain["lexical"].to_matrix(), more["lexical"].to_matrix(), atol=1e-5)


@pytest.mark.parametrize("separator, punctuation", [(True, False), (False, True), (False, False)])
def test_separator_and_punctuation_can_be_left_out(model, separator, punctuation):
    plain = build(model, "colbert:dim=8")
    checkpoint = build(model, f"colbert:dim=8,separator={separator},punctuation={punctuation}".lower())
    for side in ("query", "document"):
        every, actual = (split(one.encode(TEXTS, side)["local"]) for one in (plain, checkpoint))
        for text, vectors, left in zip(TEXTS, every, actual, strict=True):
            words = tokens_of(plain, text, side)
            kept_rows = [
                index
                for index, word in enumerate(words)
                if (separator or word != "[SEP]") and (punctuation or side == "query" or word not in ",.?!")
            ]
            assert torch.allclose(left, vectors[kept_rows], atol=1e-5)


@pytest.mark.parametrize(
    "arch, option, expert", [(CAME, "local_normalise", "local"), ("colbert:dim=8", "normalise", "local"), (CAME, "normalise", "global")]
)
def test_normalise_makes_unit_vectors(model, arch, option, expert):
    plain, unit = (build(model, spec).encode(TEXTS)[expert].vectors for spec in (arch, f"{arch},{option}=true"))
    assert torch.allclose(unit, F.normalize(plain, dim=-1), atol=1e-5)


@pytest.mark.parametrize(
    "arch, option, expert",
    [(CAME, f"{name}_scale", name) for name in ("lexical", "local", "global")]
    + [("dense:pooling=cls", "scale", "global"), ("splade:scale=1", "scale", "lexical"), ("colbert:dim=8", "scale", "local")],
)
def test_a_scale_multiplies_the_scores_of_its_expert_and_no_other(model, arch, option, expert):
    one = build(model, arch)
    scaled = build(
        model, f"{arch.split(':')[0]}:{arch.split(':')[1].replace('scale=1', 'scale=2.5')}" if "scale=1" in arch else f"{arch},{option}=2.5"
    )
    before, after = ((checkpoint.encode(TEXTS, "query"), checkpoint.encode(TEXTS)) for checkpoint in (one, scaled))
    for name in one.architecture.representation_kinds:
        factor = 2.5 if name == expert else 1.0
        assert torch.allclose(after[0][name].scores(after[1][name]), factor * before[0][name].scores(before[1][name]), rtol=1e-4, atol=1e-4)
        stored = [encoded[1][name].columns() for encoded in (before, after)]
        assert all(torch.equal(stored[0][column], stored[1][column]) for column in stored[0])  # the scale is applied to queries only


def test_a_prefix_stands_before_every_text_of_its_side(model):
    plain, prefixed = build(model, CAME), build(model, CAME, query_prefix="bee ", document_prefix="owl ")
    assert tokens_of(prefixed, "bat", "query") == ["[CLS]", "bee", "bat", "[SEP]"]
    assert tokens_of(prefixed, "bat") == ["[CLS]", "owl", "bat", "[SEP]"]
    assert torch.allclose(prefixed.encode(["bat"])["global"].vectors, plain.encode(["owl bat"])["global"].vectors, atol=1e-6)


@pytest.mark.parametrize("spec", [f"{CAME},pooling=mean", f"{CAME},markers=true,augmentation=true"])
def test_company_order_and_batches_change_nothing(model, spec):
    checkpoint = build(model, spec)
    single = {side: [checkpoint.encode([text], side) for text in TEXTS] for side in ("query", "document")}

    @settings(deadline=None, max_examples=12)
    @given(
        rows=st.lists(st.integers(0, 3), min_size=1, max_size=6),
        side=st.sampled_from(["query", "document"]),
        most=st.sampled_from([1, 20, 10_000]),
    )
    def holds(rows, side, most):
        encoded = checkpoint.encode([TEXTS[row] for row in rows], side, max_tokens=most)
        for expert, representation in encoded.representations.items():
            for index, row in enumerate(rows):
                actual, expected = representation.select(torch.tensor([index])), single[side][row][expert]
                for name, column in expected.columns().items():
                    assert torch.allclose(actual.columns()[name], column, rtol=1e-5, atol=1e-5 * float(column.abs().max()))

    holds()


@pytest.mark.parametrize("spec", [CAME, "dense:pooling=mean", "splade", "colbert:dim=8"])
def test_half_precision_still_gives_float32_near_the_full_one(model, spec):
    checkpoint = build(model, spec)
    full = checkpoint.encode(TEXTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = checkpoint.encode(TEXTS)
    for expert, representation in half.representations.items():
        scores, expected = representation.scores(representation), full[expert].scores(full[expert])
        assert scores.dtype == torch.float32 and (scores - expected).abs().max() < 0.05 * expected.abs().max()
        assert all(column.dtype != torch.bfloat16 for column in representation.columns().values())
