"""Hardware support for bfloat16, and float32 products in full float32 precision."""

import torch

BFLOAT16_CAPABILITY = (8, 0)  # lowest compute capability of CUDA devices with bfloat16 units


def has_native_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 in hardware: on CUDA by compute capability, on a CPU with AVX-512 BF16 or AMX."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
