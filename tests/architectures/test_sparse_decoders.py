"""Sparse experts over decoders whose tokens attend to all of their text: equal to formulas with all logits, which are never computed."""

import functools
import json
from itertools import accumulate

import pytest
import torch
import transformers

from moeir import open_checkpoint
from moeir.architectures.initialize import build_checkpoint
from moeir.backbones import transformers_encoder, transformers_model
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from tests.backbones.test_transformers_encoder import difference

TEXTS = ["An owl, hunting at night.", "the sea (the end)", "cat", "bread in the whale at night"]
RULES = {"query_length": 16, "document_length": 16}
DECODERS = ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma3_text", "smollm3", "granite", "olmo2"]


@functools.cache
def open_causal_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


@torch.no_grad()
def all_logits(folder, ids):
    """Logits [L, V] of transformers with a mask: tokens attend to all others, in layers with a window to so many of both sides."""
    model = open_causal_model(folder)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    window = getattr(model.config, "sliding_window", None) or len(ids)
    distance = (torch.arange(len(ids))[:, None] - torch.arange(len(ids))).abs()
    masks = {"full_attention": torch.zeros(1, 1, len(ids), len(ids))}
    masks["sliding_attention"] = torch.where(distance > window, torch.finfo(torch.float32).min, 0.0)[None, None]
    kind = "sliding_attention" if model.config.model_type == "mistral" else kinds[0]
    mask = masks if len({*kinds}) > 1 else masks[kind]
    return model(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0]


@pytest.mark.parametrize("name", DECODERS)
def test_the_weights_of_a_bidirectional_decoder_are_those_of_all_its_logits(name, weights):
    folder = weights(name, **({"use_bidirectional_attention": False} if name == "gemma3_text" else {}))
    checkpoint = build_checkpoint(folder, "splade", RULES, backbone="bidirectional")
    ids = checkpoint.token_ids(TEXTS, "document")[0]
    saturated = [torch.log1p(all_logits(folder, text).relu()) for text in ids]
    expected = torch.stack([part.amax(0) for part in saturated])
    assert difference(checkpoint.encode(TEXTS)["lexical"].to_matrix(), expected) <= 1e-5
    causal = build_checkpoint(folder, "splade", RULES)
    assert difference(causal.encode(TEXTS)["lexical"].to_matrix(), expected) > 1e-2


def test_cames_lexical_expert_over_a_decoder_is_equal_to_the_formula_and_keeps_that_its_tokens_attend_to_later_ones(weights, tmp_path):
    """With the bias that it is given, since the logits of a decoder have none."""
    folder = weights("qwen3", tie_word_embeddings=False)
    checkpoint = build_checkpoint(folder, "came:shared_layers=1,local_dim=8", RULES, backbone="bidirectional")
    ids, bias = checkpoint.token_ids(TEXTS, "document")[0], checkpoint.architecture.heads["lexical"].bias.detach()
    expected = torch.stack([torch.log1p((all_logits(folder, text) + bias).relu().amax(0)) for text in ids])
    checkpoint.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["is_causal"] is False
    for model in (checkpoint, open_checkpoint(tmp_path)):
        assert not model.architecture.encoder.is_causal
        assert difference(model.encode(TEXTS)["lexical"].to_matrix(), expected) <= 1e-5
    checkpoint.architecture.train()(checkpoint.tokenize(TEXTS, "document"))["lexical"].weights.sum().backward()
    bias = checkpoint.architecture.heads["lexical"].bias
    assert bias.requires_grad and bias.grad.count_nonzero() > 0


@pytest.mark.parametrize("arch", ["came:shared_layers=1,local_dim=8", "came:shared_layers=1,adapters=2", "mote", "splade:adapters=2"])
def test_the_lexical_expert_of_a_decoder_starts_with_few_terms(arch, weights):
    """Two of 700 terms are above zero for a token, whatever the mean of the logits; without a bias about half of them are."""
    folder = weights("qwen3", vocab_size=700)
    texts = [*TEXTS, *(" ".join(text.split()[::-1]) for text in TEXTS)] * 4
    checkpoint = build_checkpoint(folder, arch, RULES, texts, backbone="bidirectional")
    plain = build_checkpoint(folder, "splade", RULES, texts, backbone="bidirectional")
    assert "bias" not in dict(plain.architecture.heads["lexical"].named_parameters())  # its layout has no place for one
    tokens = sum(map(len, checkpoint.token_ids(TEXTS, "document")[0]))
    active, usual = ((model.encode(TEXTS)["lexical"].to_matrix() > 0).sum().item() for model in (checkpoint, plain))
    assert len(TEXTS) <= active <= 8 * tokens and usual > 100 * len(TEXTS)


def test_transformers_opens_what_is_written_as_bidirectional(weights, tmp_path):
    checkpoint = build_checkpoint(weights("llama"), "dense:pooling=mean", RULES, backbone="bidirectional")
    checkpoint.save(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        means = [model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in checkpoint.token_ids(TEXTS, "document")[0]]
    assert difference(checkpoint.encode(TEXTS)["global"].vectors, torch.stack(means)) <= 1e-5


def peak_memory(work):
    """The most bytes of tensors that torch's allocator holds at once, besides those from before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())))


def test_a_step_of_a_sparse_decoder_has_memory_for_less_than_an_eighth_of_all_logits(weights):
    """Two texts of 800 tokens, 20,000 words: 128 MB of logits, which the plain formula has, and as much for their gradient."""
    folder, vocabulary = weights("qwen3", vocab_size=20_000, max_position_embeddings=2048), 20_000
    checkpoint = build_checkpoint(folder, "splade", RULES, backbone="bidirectional")
    architecture, peaks, logits = checkpoint.architecture.train(), {}, 2 * 800 * vocabulary * 4
    for length in (100, 800):
        ids = torch.randint(10, vocabulary, (2, length), generator=torch.Generator().manual_seed(0)).tolist()
        tokens = PackedTokens.from_lists(ids, "document")
        peaks[length] = peak_memory(lambda tokens=tokens: architecture(tokens)["lexical"].weights.sum().backward())
    assert peaks[800] - peaks[100] < logits / 8

    def apply_formula():
        all_weights = torch.log1p(architecture.encoder.logits(architecture.encoder(tokens)).relu()).unflatten(0, (2, -1))
        all_weights.amax(1).sum().backward()

    assert peak_memory(apply_formula) > 2 * logits


@pytest.mark.parametrize("name", ["lfm2", "qwen3_5_text", "gemma2", "t5"])
def test_a_model_that_runs_whole_is_not_made_bidirectional(name, weights):
    with pytest.raises(UsageError, match=r"--backbone bidirectional: \w+ runs whole, as texts do not stay apart in it"):
        build_checkpoint(weights(name), "dense:pooling=mean", RULES, backbone="bidirectional")


def test_a_model_whose_layers_ignore_it_is_refused(weights, monkeypatch):
    """As a model would be that neither passes on nor reads that it is not causal."""
    attention = transformers_encoder.attention

    def causal_attention(query, key, value, layout, reach, dropout, scale=None):
        return attention(query, key, value, layout, (reach[0], 0), dropout, scale)

    monkeypatch.setattr(transformers_encoder, "attention", causal_attention)
    monkeypatch.setattr(transformers_model, "check_packing", lambda *arguments: None)
    with pytest.raises(UsageError, match="in layer 1 of LlamaModel tokens do not attend to later ones"):
        build_checkpoint(weights("llama"), "splade", RULES, backbone="bidirectional")


def test_a_bidirectional_trunk_stays_so_below_adapters(weights, tmp_path):
    """Its own config.json, which the checkpoint does not hold, says nothing of it."""
    checkpoint = build_checkpoint(weights("qwen3"), "came:shared_layers=1,local_dim=8,adapters=2", RULES, backbone="bidirectional")
    checkpoint.save(tmp_path)
    with pytest.raises(UsageError, match="--backbone bidirectional is for plain weights, from which its checkpoint is made"):
        build_checkpoint(tmp_path, None, {}, backbone="bidirectional")
    again = open_checkpoint(tmp_path)
    assert not again.architecture.encoder.is_causal
    assert difference(again.encode(TEXTS)["lexical"].to_matrix(), checkpoint.encode(TEXTS)["lexical"].to_matrix()) <= 1e-6
