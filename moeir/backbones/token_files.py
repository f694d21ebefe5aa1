"""Tokens of texts on disk: arrays that grow chunk by chunk."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moeir.artifacts import memmap
from moeir.artifacts.journals import AppendableNpy

MAX_CHUNK_TEXTS, MAX_CHUNK_CHARACTERS = 1024, 1 << 21


def chunk_texts(texts: Iterable[Any]) -> Iterator[list[Any]]:
    """Split texts, objects with a `content`, into chunks of bounded size."""
    chunk, characters = list[Any](), 0
    for text in texts:
        chunk.append(text)
        characters += len(text.content)
        if len(chunk) >= MAX_CHUNK_TEXTS or characters >= MAX_CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def open_arrays(folder: Path, names: Iterable[str]) -> Iterator[npt.NDArray[Any]]:
    """The arrays of a cache, memory-mapped."""
    return (np.asarray(memmap.open_memmap(folder / f"{name}.npy")) for name in names)


class TokenFileWriter:
    """Writes the arrays of a token cache, NAME.npy each."""

    def __init__(self, folder: Path, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        self._arrays = {name: AppendableNpy(folder / f"{name}.npy", dtype) for name, dtype in dtypes.items()}

    def rows(self, name: str) -> int:
        """Number of rows of an array."""
        return self._arrays[name].rows

    def append(self, **blocks: npt.ArrayLike) -> None:
        """Add rows to some arrays."""
        for name, block in blocks.items():
            self._arrays[name].append(np.asarray(block))

    def close(self) -> None:
        """Write the headers of the arrays."""
        for array in self._arrays.values():
            array.close()
