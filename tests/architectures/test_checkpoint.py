"""Saving and loading of checkpoints of every family: the same bits, encodings and input configuration; what starts at random or fitted."""

import json
import logging
import math
import shutil
from collections import Counter

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from moeir import variants
from moeir.architectures.checkpoint import canonical_spec, is_checkpoint, open_checkpoint, read_metadata
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import ArtifactError, DataError, UsageError
from tests.architectures.folders import assert_refused, check_same, reopen, save
from tests.backbones.tiny_tokenizers import ALL_WRITERS

TEXTS = ["An owl hunts mice at night, and sleeps!", "bee", "A bat finds moths in the dark."]
RULES = {"query_length": 12, "document_length": 16, "query_prefix": "query: ", "document_prefix": "passage: "}
SPECS = [
    "came:shared_layers=2,local_dim=8,normalise=true,global_scale=20",
    "came:shared_layers=0,embeddings=private,experts=local+global,local_dim=8",
    "came:shared_layers=4,experts=lexical",
    "dense:pooling=mean,normalise=true,scale=20",
    "splade",
    "colbert:dim=8,markers=true,augmentation=true",
    "dense:adapters=4,adapter_maps=query+value",
    "taser:routing=token,gates=per_layer,layers=2+4",
    "taser:adapters=4,experts=3,routing=token",
    "mote:encoders=separate",
    "sbmoe:experts=1,normalise=true",
]


def build_and_save(model, spec, folder):
    checkpoint = build_checkpoint(model, spec, RULES)
    save(checkpoint, folder)
    return checkpoint


@pytest.mark.parametrize("spec", SPECS)
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
    for opener in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoModelForMaskedLM):
        with pytest.raises(ValueError, match="moeir"):
            opener.from_pretrained(tmp_path / "here")


def test_lengths_follow_the_positions_unless_said(tiny_model, family_weights):
    for model, length in ((tiny_model, 64), (family_weights("roberta"), 16)):
        rules = build_checkpoint(model, "dense", {}).input_config
        assert (rules.query_length, rules.document_length, rules.query_prefix, rules.document_prefix) == (length, length, "", "")
        words = f"--document-length {length + 1}: expected 3 to {length}, the encoder's positions"
        assert_refused(UsageError, words, build_checkpoint, model, "dense", {"document_length": length + 1})


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


def test_a_dense_model_can_keep_its_vocabulary_head_and_lose_it_again(tiny_model_with_head, tmp_path):
    checkpoint = build_checkpoint(tiny_model_with_head, "dense:head=true", RULES)
    assert checkpoint.architecture.encoder.vocabulary_head is not None
    checkpoint.save(tmp_path)
    dropped = build_checkpoint(tmp_path, "dense:head=false", {})
    assert dropped.architecture.encoder.vocabulary_head is None and build_checkpoint(tmp_path, "splade", {}).spec.startswith("splade")
    check_same(checkpoint.encode(TEXTS), dropped.encode(TEXTS))


def test_from_scratch_only_sizes_and_tokenizer_are_taken(tiny_model_with_head, caplog):
    with caplog.at_level(logging.INFO):
        first, again, other = (
            build_checkpoint(tiny_model_with_head, "splade", RULES, seed=seed, random_weights=True) for seed in (1, 1, 2)
        )
        plain = build_checkpoint(tiny_model_with_head, "splade", RULES)
    words = [one.architecture.encoder.embeddings.words.weight for one in (first, again, other, plain)]
    assert torch.equal(words[0], words[1]) and not torch.equal(words[0], words[2]) and not torch.equal(words[0], words[3])
    assert "fitted" not in caplog.text, "a head that is there is kept"


def test_a_checkpoint_without_plain_weights_is_not_drawn_again(tiny_model, moeir, tmp_path):
    for arch, code in (("dense", 0), ("came:shared_layers=1,local_dim=8", 2)):
        made, drawn = tmp_path / arch[:4], tmp_path / f"drawn-{arch[:4]}"
        assert moeir("init", "--model", tiny_model, "--arch", arch, "--output", made).code == 0
        for flags in ((), ("--arch", arch)):
            result = moeir("init", "--model", made, "--from-scratch", *flags, "--force", "--output", drawn)
            assert result.code == code and (code == 0 or "a came checkpoint is no plain weights; name those" in result.stderr)
    with pytest.raises(UsageError, match="side=passage: expected one of query, document"):
        open_checkpoint(tmp_path / "came").encode(["owl"], side="passage")


def test_the_weights_of_query_tokens_start_at_their_inverse_document_frequency(tiny_model_with_head):
    texts = ["owl mice owl", "owl bee", "owl bat", "owl"]
    checkpoint = build_checkpoint(tiny_model_with_head, "splade:queries=tokens", RULES, texts)
    ids = {word: checkpoint.token_ids([word], "query")[0][0][1:-1] for word in ("owl", "mice", "bee")}
    head = checkpoint.architecture.heads["lexical"]
    weights = {word: head.weigh_tokens(PackedTokens.from_lists([of_word], "query")).weights for word, of_word in ids.items()}
    assert not len(weights["owl"]), "in every text"
    tokens_of_texts = [{token for word in text.split() for token in checkpoint.token_ids([word], "document")[0][0]} for text in texts]
    counts = Counter(token for tokens in tokens_of_texts for token in tokens)
    idf = {token: math.log(5 / (count + 1)) for token, count in counts.items()}
    mean = sum(idf[token] for tokens in tokens_of_texts for token in tokens) / sum(map(len, tokens_of_texts))
    for word in ("mice", "bee"):
        assert weights[word].tolist() == pytest.approx([idf[token] / mean for token in sorted(set(ids[word])) if idf.get(token)])
    fresh = build_checkpoint(tiny_model_with_head, "splade:queries=tokens", RULES)
    assert set(fresh.encode(["owl mice"], "query")["lexical"].weights.tolist()) == {1.0}, "without texts all tokens weigh the same"


FAMILIES = [name for name in ALL_WRITERS if name != "bert"]
WORDS = ["An owl, hunting at night.", "the sea (the end)", "bread in the whale"]
LENGTHS = {"query_length": 16, "document_length": 16}
CAME = "came:shared_layers=1,local_dim=8"


@pytest.mark.parametrize(
    ("name", "arch"), [*((name, CAME) for name in FAMILIES), ("modernbert", "mote"), ("modernbert", "sbmoe:experts=2")]
)
def test_a_saved_checkpoint_says_the_same(name, arch, family_weights, tmp_path):
    checkpoint = build_checkpoint(family_weights(name), arch, LENGTHS)
    check_same(reopen(checkpoint, tmp_path / "saved").encode(WORDS), checkpoint.encode(WORDS))


@pytest.mark.parametrize("name", ["roberta", "electra-small", "modernbert"])
@torch.no_grad()
def test_a_plain_checkpoint_opens_in_transformers(name, family_weights, tmp_path):
    for arch, opener in (("dense", transformers.AutoModel), ("splade", transformers.AutoModelForMaskedLM)):
        checkpoint = build_checkpoint(family_weights(name), arch, LENGTHS)
        theirs, actual = opener.from_pretrained(save(checkpoint, tmp_path / arch)).eval(), checkpoint.encode(WORDS)
        for text, ids in enumerate(checkpoint.token_ids(WORDS, "document")[0]):
            states = theirs(input_ids=torch.tensor([ids]))[0][0]
            expected = states[0] if arch == "dense" else torch.log1p(torch.relu(states.amax(0)))
            own = actual["global"].vectors if arch == "dense" else actual["lexical"].to_matrix()
            assert torch.allclose(own[text], expected, atol=1e-5 * float(states.abs().max()))


@pytest.mark.parametrize("shared", [0, 2, 5])
@torch.no_grad()
def test_untrained_towers_of_modernbert_say_what_its_layers_say(shared, family_weights):
    """The final norm belongs to the last layer, so every tower ends with it, or the encoder if all layers are shared."""
    plain = build_checkpoint(family_weights("modernbert"), "dense", LENGTHS).encode(WORDS)["global"].vectors
    came = build_checkpoint(family_weights("modernbert"), f"came:shared_layers={shared},local_dim=8", LENGTHS)
    assert torch.allclose(came.encode(WORDS)["global"].vectors, plain, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_vocabulary_head_is_fitted_in_every_family(name, family_weights, caplog):
    with caplog.at_level(logging.INFO):
        checkpoint = build_checkpoint(family_weights(name, head=False), "splade", LENGTHS)
    assert "no vocabulary head in the weights: fitted one" in caplog.text and "lists of words" in caplog.text
    actual = checkpoint.encode(WORDS)["lexical"].weights
    assert bool(actual.isfinite().all()) and len(actual) > 0 and float(actual.max()) < 10
