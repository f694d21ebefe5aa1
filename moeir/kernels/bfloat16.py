"""Whether matrix products in bfloat16 run in hardware here."""

import torch

NEEDED_CAPABILITY = (8, 0)  # the compute capability from which a CUDA device multiplies bfloat16 in hardware


def multiplies_bfloat16(device: str) -> bool:
    """On CUDA by compute capability; on a CPU AVX-512 BF16 or AMX."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_capability(device) >= NEEDED_CAPABILITY
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
