"""float32 products in full float32 precision, regardless of torch's global settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cuda, mkldnn


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disable autocast, and TF32 and bfloat16 inside float32 products; restore the settings afterwards."""
    settings: tuple[Any, ...] = (cuda.matmul, mkldnn.matmul)  # type: ignore[attr-defined]
    changed = [(setting, setting.fp32_precision) for setting in settings if setting.fp32_precision != "ieee"]
    for setting, _ in changed:
        setting.fp32_precision = "ieee"
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for setting, before in changed:
            setting.fp32_precision = before
