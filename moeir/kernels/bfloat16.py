"""Whether matrix products in bfloat16 run in hardware here."""

import torch


def multiplies_bfloat16(device: str) -> bool:
    """CUDA compute capability 8, or AVX-512 BF16 or AMX."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_capability(device)[0] >= 8
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
