"""Adapters against PEFT on tiny models: the states of each tower, read as one batch, and the gradients, from the same numbers.

pip install --no-deps --target FOLDER peft accelerate psutil
PYTHONPATH=FOLDER python -m tests.benchmarks.peft_adapters
"""

import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from peft.utils import set_peft_model_state_dict

from moeir.backbones.encoder import run_layers
from moeir.backbones.packed_tokens import PackedTokens
from moeir.mixtures import adapters
from tests.backbones import test_transformers_encoder as theirs
from tests.backbones import tiny_models
from tests.mixtures.test_adapters import draw_adapters

EXPERTS, RANK, ALPHA = ("lexical", "local", "global"), 4, 8.0


def open_pair(name: str, folder: Path):
    """The model of transformers, and the encoder that reads its files: ours for a family of ours."""
    if name in tiny_models.TINY_MODELS:
        return tiny_models.make_pair(name, folder)
    return theirs.make_pair(name, folder)[:2]


def peft_model(model, by_path):
    """A PEFT model over the bare model with one adapter of ours."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=sorted(by_path))
    wrapped = get_peft_model(model, config)
    named = [(path, zip("AB", pair, strict=True)) for path, pair in by_path.items()]
    parts = {f"base_model.model.{path}.lora_{part}.weight": tensor for path, pair in named for part, tensor in pair}
    result = set_peft_model_state_dict(wrapped, parts)
    assert not result.unexpected_keys and not [key for key in result.missing_keys if "lora" in key], result
    for name, parameter in wrapped.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return wrapped.to(next(iter(by_path.values()))[0].dtype).eval()


def compare(name: str, dtype: torch.dtype) -> None:
    texts = theirs.random_ids(lengths=(5, 1, 9, 9))
    tokens, options = PackedTokens.from_lists(texts, "document"), adapters.AdapterOptions(RANK, adapter_alpha=ALPHA)
    with tempfile.TemporaryDirectory() as folder:
        _, encoder = open_pair(name, Path(folder))
        adapters.insert_adapters(encoder, options, EXPERTS, make_router=lambda layer: adapters.TowerRouter())
        draw_adapters(encoder).to(dtype)
        repeated = tokens.repeat((0, 1, 2))
        packed = run_layers(encoder.layers, encoder.embeddings(repeated), repeated)
        factors = torch.randn(packed.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        (packed * factors).sum().backward()
        listed = adapters.list_adapters(encoder)
        maps = [module for module in encoder.modules() if isinstance(module, adapters.AdaptedLinear)]
        gradients = {module.path: (module.down.grad, module.up.grad) for module in maps}
        states, gradient, size = 0.0, 0.0, 0.0
        for number, (expert, own, factor) in enumerate(zip(EXPERTS, packed.detach().chunk(3), factors.chunk(3), strict=True)):
            model, _ = open_pair(name, Path(folder))
            wrapped = peft_model(model.base_model.to(dtype), listed[expert])
            outputs = torch.cat([wrapped(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in texts])
            states = max(states, float((outputs - own).detach().abs().max()))
            (outputs * factor).sum().backward()
            for path, (down, up) in gradients.items():
                layer = wrapped.get_submodule(f"base_model.model.{path}")
                for ours, peft in ((down, layer.lora_A), (up, layer.lora_B)):
                    gradient = max(gradient, float((ours[number] - peft["default"].weight.grad).abs().max()))
                    size = max(size, float(ours[number].abs().max()))
    states, gradient = states / float(packed.detach().abs().max()), gradient / size
    print(f"{name}, {dtype}: relative to the largest, states differ by {states:.1e}, gradients by {gradient:.1e}")


if __name__ == "__main__":
    for name in ("bert", "distilbert", "modernbert", "qwen3", "llama", "embedding_gemma2_text"):
        compare(name, torch.float32)
        compare(name, torch.float64)
