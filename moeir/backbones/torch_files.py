"""Files of torch.save that hold weights only: those of BGE-M3's heads, which come in no other form. No other file of moeir is one."""

import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from moeir.errors import ArtifactError, MoeirError, is_out_of_memory

MAX_BYTES = 2**27


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, their shapes and dtypes not checked; ArtifactError for a file of more than 128 MiB, one that is
    compressed, which could hold far more, or anything but tensors. torch reads it with `weights_only`, which runs no code of a file."""
    too_large = ArtifactError(f"{path}: more than {MAX_BYTES >> 20} MiB, or compressed; expected the weights of one linear map")
    if path.stat().st_size > MAX_BYTES:
        raise too_large
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > MAX_BYTES or any(entry.compress_type for entry in entries):
            raise too_large
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (MoeirError, OSError, MemoryError):
        raise
    except Exception as problem:  # of many kinds, for a damaged file
        if is_out_of_memory(problem):
            raise
        raise ArtifactError(f"{path}: damaged, or no file of weights alone, as torch.save writes ({type(problem).__name__})") from None
    parts = list(tensors.values()) if isinstance(tensors, Mapping) else [None]
    if not all(isinstance(part, Tensor) and part.layout == torch.strided and not part.is_meta for part in parts):
        raise ArtifactError(f"{path}: holds something else than weights by name; expected the weights of one linear map")
    return dict(tensors)


def write_torch_file(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors as torch.save does, in float32."""
    buffer = BytesIO()  # so that an error of the disk is the system's
    torch.save({name: tensor.detach().cpu().float().clone() for name, tensor in tensors.items()}, buffer)
    path.write_bytes(buffer.getvalue())
