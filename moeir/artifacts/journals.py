"""Resumable work: a journal of finished steps, and files that grow on disk and can be truncated to what the journal records."""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from moeir.artifacts.atomic_write import sync_file
from moeir.artifacts.identity import confirm_held
from moeir.errors import ArtifactError

HEADER_BYTES, CHECKSUM = 128, "crc32"


class _SyncedFile:
    """A file that is written at its end; bytes beyond the first `size` are dropped. A `header` of so many bytes is written last."""

    def __init__(self, path: Path, size: int = 0, *, header: int = 0) -> None:
        self._path, self._is_name_synced = path, False
        if size > header and (actual := path.stat().st_size if path.exists() else 0) < size:
            raise ArtifactError(f"{path}: damaged: {actual} bytes, but its journal has {size}; --force starts over")
        self._file: IO[bytes] = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        self._file.truncate(size)
        self._file.seek(0, os.SEEK_END)

    def flush(self) -> int:
        """Sync to disk, with the name of the file; returns the bytes written so far."""
        self._file.flush()
        if self._is_name_synced:
            os.fsync(self._file.fileno())
        else:
            sync_file(self._path)
            self._is_name_synced = True
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class JsonlJournal(_SyncedFile):
    """A journal of JSON lines, each with a checksum and synced to disk before the next; an incomplete last line is dropped."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes() if path.exists() else b""
        complete = content[: content.rfind(b"\n") + 1]
        self.entries: list[dict[str, Any]] = [_parse_entry(line, path, number) for number, line in enumerate(complete.splitlines(), 1)]
        super().__init__(path, len(complete))

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append an entry; no entry is of work on a source that has changed since the stage began."""
        confirm_held()
        self._file.write(json.dumps({**entry, CHECKSUM: _compute_checksum(entry)}).encode() + b"\n")
        self.flush()


def _compute_checksum(entry: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(entry).encode())


def _parse_entry(line: bytes, path: Path, number: int) -> dict[str, Any]:
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        entry = dict(json.loads(line))
        if entry.pop(CHECKSUM) == _compute_checksum(entry):
            return entry
    raise ArtifactError(f"{path}:{number}: damaged: not an entry of a journal; --force starts over")


class AppendableText(_SyncedFile):
    """A text file written line by line; to resume, open it with the number of bytes that are complete."""

    def append(self, lines: Iterable[str]) -> None:
        self._file.write("".join(f"{line}\n" for line in lines).encode())


class AppendableNpy(_SyncedFile):
    """A `.npy` file written row by row; `close` writes its header. To resume, open it with the number of rows that are complete."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, width: int | None = None, rows: int = 0) -> None:
        self.rows, self._dtype, self._width = rows, np.dtype(dtype), width
        super().__init__(path, HEADER_BYTES + rows * self._dtype.itemsize * (1 if width is None else width), header=HEADER_BYTES)

    def append(self, block: npt.NDArray[Any]) -> None:
        """Add rows: [n], or [n, width]."""
        self._file.write(np.ascontiguousarray(block, dtype=self._dtype).tobytes())
        self.rows += len(block)

    def close(self) -> None:
        shape = (self.rows,) if self._width is None else (self.rows, self._width)
        self._file.seek(0)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)  # numpy leaves room for any number of rows
        self._file.close()
