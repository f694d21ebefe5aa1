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
        weight = weight.detach().float().contiguous()  # prepacking ignores strides
        self.scales = (weight.abs().amax(1) / LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
        self.packed = torch.ops.onednn.qlinear_prepack((weight / self.scales[:, None]).round_().to(torch.int8), None)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)

    def multiply(self, integers: Tensor) -> Tensor:
        """Rows uint8 [n, K] of `quantize` -> their products float32 [n, N] without the scales of the rows."""
        arguments = (integers, 1.0, ZERO, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], "")
        product: Tensor = torch.ops.onednn.qlinear_pointwise(*arguments)
        return product


class Int8Words:
    """Word embeddings [V, H] in 8-bit integers, in tiles of `TILE` words, for the logits of a vocabulary."""

    def __init__(self, embedding: Tensor) -> None:
        self.tiles, self.count = [Int8Weight(tile) for tile in embedding.split(TILE)], len(embedding)

    def __len__(self) -> int:
        return self.count

    def iterate_logits(self, states: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Slices of the vocabulary with their logits float32 [n, v] of states [n, H]."""
        integers, scales = quantize(states)
        for number, tile in enumerate(self.tiles):
            logits, first = tile.multiply(integers), number * TILE
            yield slice(first, first + logits.shape[1]), logits.mul_(scales[:, None])


class Int8Linear(nn.Module):
    """x · Wᵀ + b, or GELU of it, with x and W in 8-bit integers: [..., K] -> [..., N], in `inference_dtype`, after GELU in float32.

    weight [N, K], bias [N] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.gelu, self.dtype = Int8Weight(weight), gelu, torch.float32 if gelu else inference_dtype()
        self.bias = np.zeros(self.out_features, np.float32) if bias is None else bias.detach().float().numpy().copy()

    def forward(self, inputs: Tensor) -> Tensor:
        product = self._multiply(inputs.reshape(-1, self.in_features))
        return product.to(self.dtype).view(*inputs.shape[:-1], self.out_features)

    def add_to_residual(self, inputs: Tensor, residual: Tensor) -> Tensor:
        """residual + x · Wᵀ + b: inputs [n, K], residual [n, N] -> float32 [n, N], a new tensor."""
        return self._multiply(inputs).add_(residual)

    def _multiply(self, inputs: Tensor) -> Tensor:
        """Inputs [n, K] -> float32 [n, N]."""
        from moeir.kernels import int8_loops  # imports numba, which only 8-bit integers need

        integers, scales = quantize(inputs)
        product = self.weight.multiply(integers)
        int8_loops.rescale_products(product.numpy(), scales.numpy(), self.bias, self.gelu)
        return product


@cache
def supports_int8() -> bool:
    """Whether this torch and processor multiply 8-bit integers exactly: without VNNI, sums of two products may be cut off at 16 bits."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        product = Int8Weight(torch.full((16, 64), float(LARGEST))).multiply(torch.full((16, 64), 255, dtype=torch.uint8))
    except RuntimeError:  # no such operation
        return False
    return bool((product == 64 * LARGEST * (255 - ZERO)).all())


def inference_dtype() -> torch.dtype:
    """The dtype of attention between products in 8-bit integers: bfloat16 if the processor multiplies it, else float32."""
    return torch.bfloat16 if has_native_bfloat16("cpu") else torch.float32


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [n, K] as uint8 [n, K] and scales float32 [n]: x ≈ scale · (integer − ZERO); the scale is NaN if a row has NaN or ∞."""
    from moeir.kernels import int8_loops

    integers, scales = torch.empty(rows.shape, dtype=torch.uint8), torch.empty(len(rows))
    int8_loops.quantize_rows(rows.float().contiguous().numpy(), integers.numpy(), scales.numpy())
    return integers, scales
