"""Which number format to compute in: bfloat16 where the processor multiplies it natively, else float32. Scores stay float32."""

import logging
import os

import torch

from moeir.errors import UsageError
from moeir.kernels.bfloat16 import multiplies_bfloat16

NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
log = logging.getLogger(__name__)


def device_for(name: str) -> str:
    """`auto` is CUDA if there is one; UsageError for a device that is not there."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise UsageError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return name


def dtype_for(name: str, device: str) -> torch.dtype:
    """`auto` probes the processor; what was chosen is logged."""
    if name not in ("auto", *NAMES):
        raise UsageError(f"--dtype {name}: expected auto, {' or '.join(NAMES)}")
    if name != "auto":
        return NAMES[name]
    chosen = "bfloat16" if multiplies_bfloat16(device) else "float32"
    log.info("dtype: %s (%s)", chosen, "the processor multiplies it natively" if chosen == "bfloat16" else "no native bfloat16 here")
    return NAMES[chosen]


def autocast(dtype: torch.dtype, device: str) -> torch.autocast:
    """Half precision for the products inside; nothing for float32."""
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=dtype != torch.float32)


def use_deterministic_algorithms(device: str = "cpu") -> None:
    """The same bytes from the same work; on CUDA strictly so, at some speed: what has no such form ends with torch's own error.

    Of CUDA it is to be called before anything is multiplied, as cuBLAS reads its setting once.
    """
    cuda = device.startswith("cuda")
    if cuda:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not cuda)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
