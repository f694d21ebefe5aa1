"""One tiny model per family with its special features: created by transformers with random weights, read by moeir."""

import torch
import transformers

from moeir.backbones.families import weights_io

V = 61
LENGTHS = (5, 1, 7, 7, 2, 16)
BERT = {"vocab_size": V, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
BERT |= {"max_position_embeddings": 16, "initializer_range": 0.3}
ROBERTA = BERT | {"max_position_embeddings": 18, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
DISTIL = {"vocab_size": V, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 40}
DISTIL |= {"max_position_embeddings": 16, "initializer_range": 0.3}
MODERN = BERT | {"num_hidden_layers": 5, "local_attention": 6, "max_position_embeddings": 32, "hidden_activation": "gelu"}
MODERN |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
TINY_MODELS = {
    "bert": ("Bert", BERT),
    "roberta": ("Roberta", ROBERTA),
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "electra-base": ("Electra", BERT | {"embedding_size": 24}),
    "electra-small": ("Electra", BERT | {"embedding_size": 10}),
    "distilbert": ("DistilBert", DISTIL),
    "modernbert": ("ModernBert", MODERN),
    "modernbert-biases": ("ModernBert", MODERN | BIASES | {"hidden_activation": "silu", "classifier_activation": "relu"}),
}


def make_model(name, *, head=True, kind=None, **changes):
    """A model of transformers, of a kind if it is named, with every parameter random, biases and normalisations too."""
    family, settings = TINY_MODELS[name]
    config = getattr(transformers, f"{family}Config")(**(settings | changes))
    return draw_model(getattr(transformers, family + (kind or ("ForMaskedLM" if head else "Model"))), config)


@torch.no_grad()
def draw_model(kind, config):
    """A model of this class of transformers, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = kind(config)
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model.eval()


def make_pair(name, folder, *, head=True, **changes):
    """The model, and ours read from its files."""
    theirs = make_model(name, head=head, **changes)
    theirs.save_pretrained(folder)
    return theirs, weights_io.read_encoder(folder).eval()


def random_ids(lengths=LENGTHS, seed=0):
    """Random ids, none of which is special in any family."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, V, (length,), generator=generator).tolist() for length in lengths]


def pad_batch(ids, padding=1):
    longest = max(map(len, ids))
    batch = torch.tensor([text + [padding] * (longest - len(text)) for text in ids])
    return {"input_ids": batch, "attention_mask": torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in ids])}


def is_close(actual, expected):
    return bool((actual - expected).abs().max() <= 1e-5 * expected.abs().max())
