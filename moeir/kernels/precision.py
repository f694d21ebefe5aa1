"""Precision of products: which devices multiply bfloat16 faster, and float32 products whatever torch's global settings say."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda, mkldnn

BFLOAT16_CAPABILITY = (8, 0)  # lowest compute capability of CUDA devices with bfloat16 units
CPU_INFO = Path("/proc/cpuinfo")  # of Linux, which names the processor's maker
FULL_PRECISION: tuple[tuple[Any, str, Any], ...] = (
    (cuda.matmul, "fp32_precision", "ieee"),
    (mkldnn.matmul, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
    (cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
)
_settings_lock, _undo, _users = Lock(), list[Callable[[], None]](), 0


def has_native_bfloat16(device: str) -> bool:
    """Whether a device multiplies bfloat16 faster than float32: on CUDA by compute capability; a CPU with AMX, or with AVX-512 BF16 unless
    Intel made it, whose products by AVX-512 alone are slower than in float32."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
    return bool(torch.cpu._is_amx_tile_supported() or (torch.cpu._is_avx512_bf16_supported() and not _is_made_by_intel()))


@cache
def _is_made_by_intel() -> bool:
    return CPU_INFO.is_file() and "GenuineIntel" in CPU_INFO.read_text(encoding="utf-8")


def product_dtype(states: Tensor) -> torch.dtype:
    """The dtype of matrix products of these states: half precision under autocast."""
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


def normalize(vectors: Tensor, eps: float = 1e-12) -> Tensor:
    """Vectors [..., D] of length 1, as torch's; one whose length is no float32 number becomes NaN, which is refused later, not zeros."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    return vectors / lengths.where(lengths.isfinite(), torch.nan).clamp_min(eps)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disable autocast, TF32 and bfloat16 inside float32 products, and bfloat16 sums; the last thread to leave restores the settings."""
    global _users
    with _settings_lock:
        _users += 1
        if _users == 1:
            _undo.extend(partial(setattr, part, name, getattr(part, name)) for part, name, _ in FULL_PRECISION)
        with suppress(RuntimeError):  # newer settings contradict the older one already; set alone, they would, and torch.compile reads that
            older = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")  # changes newer ones, which are therefore set after it
            _undo.extend([partial(torch.set_float32_matmul_precision, older)] if _users == 1 else [])
        for part, name, value in FULL_PRECISION:
            setattr(part, name, value)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        with _settings_lock:
            _users -= 1
            while _undo and not _users:
                _undo.pop()()
