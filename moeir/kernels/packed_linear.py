"""Linear maps for inference: on a CPU in the layout of its matrix products, with activation and residual inside; on CUDA cast once."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from moeir.kernels.int8_linear import Int8Linear, supports_int8

FUSED_ACTIVATIONS = {  # name in config.json → name and algorithm of oneDNN's operation after the product
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}
NO_ACTIVATION, CPU = ("none", ""), torch.device("cpu")


class PackedLinear(nn.Module):
    """activation(x · Wᵀ + b), in the weight's dtype whatever autocast says: [..., K] -> [..., N]. For inference only.

    weight [N, K] float32 or bfloat16, bias [N] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str | None = None) -> None:
        super().__init__()
        self.dtype, (self.out_features, self.in_features) = weight.dtype, weight.shape
        self.bias = None if bias is None else bias.detach().to(weight.dtype)
        self.operation = NO_ACTIVATION if activation is None else FUSED_ACTIVATIONS[activation]
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())  # opaque: no parameter, no buffer

    def forward(self, inputs: Tensor) -> Tensor:
        name, algorithm = self.operation
        output: Tensor = torch.ops.mkldnn._linear_pointwise(inputs.to(self.dtype), self.weight, self.bias, name, [], algorithm)
        return output

    def add_to_residual(self, inputs: Tensor, residual: Tensor) -> Tensor:
        """residual + x · Wᵀ + b: inputs [n, K], residual [n, N] -> [n, N], a new tensor."""
        output: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            inputs.to(self.dtype), residual.to(self.dtype), self.weight, self.bias, "add"
        )
        return output


def pack_linear(weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str | None = None) -> nn.Module:
    """The form for inference of a linear map, weight [N, K], and of the activation after it, which must be one of `fused_activations`."""
    if weight.is_cuda:
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        weights = {"weight": weight, "bias": bias}
        linear.load_state_dict({name: part.detach().to(dtype) for name, part in weights.items() if part is not None}, assign=True)
        return linear.requires_grad_(False)
    if dtype == torch.int8:
        return Int8Linear(weight, bias, gelu=activation is not None)
    return PackedLinear(weight.to(dtype), bias, activation)


def fused_activations(dtype: torch.dtype, device: torch.device) -> Collection[str]:
    """Activations that can be part of a packed product of this dtype on a device."""
    return () if device.type == "cuda" else ("gelu",) if dtype == torch.int8 else FUSED_ACTIVATIONS


def supports_packing(dtype: torch.dtype, device: torch.device = CPU) -> bool:
    """Whether a device has packed products of a dtype."""
    if device.type == "cuda":
        return dtype in (torch.float16, torch.bfloat16)
    if dtype == torch.int8:
        return supports_int8()
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def add_linear(linear: nn.Module, inputs: Tensor, residual: Tensor, dropout: nn.Module | None = None) -> Tensor:
    """residual + dropout(linear(inputs)); a packed map has no dropout."""
    if isinstance(linear, PackedLinear | Int8Linear):
        return linear.add_to_residual(inputs, residual)
    update = linear(inputs)
    return residual + (update if dropout is None else dropout(update))
