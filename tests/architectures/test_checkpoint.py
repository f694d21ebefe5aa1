"""Saving and loading of checkpoints: the same bits, encodings and input configuration."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from moeir import variants
from moeir.architectures.checkpoint import canonical_spec, is_checkpoint, open_checkpoint, read_metadata
from moeir.architectures.initialize import build_checkpoint
from moeir.errors import ArtifactError, DataError, UsageError
from tests.architectures.folders import assert_refused, check_same, reopen, save
from tests.architectures.test_expert_architectures import SPECS as EXPERT_SPECS

TEXTS = ["An owl hunts mice at night, and sleeps!", "bee", "A bat finds moths in the dark."]
RULES = {"query_length": 12, "document_length": 16, "query_prefix": "query: ", "document_prefix": "passage: "}
SPECS = [
    "came:shared_layers=2,local_dim=8,normalise=true,global_scale=20",
    "came:shared_layers=0,embeddings=private,experts=local+global,local_dim=8",
    "came:shared_layers=4,experts=lexical",
    "dense:pooling=mean,normalise=true,scale=20",
    "splade",
    "colbert:dim=8,markers=true,augmentation=true",
    "colbert:dim=8,adapters=4",
    "dense:adapters=4,adapter_maps=query+value",
    "splade:adapters=4",
]


def build_and_save(model, spec, folder):
    checkpoint = build_checkpoint(model, spec, RULES)
    save(checkpoint, folder)
    return checkpoint


@pytest.mark.parametrize("spec", [*SPECS, *EXPERT_SPECS])
def test_a_checkpoint_opens_as_it_was_saved(spec, tiny_model_with_head, tmp_path):
    """Of one with adapters no frozen weight is written."""
    before = build_checkpoint(tiny_model_with_head, spec, RULES)
    torch.manual_seed(4)
    for parameter in before.architecture.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter) * parameter.requires_grad
    after = reopen(before, tmp_path / "here")
    written = {name for file in (tmp_path / "here").rglob("*.safetensors") for name in load_file(file)}
    frozen = {name for name, weight in before.architecture.named_parameters() if not weight.requires_grad}
    assert bool(frozen) == ("adapters" in spec) and not written & (frozen | {name.removeprefix("encoder.") for name in frozen})
    assert (tmp_path / "here/config.json").exists() != bool(frozen) and after.architecture.scales == before.architecture.scales
    for side in ("query", "document"):
        assert after.token_ids(TEXTS, side) == before.token_ids(TEXTS, side)
        check_same(before.encode(TEXTS, side), after.encode(TEXTS, side))
    save(after, tmp_path / "again")
    files, again = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (tmp_path / "here", tmp_path / "again")
    )
    assert files == again


def test_what_a_checkpoint_is_stands_in_it(tiny_model_with_head, tmp_path):
    build_and_save(tiny_model_with_head, SPECS[0], tmp_path / "here")
    facts = read_metadata(tmp_path / "here")
    assert facts["reading"] == RULES
    assert facts["experts"]["global"] == {"representation": "dense", "scale": 20.0} and facts["experts"]["local"]["scale"] == 1.0
    options = {option.name for option in variants.find_variant("architectures", "came").options}
    assert variants.resolve_spec("architectures", facts["architecture"])[1].keys() == options
    assert canonical_spec(facts["architecture"]) == facts["architecture"]
    assert is_checkpoint(tmp_path / "here") and not is_checkpoint(tiny_model_with_head)


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[5]])
def test_transformers_refuses_what_it_would_open_by_half(spec, tiny_model_with_head, tmp_path):
    build_and_save(tiny_model_with_head, spec, tmp_path / "here")
    for opener in (AutoConfig, AutoModel, AutoModelForMaskedLM):
        with pytest.raises(ValueError, match="moeir"):
            opener.from_pretrained(tmp_path / "here")


def test_lengths_follow_the_positions_unless_said(tiny_model):
    rules = build_checkpoint(tiny_model, "dense", {}).input_config
    assert (rules.query_length, rules.document_length, rules.query_prefix, rules.document_prefix) == (64, 64, "", "")
    assert_refused(UsageError, "--document-length 65: expected 3 to 64", build_checkpoint, tiny_model, "dense", {"document_length": 65})


def test_a_checkpoint_takes_other_options_without_training(tiny_model_with_head, tmp_path):
    before = build_and_save(tiny_model_with_head, SPECS[0], tmp_path / "here")
    after = build_checkpoint(tmp_path / "here", "came:local_scale=1e6,pooling=mean", {"query_prefix": ""})
    assert after.architecture.scales == {"lexical": 1.0, "local": 1e6, "global": 20.0}
    with pytest.raises(UsageError, match=r"the scale of the local expert's scores is 1\.5e\+06; expected 0 to 1e\+06"):
        build_checkpoint(tmp_path / "here", "came:local_scale=1.5e6", {})
    assert after.input_config.query_prefix == "" and after.input_config.document_prefix == RULES["document_prefix"]
    assert variants.resolve_spec("architectures", after.spec)[1]["normalise"] is True  # options not given stay
    weights, reopened = before.architecture.state_dict(), after.architecture.state_dict()
    assert all(torch.equal(weights[name], reopened[name]) for name in weights)
    check_same(before.encode(TEXTS), build_checkpoint(tmp_path / "here", None, {}).encode(TEXTS))


@pytest.mark.parametrize("old, new", [("splade", "came:shared_layers=2"), ("taser:routing=shared", "splade"),
                                      ("mote:encoders=siamese", "came:shared_layers=2")])  # fmt: skip
def test_checkpoints_without_experts_become_other_architectures(old, new, tiny_model_with_head, tmp_path):
    build_and_save(tiny_model_with_head, old, tmp_path / "old")
    other = build_checkpoint(tmp_path / "old", new, {})
    assert other.input_config.query_prefix == RULES["query_prefix"] and other.spec.startswith(new)


@pytest.mark.parametrize(
    "spec, other, message",
    [
        ("came:shared_layers=2", "came:shared_layers=3", "its weights are not those of came"),
        ("came:shared_layers=2,experts=local", "came:experts=local+global", "its weights are not those of came"),
        ("came:shared_layers=2,local_dim=8", "came:local_dim=16", "shape"),
        ("came:shared_layers=2", "dense", "a came checkpoint cannot become dense; start from its base weights"),
        ("colbert:dim=8", "dense", "a colbert checkpoint cannot become dense"),
        ("mote", "came:shared_layers=2", "cannot become"),
        ("taser", "splade", "cannot become"),
        ("sbmoe", "splade", "cannot become"),
        ("dense:encoders=separate", "came:shared_layers=2", "cannot become"),
        ("sbmoe:experts=3", "sbmoe:experts=6", "shape|its weights are not those of sbmoe"),
    ],
)
def test_options_and_experts_that_own_weights_cannot_be_changed(spec, other, message, tiny_model_with_head, tmp_path):
    build_and_save(tiny_model_with_head, spec, tmp_path / "here")
    assert_refused(ArtifactError, message, build_checkpoint, tmp_path / "here", other, {})


def test_what_is_no_checkpoint_is_refused_in_one_line(tiny_model, tmp_path):
    assert_refused(ArtifactError, r"plain weights, not a checkpoint; moeir init --model", open_checkpoint, tiny_model)
    with pytest.raises(UsageError, match="plain weights; name an architecture: --arch came, dense, …; see: moeir variants"):
        build_checkpoint(tiny_model, None, {})
    for change, message in (
        (lambda facts: "{", "damaged: not what moeir writes"),
        (lambda facts: json.dumps(facts | {"format": 9}), "format 9; this version of moeir reads format 1"),
        (lambda facts: json.dumps(facts | {"architecture": "dense:scale=1,scale=2"}), "version of moeir: .*: scale is given twice"),
        (lambda facts: json.dumps(facts | {"reading": {"query_length": 3}}), "has the fields"),
    ):
        folder = tmp_path / message.split()[0]
        build_and_save(tiny_model, "dense", folder)
        (folder / "moeir.json").write_text(change(read_metadata(folder)))
        for opener in (open_checkpoint, lambda folder: build_checkpoint(folder, None, {})):
            assert_refused(ArtifactError, message, opener, folder)


def test_the_weights_can_be_read_by_whoever_may_read_the_other_files(came_checkpoint):
    modes = {file.name: file.stat().st_mode & 0o777 for file in came_checkpoint.iterdir() if file.is_file()}
    assert modes["model.safetensors"] == modes["moeir.json"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocabulary_head.bias", float("nan")),
        ("heads.local.projection.weight", float("inf")),
        ("encoder.layers.0.attention.query.weight", -3e38),
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(name, value, tiny_model_with_head, tmp_path):
    checkpoint = build_checkpoint(tiny_model_with_head, SPECS[0], RULES, ())
    weights = dict(checkpoint.architecture.named_parameters())
    weights[name if name in weights else f"encoder.{name}"].data.view(-1)[3] = value
    checkpoint.save(tmp_path)
    assert_refused(ArtifactError, rf"{name.removeprefix('encoder.')} holds NaN, infinity or a number near it", open_checkpoint, tmp_path)
    plain = shutil.copytree(tiny_model_with_head, tmp_path / "plain")
    weights = load_file(plain / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"][7, 3] = value
    save_file(weights, plain / "model.safetensors", metadata={"format": "pt"})
    assert_refused(ArtifactError, r"embeddings\.words\.weight holds NaN", build_checkpoint, plain, SPECS[0], RULES)


@pytest.mark.parametrize(
    ("spec", "name", "source"),
    [
        ("splade", "encoder.vocabulary_head.norm.weight", "lexical"),
        (SPECS[0], "encoder.vocabulary_head.norm.weight", "lexical"),
        ("colbert:dim=8", "heads.local.projection.weight", "local"),
        ("coil", "heads.exact.projection.weight", "exact"),
        ("taser:every=1,experts=2,routing=token", "router.weight", "router layer2"),
    ],
)
def test_what_overflows_in_an_encoder_is_an_error_that_names_the_text_and_the_expert(spec, name, source, tiny_model_with_head):
    checkpoint = build_checkpoint(tiny_model_with_head, spec, RULES, ())
    torch.nn.init.constant_(dict(checkpoint.architecture.named_parameters())[name], 3e38)
    for side in ("query", "document"):
        assert_refused(DataError, rf"{side} 'owl': {source} holds (NaN|-?inf)", checkpoint.encode, ["owl", "bee"], side)
