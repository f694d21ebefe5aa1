"""float32 products in float32, whatever the process has chosen for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cuda, mkldnn


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast, and no TF32 or bfloat16 inside a product of float32; afterwards as before."""
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
