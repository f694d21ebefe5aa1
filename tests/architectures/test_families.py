"""Every family, from plain weights to checkpoint to encodings, with every kind of architecture."""

import functools
import logging

import pytest
import torch
import transformers

from moeir.architectures.initialize import build_checkpoint
from moeir.errors import UsageError
from tests.architectures.folders import check_same, reopen, save
from tests.backbones.tiny_models import make_model
from tests.backbones.tiny_tokenizers import ALL_WRITERS

FAMILIES = [name for name in ALL_WRITERS if name != "bert"]
TEXTS = ["An owl, hunting at night.", "the sea (the end)", "bread in the whale"]
RULES = {"query_length": 16, "document_length": 16}
CAME = "came:shared_layers=1,local_dim=8"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """`weights(family, head)`: a folder with weights written by transformers, with or without head, and the tokenizer."""

    @functools.cache
    def folder(name, head=True):
        path = tmp_path_factory.mktemp(name)
        size = ALL_WRITERS[name](path)
        make_model(name, head=head, vocab_size=size).save_pretrained(path)
        return path

    return folder


@pytest.mark.parametrize(
    ("name", "arch"), [*((name, CAME) for name in FAMILIES), ("modernbert", "mote"), ("modernbert", "sbmoe:experts=2")]
)
def test_a_saved_checkpoint_says_the_same(name, arch, weights, tmp_path):
    checkpoint = build_checkpoint(weights(name), arch, RULES)
    check_same(reopen(checkpoint, tmp_path / "saved").encode(TEXTS), checkpoint.encode(TEXTS))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_plain_checkpoint_opens_in_transformers(name, weights, tmp_path):
    for arch, opener in (("dense", transformers.AutoModel), ("splade", transformers.AutoModelForMaskedLM)):
        checkpoint = build_checkpoint(weights(name), arch, RULES)
        theirs, actual = opener.from_pretrained(save(checkpoint, tmp_path / arch)).eval(), checkpoint.encode(TEXTS)
        for text, ids in enumerate(checkpoint.token_ids(TEXTS, "document")[0]):
            states = theirs(input_ids=torch.tensor([ids]))[0][0]
            expected = states[0] if arch == "dense" else torch.log1p(torch.relu(states.amax(0)))
            own = actual["global"].vectors if arch == "dense" else actual["lexical"].to_matrix()
            assert torch.allclose(own[text], expected, atol=1e-5 * float(states.abs().max()))


@pytest.mark.parametrize("shared", [0, 2, 5])
@torch.no_grad()
def test_untrained_towers_of_modernbert_say_what_its_layers_say(shared, weights):
    """The final norm belongs to the last layer, so every tower ends with it, or the encoder if all layers are shared."""
    plain = build_checkpoint(weights("modernbert"), "dense", RULES).encode(TEXTS)["global"].vectors
    came = build_checkpoint(weights("modernbert"), f"came:shared_layers={shared},local_dim=8", RULES)
    assert torch.allclose(came.encode(TEXTS)["global"].vectors, plain, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_vocabulary_head_is_fitted_in_every_family(name, weights, caplog):
    with caplog.at_level(logging.INFO):
        checkpoint = build_checkpoint(weights(name, head=False), "splade", RULES)
    assert "no vocabulary head in the weights: fitted one" in caplog.text and "lists of words" in caplog.text
    actual = checkpoint.encode(TEXTS)["lexical"].weights
    assert bool(actual.isfinite().all()) and len(actual) > 0 and float(actual.max()) < 10


def test_markers_are_those_of_the_vocabulary(weights):
    marked = build_checkpoint(weights("modernbert"), "colbert:markers=true,dim=8", RULES)
    assert marked.token_ids(TEXTS, "query")[0][0][1] == marked.tokenizer.special_tokens.query_marker


def test_punctuation_is_dropped_with_the_space_before_it(weights):
    checkpoint = build_checkpoint(weights("roberta"), "colbert:punctuation=false,dim=8", RULES)
    ids = checkpoint.token_ids(["the sea (the end)"], "document")[0][0]
    kept_ids = [number for number in ids if checkpoint.tokenizer.id_to_token(number) not in ("Ġ(", ")")]
    assert len(kept_ids) == len(ids) - 2 == len(checkpoint.encode(["the sea (the end)"])["local"].vectors)


def test_what_a_family_cannot_hold_is_refused(weights):
    with pytest.raises(UsageError, match="--query-length 17: expected 3 to 16, the encoder's positions"):
        build_checkpoint(weights("roberta"), "dense", {"query_length": 17})
