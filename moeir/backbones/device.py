"""Device and dtype of a stage: bfloat16 if the device multiplies it faster than float32, else float32.

Scores stay float32. float16 is never selected: its range is smaller than bfloat16's.
"""

import logging
import os

import torch

from moeir.errors import UsageError
from moeir.kernels.int8_linear import inference_dtype, supports_int8
from moeir.kernels.precision import BFLOAT16_CAPABILITY, has_native_bfloat16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
INFERENCE_DTYPES = DTYPES | {"int8": torch.int8}
log = logging.getLogger(__name__)


def resolve_device(name: str) -> str:
    """The device for a --device value: `auto` is the first CUDA device, or the CPU if there is none; `cuda` is `cuda:0`.

    UsageError for a device that does not exist.
    """
    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name}: expected auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return "cpu"
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices; use --device cpu")
    return f"cuda:{device.index or 0}"


def select_device(name: str) -> str:
    """`resolve_device`, and make it the current CUDA device; every stage calls this first."""
    device = resolve_device(name)
    if device != "cpu":
        torch.cuda.set_device(device)
        if torch.is_deterministic_algorithms_warn_only_enabled():  # set by an earlier training on the CPU in this process
            torch.use_deterministic_algorithms(False)
    return device


def select_dtype(name: str, device: str, *, inference: bool = False) -> torch.dtype:
    """The dtype for a --dtype value; `auto` depends on the device. Logs the choice. `int8` is for `inference` on a CPU.

    UsageError for bfloat16 on a CUDA device without it, and for int8 on CUDA or a processor without 8-bit products.
    """
    known = INFERENCE_DTYPES if inference else DTYPES
    if name not in ("auto", *known):
        raise UsageError(f"--dtype {name}: expected {', '.join(('auto', *known))}")
    on_cuda, native = device.startswith("cuda"), has_native_bfloat16(device)
    if name == "int8" and (on_cuda or not supports_int8()):
        reason = "are computed on a CPU only" if on_cuda else "have no instructions on this processor (VNNI)"
        raise UsageError(f"--dtype int8: exact products of 8-bit integers {reason}; use --dtype auto")
    device_name = _describe_device(device) if on_cuda else "this processor"
    if name == "bfloat16" and on_cuda and not native:
        least = f"compute capability {'.'.join(map(str, BFLOAT16_CAPABILITY))}"
        raise UsageError(f"--dtype bfloat16: {device_name} has no bfloat16 units, expected {least} or more; use --dtype auto or float32")
    if name == "auto":
        name = "bfloat16" if native else "float32"
        log.info("dtype: %s; %s %s", name, device_name, f"multiplies bfloat16 {'faster' if native else 'no faster than float32'}")
    elif on_cuda:
        log.info("dtype: %s; --dtype %s", name, name)
    return known[name]


def _describe_device(device: str) -> str:
    """A CUDA device by number, name and compute capability."""
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"{device} ({torch.cuda.get_device_name(device)}, compute capability {capability})"


def autocast(dtype: torch.dtype, device: str) -> torch.autocast:
    """Autocast for half precision; disabled for float32. What int8 does not reach is computed in `inference_dtype`."""
    dtype = inference_dtype() if dtype == torch.int8 else dtype
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=dtype != torch.float32)


def set_determinism(device: str, deterministic: bool) -> None:
    """Bitwise reproducible results: always on a CPU; on CUDA if `deterministic`, which is slower.

    On CUDA an operation without a deterministic form raises torch's error. Call before CUDA starts: cuBLAS reads its setting once.
    """
    cuda = device.startswith("cuda")
    if cuda and deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic or not cuda, warn_only=not cuda)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
