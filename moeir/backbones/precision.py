"""On which device a stage computes, and in which number format: bfloat16 where the device multiplies it in hardware, else float32.

Scores stay float32. float16 is never chosen: its range does not hold what bfloat16's does.
"""

import logging
import os

import torch

from moeir.errors import UsageError
from moeir.kernels.bfloat16 import NEEDED_CAPABILITY, multiplies_bfloat16

NAMES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
log = logging.getLogger(__name__)


def resolve_device(name: str) -> str:
    """The one device that is meant: `auto` is the first CUDA device, or the CPU where there is none; `cuda` is `cuda:0`.

    UsageError for a device that is not there.
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


def device_for(name: str) -> str:
    """`resolve_device`, and every CUDA call without a device of its own goes there from now on; each stage begins with this."""
    device = resolve_device(name)
    if device != "cpu":
        torch.cuda.set_device(device)
        if torch.is_deterministic_algorithms_warn_only_enabled():  # of a training on the CPU before, in the same process
            torch.use_deterministic_algorithms(False)
    return device


def devices_for(name: str) -> list[str]:
    """All devices that processes of this machine may share out: every CUDA device for `auto` and `cuda`, else the one that is named."""
    device = resolve_device(name)
    every = device != "cpu" and name in ("auto", "cuda")
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] if every else [device]


def dtype_for(name: str, device: str) -> torch.dtype:
    """`auto` asks the device; what is computed in, and why, is logged. UsageError for bfloat16 on a CUDA device that has none."""
    if name not in ("auto", *NAMES):
        raise UsageError(f"--dtype {name}: expected auto, {' or '.join(NAMES)}")
    on_cuda, native = device.startswith("cuda"), multiplies_bfloat16(device)
    where = _describe(device) if on_cuda else "this processor"
    if name == "bfloat16" and on_cuda and not native:
        raise UsageError(f"--dtype bfloat16: {where} has no bfloat16 units, expected {_needed()} or more; use --dtype auto or float32")
    chosen = name if name != "auto" else "bfloat16" if native else "float32"
    if name == "auto" or on_cuda:
        probed = f"{where} multiplies bfloat16 in hardware" if native else f"{where} has no bfloat16 units"
        why = probed if name == "auto" else f"--dtype {name}"
        log.info("dtype: %s; %s%s", chosen, why, _tf32() if on_cuda and chosen == "float32" else "")
    return NAMES[chosen]


def _describe(device: str) -> str:
    """A CUDA device by number, name and compute capability."""
    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return f"{device} ({torch.cuda.get_device_name(device)}, compute capability {capability})"


def _needed() -> str:
    return f"compute capability {'.'.join(map(str, NEEDED_CAPABILITY))}"


def _tf32() -> str:
    """Whether products of float32 are rounded to TF32, which is torch's setting and is left as it is."""
    if torch.backends.cuda.matmul.fp32_precision == "tf32":  # type: ignore[attr-defined]
        return "; products of float32 are computed in TF32, as this process has set torch; scores are not"
    return "; products of float32 are computed in float32: TF32 is off, torch's default"


def autocast(dtype: torch.dtype, device: str) -> torch.autocast:
    """Half precision for the products inside; nothing for float32."""
    return torch.autocast(torch.device(device).type, dtype=dtype, enabled=dtype != torch.float32)


def set_determinism(device: str, asked: bool) -> None:
    """The same bytes from the same work: always on a CPU, on CUDA where it is `asked` for, which is slower.

    On CUDA strictly so: what has no such form ends with torch's own error. To be called before CUDA starts: cuBLAS reads its setting once.
    """
    cuda = device.startswith("cuda")
    if cuda and asked:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(asked or not cuda, warn_only=not cuda)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
