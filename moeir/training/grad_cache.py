"""Gradient caching: large batches with the activation memory of one part. Gao et al. 2021 (GradCache).

All parts but the last are encoded without a graph; the loss is computed from all representations; then each part is encoded again and
backpropagates the gradient of its representations. That is exact, with dropout too: the state of torch's generator is saved and replayed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moeir.architectures.base import EncoderOutput, concatenate_outputs
from moeir.backbones.packed_tokens import PackedTokens

Encode = Callable[[PackedTokens], EncoderOutput]


def encode_with_grad_cache(encode: Encode, parts: Sequence[PackedTokens], model: nn.Module) -> EncoderOutput:
    """Representations of all parts end to end, with gradient for the model's parameters, each of which gets that of all parts at once; the
    last part keeps its activations, as backward starts there."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return concatenate_outputs([*(_encode_recomputed(encode, part, parameters) for part in parts[:-1]), encode(parts[-1])])


def _encode_recomputed(encode: Encode, tokens: PackedTokens, parameters: Sequence[nn.Parameter]) -> EncoderOutput:
    outputs: list[EncoderOutput] = []
    floating = iter(_Recompute.apply(encode, tokens, outputs, *parameters))
    return outputs.pop().map(lambda part: next(floating) if part.is_floating_point() else part)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, encode: Encode, tokens: PackedTokens, outputs: list[EncoderOutput], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.encode, ctx.tokens, ctx.parameters, ctx.cpu_state = encode, tokens, parameters, torch.get_rng_state()
        ctx.cuda_state = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        with torch.no_grad():
            outputs.append(encode(tokens))
        ctx.set_materialize_grads(False)
        return tuple(part for part in outputs[0].tensors() if part.is_floating_point())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        devices = [] if ctx.cuda_state is None else [torch.cuda.current_device()]
        with torch.random.fork_rng(devices), torch.enable_grad():
            torch.set_rng_state(ctx.cpu_state)
            if ctx.cuda_state is not None:
                torch.cuda.set_rng_state(ctx.cuda_state)
            recomputed = [part for part in ctx.encode(ctx.tokens).tensors() if part.is_floating_point()]
        pairs = [(part, gradient) for part, gradient in zip(recomputed, gradients, strict=True) if gradient is not None]
        outputs, upstream = [part for part, _ in pairs], [gradient for _, gradient in pairs]
        return None, None, None, *torch.autograd.grad(outputs, ctx.parameters, upstream, allow_unused=True)
