"""Every family gives the numbers of `transformers`, and its files survive the way there and back."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from moeir.backbones import device
from moeir.backbones.encoder import Encoder
from moeir.backbones.families import weights_io
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import ArtifactError, UsageError
from tests.backbones import tiny_nomic
from tests.backbones.tiny_models import LENGTHS, TINY_MODELS, is_close, make_model, make_pair, pad_batch, random_ids

SHAPES = [
    *((name, {}) for name in TINY_MODELS),
    ("bert", {"hidden_act": "gelu_new", "num_attention_heads": 1, "layer_norm_eps": 1e-6}),
    ("bert", {"hidden_act": "relu", "type_vocab_size": 1, "num_hidden_layers": 1}),
    ("distilbert", {"layer_norm_eps": 0.1, "activation": "relu"}),
    ("bert", {"hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 20, "type_vocab_size": 4}),
]


@pytest.mark.parametrize("name, changes", SHAPES, ids=str)
@torch.no_grad()
def test_states_and_logits_are_those_of_transformers_with_silent_tokens_too(name, changes, tmp_path):
    theirs, ours = make_pair(name, tmp_path, **changes)
    ids = random_ids()
    batch = pad_batch(ids)
    for silent in (None, (2, 0, 3, 0, 1, 3)):
        for text, count in enumerate(silent or ()):
            batch["attention_mask"][text, LENGTHS[text] - count : LENGTHS[text]] = 0
        states = ours(PackedTokens.from_lists(ids, "query", silent))
        expected, logits = theirs.base_model(**batch).last_hidden_state, theirs(**batch).logits
        for text, (part, scored) in enumerate(zip(states.split(LENGTHS), ours.logits(states).split(LENGTHS), strict=True)):
            assert is_close(part, expected[text, : len(part)]) and is_close(scored, logits[text, : len(part)]), text


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("name", TINY_MODELS)
@torch.no_grad()
def test_weights_survive_the_way_there_and_back(name, head, tmp_path):
    theirs, _ = make_pair(name, tmp_path / "theirs", head=head)
    config = weights_io.read_config(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    weights_io.write_model(tmp_path / "ours", config, weights_io.read_weights(tmp_path / "theirs", config), hf_compatible=True)
    opener = transformers.AutoModelForMaskedLM if head else transformers.AutoModel
    reopened, loading_info = opener.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(reopened) is type(theirs) and not loading_info["missing_keys"] and not loading_info["unexpected_keys"]
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    batch = pad_batch(random_ids())
    assert torch.equal(theirs(**batch)[0], reopened.eval()(**batch)[0])


@pytest.mark.parametrize("name", ["bert", "roberta", "electra-small", "distilbert", "modernbert"])
def test_shards_prefixes_and_repeated_decoders_are_understood(name, tmp_path):
    theirs, ours = make_pair(name, tmp_path)
    expected = ours.state_dict()
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    weights = load_file(tmp_path / "model.safetensors")
    tied = {one: weights[other].clone() for one, other in type(theirs)._tied_weights_keys.items()}
    bare = {key.removeprefix(f"{theirs.base_model_prefix}."): value for key, value in (weights | tied).items()}
    save_file(bare | {"classifier.weight": torch.zeros(2)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for folder in (tmp_path / "shards", tmp_path):
        weights_read = weights_io.read_encoder(folder).state_dict()
        assert weights_read.keys() == expected.keys() and all(torch.equal(weights_read[key], expected[key]) for key in expected)
    decoder = next(iter(type(theirs)._tied_weights_keys))
    save_file(weights | {decoder: torch.zeros_like(tied[decoder])}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match=r"differs from embeddings.words.weight; moeir reads a vocabulary head tied"):
        weights_io.read_encoder(tmp_path)


def test_a_discriminator_of_electra_brings_no_vocabulary_head(tmp_path):
    config = make_model("electra-small").config
    transformers.ElectraForPreTraining(config).save_pretrained(tmp_path)
    assert "discriminator_predictions.dense.weight" in load_file(tmp_path / "model.safetensors")
    assert not weights_io.has_vocabulary_head(tmp_path)


KEYS = ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob")


@pytest.mark.parametrize(
    "name, keys",
    [
        *((name, KEYS) for name in ("bert", "roberta", "xlm-roberta", "electra")),
        ("distilbert", ("activation", "dropout", "attention_dropout")),
        ("modernbert", ("hidden_activation", "mlp_dropout", "attention_dropout")),
    ],
)
def test_what_a_config_leaves_out_has_the_value_of_transformers(name, keys):
    config = transformers.AutoConfig.for_model(name).to_dict()
    parse = weights_io.import_family(config, Path()).parse_config
    for key in config:
        with suppress(KeyError):  # a size
            assert parse({other: config[other] for other in config if other != key}) == parse(config), key
    read = parse(config | dict(zip(keys, ("relu", 0.3, 0.2))))
    assert (read.activation, read.dropout, read.attention_dropout) == ("relu", 0.3, 0.2)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "modernbert"])
@torch.no_grad()
def test_segments_are_one_where_a_family_knows_no_two(name, tmp_path):
    _, ours = make_pair(name, tmp_path, head=False)
    tokens = PackedTokens.from_lists(random_ids(), "pair")
    assert torch.equal(ours(replace(tokens, segments=torch.ones_like(tokens.ids))), ours(tokens))


@pytest.mark.parametrize("every", [1, 3])
@torch.no_grad()
def test_modernbert_of_older_releases_is_read(every, tmp_path):
    """Their config.json names two thetas and how often a layer sees everything, not the layers."""
    kinds = ["sliding_attention" if number % every else "full_attention" for number in range(5)]
    theta = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in (("full_attention", 90.0), ("sliding_attention", 7.0))}
    theirs = make_model("modernbert", layer_types=kinds, rope_parameters=theta)
    theirs.save_pretrained(tmp_path)
    config = {key: value for key, value in weights_io.read_config(tmp_path).items() if key not in ("layer_types", "rope_parameters")}
    old = config | {"global_attn_every_n_layers": every, "global_rope_theta": 90.0, "local_rope_theta": 7.0}
    assert weights_io.parse_encoder_config(old, tmp_path) == weights_io.parse_encoder_config(weights_io.read_config(tmp_path), tmp_path)
    ids = random_ids()
    ours = weights_io.read_encoder(tmp_path).eval()
    assert is_close(
        ours.logits(ours(PackedTokens.from_lists(ids, "document"))).split(LENGTHS)[5], theirs(input_ids=torch.tensor([ids[5]])).logits[0]
    )


@pytest.mark.parametrize("name", TINY_MODELS)
def test_bfloat16_stays_near_float32_and_every_weight_learns(name, tmp_path):
    """But for the key's bias, which a softmax does not see."""
    _, ours = make_pair(name, tmp_path)
    tokens = PackedTokens.from_lists(random_ids(), "document", (2, 0, 3, 0, 1, 3))
    exact = ours(tokens)
    with torch.no_grad(), device.autocast(torch.bfloat16, "cpu"):
        states = ours(tokens)
        logits = ours.logits(states)
    assert (states.float() - exact).abs().max() < 0.1 * exact.abs().max() and not torch.equal(states.float(), exact)
    assert bool(logits.isfinite().all())
    ours.logits(exact).square().mean().backward()
    idle = [key for key, parameter in ours.named_parameters() if parameter.grad is None or not bool(parameter.grad.abs().sum() > 0)]
    assert [key for key in idle if not key.endswith("key.bias")] == []


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("roberta", {"position_embedding_type": "relative_key"}, "moeir reads RoBERTa with 'absolute'"),
        ("electra-small", {"is_decoder": True}, "moeir reads ELECTRA with False"),
        ("bert", {"position_embedding_type": "relative_key"}, "moeir reads BERT with 'absolute'"),
        ("bert", {"hidden_act": "mish"}, "activation 'mish' is not one of gelu, "),
        ("bert", {"num_attention_heads": 5}, "hidden size 24 is not a multiple of 5 attention heads"),
        ("modernbert", {"decoder_bias": False}, "decoder_bias is False; moeir reads ModernBERT with True"),
        ("modernbert", {"layer_types": ["linear_attention"] * 5}, "layer_types has 'linear_attention'; moeir reads full_attention and"),
        ("modernbert", {"layer_types": ["full_attention"] * 4}, "names the attention of 4 layers; expected 5"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
        ("modernbert", {"rope_scaling": {"type": "linear"}}, "rope_scaling is .*; moeir reads ModernBERT with None"),
        ("modernbert", {"num_attention_heads": 8}, "attention heads are 3 wide; rotary positions need an even width"),
        ("modernbert", {"classifier_activation": "mish"}, "activation 'mish' is not one of"),
        ("bert", {"model_type": "gpt9"}, "moeir reads bert, distilbert, electra, modernbert, nomic_bert, roberta, xlm_roberta"),
        ("nomic_bert", {"moe_top_k": 6}, "moe_top_k is 6 of num_experts 5; expected at least 1"),
        ("nomic_bert", {"moe_top_k": 0}, "moe_top_k is 0 of num_experts 5; expected at least 1"),
        ("nomic_bert", {"moe_every_n_layers": 1}, "moe_every_n_layers is 1; expected 2 or more"),
        ("nomic_bert", {"moe_normalize_expert_weights": True}, "expert_weights is True; moeir reads Nomic's BERT with experts with False"),
        ("nomic_bert", {"moe_resid_pdrop": 0.1}, "moe_resid_pdrop is 0.1; .* with 0.0"),
        ("nomic_bert", {"prenorm": True}, "prenorm is True"),
        ("nomic_bert", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5"),
        ("nomic_bert", {"activation_function": "swiglu"}, "activation_function is 'swiglu'"),
        ("nomic_bert", {"n_head": 8}, "attention heads are 3 wide; rotary positions need an even width"),
    ],
)
def test_what_we_cannot_compute_is_refused(name, changes, message, tmp_path):
    config = tiny_nomic.CONFIG if name == "nomic_bert" else make_model(name, head=False).config.to_dict()
    with pytest.raises(UsageError, match=message) as caught:
        weights_io.parse_encoder_config(config | changes, tmp_path)
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


PUBLISHED = {
    "roberta-base": ("Roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}, 124_697_433),
    "xlm-roberta-base": ("XLMRoberta", {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}, 278_295_186),
    "electra-small": ("Electra", {}, 13_546_682),
    "distilbert-base": ("DistilBert", {}, 66_985_530),
    "modernbert-base": ("ModernBert", {}, 149_655_232),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_models_have_their_parameters(name, tmp_path):
    """With their vocabulary heads, without poolers; words and decoder are one."""
    family, settings, count = PUBLISHED[name]
    config = getattr(transformers, f"{family}Config")(**settings)
    with torch.device("meta"):
        encoder = Encoder(weights_io.parse_encoder_config(config.to_dict(), tmp_path), vocabulary_head=True)
        theirs = getattr(transformers, f"{family}ForMaskedLM")(config)
    assert sum(part.numel() for part in encoder.parameters()) == count == theirs.num_parameters()
