"""Linear maps in 8-bit integers for inference on a CPU: one scale for each output of a weight, one for each token of the input.

A few channels of a few tokens are ten times as large as the rest (Dettmers et al. 2022, LLM.int8()): a single scale for all tokens would be
theirs.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from moeir.kernels.precision import has_native_bfloat16

TILE = 2048  # words
LARGEST, ZERO = 127, 128  # signed 8-bit number; what stands for 0 in an unsigned one


class Int8Weight:
    """A weight [N, K] in 8-bit integers, in the layout of the processor's matrix products."""

    def __init__(self, weight: Tensor) -> None:
        weight = weight.detach().float()
        self.scales = (weight.abs().amax(1) / LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
        self.packed = torch.ops.onednn.qlinear_prepack((weight / self.scales[:, None]).round_().to(torch.int8), None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)

    def multiply(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows uint8 [n, K] of `quantize` -> their products [n, N] without the scales of the rows."""
        arguments = (rows, 1.0, ZERO, self.packed, self.scales, self.zeros, None, 1.0, 0, dtype, "none", [], "")
        product: Tensor = torch.ops.onednn.qlinear_pointwise(*arguments)
        return product


class Int8Words:
    """Word embeddings [V, H] in 8-bit integers, in tiles of `TILE` words, for the logits of a vocabulary."""

    def __init__(self, embedding: Tensor) -> None:
        self.tiles, self.count = [Int8Weight(tile) for tile in embedding.split(TILE)], len(embedding)

    def __len__(self) -> int:
        return self.count

    def iterate_logits(self, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the vocabulary with their logits [n, v], in the dtype of the states [n, H]."""
        rows, scales = quantize(states)
        for number, tile in enumerate(self.tiles):
            logits, first = tile.multiply(rows, states.dtype), number * TILE
            rescale_(logits, scales, np.zeros(logits.shape[1], np.float32))
            yield slice(first, first + logits.shape[1]), logits


class Int8Linear(nn.Module):
    """x · Wᵀ + b, or GELU of it, with x and W in 8-bit integers: [..., K] -> [..., N], in `inference_dtype`.

    weight [N, K], bias [N] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features, self.gelu = *weight.shape, gelu
        self.weight, self.dtype = Int8Weight(weight), inference_dtype()
        self.bias = np.zeros(self.out_features, np.float32) if bias is None else bias.detach().float().numpy().copy()

    def forward(self, inputs: Tensor) -> Tensor:
        rows, scales = quantize(inputs.reshape(-1, self.in_features).to(self.dtype))
        product = self.weight.multiply(rows, self.dtype)
        rescale_(product, scales, self.bias, gelu=self.gelu)
        return product.view(*inputs.shape[:-1], self.out_features)

    def add_to_residual(self, inputs: Tensor, residual: Tensor) -> Tensor:
        """residual + x · Wᵀ + b: inputs [n, K], residual [n, N] -> [n, N], a new tensor."""
        update: Tensor = self(inputs)
        return update.add_(residual)

    def add_and_norm(self, inputs: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
        """norm(residual + x · Wᵀ + b), in bfloat16 in one pass: inputs [n, K], residual [n, N] -> [n, N], a new tensor."""
        if self.dtype != torch.bfloat16 or norm.bias is None:
            normalized: Tensor = norm(self.add_to_residual(inputs, residual))
            return normalized
        from moeir.kernels import int8_loops

        rows, scales = quantize(inputs.to(torch.bfloat16))
        product, residual = self.weight.multiply(rows, torch.bfloat16), residual.to(torch.bfloat16).contiguous()
        affine = (norm.weight.detach().float().numpy(), norm.bias.detach().float().numpy(), np.float32(norm.eps))
        bits = [tensor.view(torch.uint16).numpy() for tensor in (product, residual, product)]
        int8_loops.add_norm_bfloat16(bits[0], scales, self.bias, bits[1], *affine, bits[2])
        return product


@cache
def supports_int8() -> bool:
    """Whether this torch and processor multiply 8-bit integers exactly: without VNNI, sums of two products may be cut off at 16 bits."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        product = Int8Weight(torch.full((16, 64), float(LARGEST))).multiply(torch.full((16, 64), 255, dtype=torch.uint8), torch.float32)
    except RuntimeError:  # no such operation
        return False
    return bool((product == 64 * LARGEST * (255 - ZERO)).all())


def inference_dtype() -> torch.dtype:
    """The dtype of states between products in 8-bit integers: bfloat16 if the processor multiplies it, else float32."""
    return torch.bfloat16 if has_native_bfloat16("cpu") else torch.float32


def quantize(rows: Tensor) -> tuple[Tensor, np.ndarray]:
    """Rows [n, K], bfloat16 or float32, as uint8 [n, K] and scales float32 [n]: x ≈ scale · (integer − ZERO); NaN if a row has NaN or ∞."""
    from moeir.kernels import int8_loops  # imports numba, which only 8-bit integers need

    rows = rows.contiguous()
    integers, scales = torch.empty(rows.shape, dtype=torch.uint8), np.empty(len(rows), np.float32)
    if rows.dtype == torch.bfloat16:
        int8_loops.quantize_bfloat16(rows.view(torch.uint16).numpy(), integers.numpy(), scales)
    else:
        int8_loops.quantize_float32(rows.numpy(), integers.numpy(), scales)
    return integers, scales


def rescale_(products: Tensor, scales: np.ndarray, bias: np.ndarray, *, gelu: bool = False) -> None:
    """scale · product + bias, or GELU of it, in place: products [n, N], bfloat16 or float32, scales float32 [n], bias float32 [N]."""
    from moeir.kernels import int8_loops

    if products.dtype == torch.bfloat16:
        int8_loops.rescale_bfloat16(products.view(torch.uint16).numpy(), scales, bias, gelu)
    else:
        int8_loops.rescale_float32(products.numpy(), scales, bias, gelu)
