"""The published models have their numbers of parameters."""

import pytest
import torch
import transformers

from moeir.backbones.encoder import Encoder
from moeir.backbones.families import weights_io

WHOLE = {
    "roberta-base": ("Roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}, 124_697_433),
    "xlm-roberta-base": ("XLMRoberta", {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}, 278_295_186),
    "electra-small": ("Electra", {}, 13_546_682),
    "distilbert-base": ("DistilBert", {}, 66_985_530),
    "modernbert-base": ("ModernBert", {}, 149_655_232),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_published_models_have_their_parameters(name, tmp_path):
    """With their vocabulary heads, without poolers; words and decoder are one."""
    family, settings, count = WHOLE[name]
    config = getattr(transformers, f"{family}Config")(**settings).to_dict()
    with torch.device("meta"):
        encoder = Encoder(weights_io.parse_encoder_config(config, tmp_path), vocabulary_head=True)
        theirs = getattr(transformers, f"{family}ForMaskedLM")(getattr(transformers, f"{family}Config")(**settings))
    assert sum(part.numel() for part in encoder.parameters()) == count == theirs.num_parameters()
