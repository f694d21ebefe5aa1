"""The widths, heads, windows and constants of the published models; fewer layers and words where that saves seconds."""

import pytest
import torch
import transformers

from moeir.backbones.encoder import Encoder
from moeir.backbones.families import weights_io
from moeir.backbones.packed_tokens import PackedTokens
from tests.backbones.tiny_models import is_close

FEW = {"vocab_size": 500}
ROBERTA = FEW | {"num_hidden_layers": 2, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
REAL = {
    "roberta-base": ("Roberta", ROBERTA),
    "xlm-roberta-base": ("XLMRoberta", ROBERTA),
    "electra-small": ("Electra", {}),
    "electra-base": ("Electra", FEW | {"num_hidden_layers": 2, "embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12}),
    "distilbert-base": ("DistilBert", FEW | {"n_layers": 2}),
    "modernbert-base": ("ModernBert", FEW | {"num_hidden_layers": 4} | dict.fromkeys(("pad_token_id", "cls_token_id"), 0)),
}
WHOLE = {
    "roberta-base": ("Roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}, 124_697_433),
    "xlm-roberta-base": ("XLMRoberta", {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}, 278_295_186),
    "electra-small": ("Electra", {}, 13_546_682),
    "distilbert-base": ("DistilBert", {}, 66_985_530),
    "modernbert-base": ("ModernBert", {}, 149_655_232),
}


@pytest.mark.parametrize("name", REAL)
@torch.no_grad()
def test_states_and_logits_are_those_of_transformers(name, tmp_path):
    """Two texts, one longer than ModernBERT's window to either side."""
    family, settings = REAL[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        theirs = getattr(transformers, f"{family}ForMaskedLM")(getattr(transformers, f"{family}Config")(**settings)).eval()
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.02)
        lengths = (9, 160)
        ids = [torch.randint(5, 500, (length,)).tolist() for length in lengths]
    theirs.save_pretrained(tmp_path)
    ours = weights_io.read_encoder(tmp_path, vocabulary_head=None).eval()
    states = ours(PackedTokens.from_lists(ids, "document"))
    for text, part in zip(ids, states.split(lengths), strict=True):
        expected = theirs(input_ids=torch.tensor([text]))
        assert is_close(part, theirs.base_model(input_ids=torch.tensor([text])).last_hidden_state[0])
        assert is_close(ours.logits(part), expected.logits[0])


@pytest.mark.parametrize("name", WHOLE)
def test_the_published_models_have_their_parameters(name, tmp_path):
    """With their vocabulary heads, without poolers; words and decoder are one."""
    family, settings, count = WHOLE[name]
    config = getattr(transformers, f"{family}Config")(**settings).to_dict()
    with torch.device("meta"):
        encoder = Encoder(weights_io.parse_encoder_config(config, tmp_path), vocabulary_head=True)
        theirs = getattr(transformers, f"{family}ForMaskedLM")(getattr(transformers, f"{family}Config")(**settings))
    assert sum(part.numel() for part in encoder.parameters()) == count == theirs.num_parameters()
