"""Models of transformers as encoders: packed, whole or cut, they give each text the states of transformers for that text alone."""

import copy
import inspect
import json
import logging
from contextlib import nullcontext
from functools import cache

import pytest
import torch
import transformers

from moeir.backbones import transformers_encoder, transformers_model
from moeir.backbones.encoder import run_layers
from moeir.backbones.families import weights_io
from moeir.backbones.layers import set_attention_dropout
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.transformers_encoder import NotPackableError
from moeir.errors import UsageError
from tests.architectures.folders import assert_refused
from tests.backbones.tiny_models import V, draw_model, random_ids

LENGTHS = (5, 1, 20, 20, 13)
SIZES = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
SIZES |= {"max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
ROBERTA = SIZES | {"pad_token_id": 1}
SMALL = {"vocab_size": V, "initializer_range": 0.3, "max_position_embeddings": 64}
LOCAL, FULL = "sliding_attention", "full_attention"
GEMMA = GROUPED | {"sliding_window": 6, "layer_types": [LOCAL, FULL, LOCAL]}
PACKED = {
    "bert": ("Bert", SIZES),
    "roberta": ("Roberta", ROBERTA),
    "electra": ("Electra", SIZES | {"embedding_size": 16}),
    "distilbert": ("DistilBert", SMALL | {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}),
    "modernbert": ("ModernBert", SIZES | {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2}),
    "eurobert": ("EuroBert", GROUPED),
    "nomic_bert": ("NomicBert", SIZES),
    "gte": ("Gte", SIZES),
    "jina_embeddings_v3": ("JinaEmbeddingsV3", SIZES),
    "ultrabert": ("Ultrabert", GROUPED | {"sliding_window": 4, "layer_types": [FULL, LOCAL, LOCAL]}),
    "llama": ("Llama", GROUPED),
    "mistral": ("Mistral", GROUPED | {"sliding_window": 6}),
    "qwen3": ("Qwen3", GROUPED),
    "qwen3_moe": ("Qwen3Moe", GROUPED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}),
    "gemma3_text": ("Gemma3Text", GEMMA | {"use_bidirectional_attention": True}),
    "smollm3": ("SmolLM3", GROUPED),
    "granite": ("Granite", GROUPED | {"logits_scaling": 3.0, "attention_multiplier": 0.2}),
    "olmo2": ("Olmo2", GROUPED),
    "embedding_gemma2_text": (
        "EmbeddingGemma2Text",
        GROUPED
        | {"sliding_window": 5, "hidden_size_per_layer_input": 8, "embedding_dim": 24, "global_head_dim": 16}
        | {"layer_types": [LOCAL, LOCAL, FULL]},
    ),
}
T5 = {"vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4, "pad_token_id": 0, "eos_token_id": 1}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
WHOLE = {
    "mpnet": ("MPNet", ROBERTA),
    "deberta-v2": ("DebertaV2", SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}),
    "t5": ("T5", T5 | {"decoder_start_token_id": 0}),
    "lfm2": ("Lfm2", GROUPED | {"layer_types": ["conv", FULL, "conv"]}),
    "qwen3_5_text": ("Qwen3_5Text", GROUPED | LINEAR | {"layer_types": ["linear_attention", FULL, "linear_attention"]}),
}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
WHOLE |= {  # their texts mix only above a number of tokens, or their attention has another formula
    "phi3": ("Phi3", GROUPED | {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 16}),
    "llama4_text": ("Llama4Text", GROUPED | {"attention_chunk_size": 12, "num_local_experts": 2, "intermediate_size_mlp": 48}),
    "gemma2": ("Gemma2", GROUPED | {"sliding_window": 6}),
}


@cache
def make_config(name, **changes):
    """The configuration of a tiny model; its test is skipped where transformers has no such model yet."""
    family, settings = {**PACKED, **WHOLE}[name]
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return getattr(transformers, f"{family}Config")(**(settings | changes))


def make_model(name):
    """A tiny model of transformers with every parameter random, with its vocabulary head if it has one."""
    config = make_config(name)
    return draw_model(transformers_model.choose_class(config), config)


def make_pair(name, folder):
    """The model of transformers, and the encoder that reads its files by transformers' modules."""
    theirs = make_model(name)
    theirs.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    weights_io.note_backbone(config, "transformers")
    return theirs, weights_io.read_encoder(folder, config=config).eval(), config


def states_alone(model, texts):
    return [model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in texts]


def difference(actual, expected):
    """The largest difference, relative to the largest number."""
    return float((actual - expected).detach().abs().max() / expected.detach().abs().max())


@torch.no_grad()
def check_logits_and_files(theirs, ours, config, folder):
    """Vocabulary logits are those of transformers. What is written are the weights that were read, under the names that files have; a
    vocabulary head that is tied, and has no weights, is not written."""
    if ours.vocabulary_head is None:
        assert theirs.base_model is theirs or theirs.config.final_logit_softcapping
    else:
        ids = random_ids(LENGTHS)[2]
        expected = theirs(input_ids=torch.tensor([ids])).logits[0]
        assert difference(ours.logits(ours(PackedTokens.from_lists([ids], "document"))), expected) <= 1e-5
    kind, weights = transformers_model.to_files(config, folder, ours.state_dict(), ours.file_names)
    reopened, loading = getattr(transformers, kind).from_pretrained(
        None, config=theirs.config, state_dict=weights, output_loading_info=True
    )
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    expected = dict(theirs.base_model.state_dict() if kind.endswith("Model") else theirs.state_dict())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in reopened.state_dict().items())


@pytest.mark.parametrize("name", PACKED)
def test_packed_texts_have_the_states_and_gradients_of_each_text_alone(name, tmp_path):
    theirs, ours, config = make_pair(name, tmp_path)
    assert ours.config.packed and len(ours.layers) == 3
    check_logits_and_files(theirs, ours, config, tmp_path)
    texts, tokens = random_ids(LENGTHS), PackedTokens.from_lists(random_ids(LENGTHS), "document")
    expected, packed = torch.cat(states_alone(theirs.base_model, texts)), ours(tokens)
    assert difference(packed, expected) <= 1e-5
    with torch.no_grad():  # a tower of copies ends as the whole does, with the final normalisation
        tower = ours.copy_layers_from(1)
        cut = run_layers(tower, run_layers(ours.layers[:1], ours.embeddings(tokens), tokens), tokens)
    assert difference(cut, expected) <= 1e-5
    factors = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (expected * factors).sum().backward()
    (packed * factors).sum().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    own = {ours.file_names[name]: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert own.keys() == gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    assert max(float((own[name] - gradient).abs().max()) for name, gradient in gradients.items()) <= 5e-6 * largest


@torch.no_grad()
def test_a_rate_of_dropped_attention_is_for_training_alone(tmp_path):
    _, ours, _ = make_pair("qwen3", tmp_path)
    tokens = PackedTokens.from_lists(random_ids(LENGTHS), "document")
    expected = ours(tokens)
    set_attention_dropout(ours, 0.5)
    assert torch.equal(ours(tokens), expected) and not torch.allclose(ours.train()(tokens), expected, atol=1e-3)


@pytest.mark.parametrize("name", WHOLE)
@torch.no_grad()
def test_a_model_in_which_texts_mix_runs_whole_over_texts_of_one_length(name, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        theirs, ours, config = make_pair(name, tmp_path)
    assert [record.message.partition(";")[2] for record in caplog.records] == [
        " it runs whole over texts of one length, and cannot be cut into shared layers, towers or routed layers"
    ]
    base = theirs.base_model if theirs.base_model_prefix != "language_model" else theirs
    expected = torch.cat(states_alone(base, random_ids(LENGTHS)))
    assert difference(ours(PackedTokens.from_lists(random_ids(LENGTHS), "document")), expected) <= 1e-6
    assert_refused(UsageError, r"came: .* runs whole, as texts do not stay apart in it", ours.check_layers, "came")
    check_logits_and_files(theirs, ours, config, tmp_path)


MIXING = ("mpnet", "deberta-v2", "t5", "lfm2", "qwen3_5_text")  # they know no boundaries of texts, whatever attention is asked for


@pytest.mark.parametrize("name", ["bert", "roberta", "llama", "granite", *MIXING])
@torch.no_grad()
def test_the_probe_finds_texts_that_mix_in_a_model_that_is_forced_to_run_packed(name, monkeypatch):
    """Without the checks before it, which refuse some of MIXING while they are cut: the whole model reads one row of packed texts."""
    base = copy.deepcopy(make_model(name)).base_model  # configurations are of all tests
    sizes = transformers_encoder.TransformersConfig(V, 32, 3, 4, 48, 1e-12, 64, 2, 0.3)
    expected = transformers_model._run_alone(base, transformers_model.draw_probe_texts(sizes))
    own_attention, first = base.config._attn_implementation, transformers_model.find_first_position(base.config)
    if base._can_set_attn_implementation():
        base.set_attn_implementation(transformers_encoder.ATTENTION)
    encoder = transformers_encoder.TransformersEncoder(sizes, base, None, first_position=first)

    def run_packed(tokens):
        inputs = {"input_ids": tokens.ids[None], "position_ids": tokens.positions()[None] + first, "moeir_layout": tokens.layout}
        accepted = inspect.signature(base.forward).parameters
        passed = accepted.keys() if "kwargs" not in accepted else inputs.keys()
        token = transformers_encoder._running.set(transformers_encoder.LayerRun(None, tokens, None))
        try:
            return base(**{name: value for name, value in inputs.items() if name in passed}).last_hidden_state[0]
        finally:
            transformers_encoder._running.reset(token)

    monkeypatch.setattr(transformers_encoder, "UNSUPPORTED", ())
    monkeypatch.setattr(encoder.embeddings, "forward", run_packed)
    with pytest.raises(NotPackableError, match="states differ by") if name in MIXING else nullcontext():
        transformers_model.check_packing(encoder, expected, own_attention)
