"""Checksums of files: of the whole and, for a large file, of every block, so that all cores verify in parallel."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

BLOCK = 2**26  # bytes
AT_ONCE = 2**20
MOST_THREADS = 16


def checksum(path: Path) -> str:
    """sha256 of one file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def facts(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Size and sha256 of each file and, if it has several blocks, the sha256 of each block."""
    with _threads() as pool:
        whole = [pool.submit(checksum, file) for file in files]
        parts = [_blocks(pool, file) for file in files]
        entries = [{"bytes": file.stat().st_size, "sha256": one.result()} for file, one in zip(files, whole, strict=True)]
        return [one | ({"blocks": [part.result() for part in own]} if own else {}) for one, own in zip(entries, parts, strict=True)]


def changed(files: Mapping[Path, Mapping[str, Any]]) -> Path | None:
    """The first file whose content does not match its checksums; sizes are taken to match."""
    with _threads() as pool:
        futures = {file: _blocks(pool, file) if "blocks" in entry else [pool.submit(checksum, file)] for file, entry in files.items()}
        for file, entry in files.items():
            if [part.result() for part in futures[file]] != entry.get("blocks", [entry["sha256"]]):
                return file
    return None


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="checksums")


def _blocks(pool: ThreadPoolExecutor, path: Path) -> list[Future[str]]:
    """The checksum of each block; empty for a file of one block."""
    size = path.stat().st_size
    return [pool.submit(_block, path, first) for first in range(0, size, BLOCK)] if size > BLOCK else []


def _block(path: Path, first: int) -> str:
    hasher, remaining = hashlib.sha256(), BLOCK
    with open(path, "rb") as file:
        file.seek(first)
        while remaining and (chunk := file.read(min(AT_ONCE, remaining))):
            hasher.update(chunk)
            remaining -= len(chunk)
    return hasher.hexdigest()
