"""Caches: folders named by a hash of their inputs, built atomically or resumed, and opened as memory-mapped arrays."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moeir.artifacts import making, manifests


def get_or_build(folder: Path, kind: str, record: Mapping[str, Any], fill: Callable[[Path], dict[str, int]], *, rebuild: bool = False) -> Path:
    """The cache folder for `record` (stage, settings and sources); `fill` writes its files if there is none, or if `anew`."""
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"{kind}-{key}"
    if rebuild or not manifests.is_up_to_date(path, record):
        with making.atomic_output(path, f"{kind} cache", record, force=rebuild, folder=True) as (partial, counts):
            counts.update(fill(partial))
    return path


def open_readonly(path: Path) -> npt.NDArray[Any]:
    """A read-only memory-mapped array."""
    return np.asarray(np.load(path, mmap_mode="r"))
