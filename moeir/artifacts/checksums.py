"""Checksums of files: of the whole and, for a large file, of every block, so that all cores verify in parallel."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

HASH_BLOCK_BYTES = 2**26  # bytes
READ_BYTES = 2**20
MAX_HASH_THREADS = 16


def compute_sha256(path: Path) -> str:
    """sha256 of one file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compute_checksums(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Size and sha256 of each file and, if it has several blocks, the sha256 of each block."""
    with _thread_pool() as pool:
        whole = [pool.submit(compute_sha256, file) for file in files]
        parts = [_hash_blocks(pool, file) for file in files]
        entries = [{"bytes": file.stat().st_size, "sha256": one.result()} for file, one in zip(files, whole, strict=True)]
        return [one | ({"blocks": [part.result() for part in own]} if own else {}) for one, own in zip(entries, parts, strict=True)]


def first_mismatch(files: Mapping[Path, Mapping[str, Any]]) -> Path | None:
    """The first file whose content does not match its checksums; sizes are taken to match."""
    with _thread_pool() as pool:
        futures = {file: _hash_blocks(pool, file) if "blocks" in entry else [pool.submit(compute_sha256, file)] for file, entry in files.items()}
        for file, entry in files.items():
            if [part.result() for part in futures[file]] != entry.get("blocks", [entry["sha256"]]):
                return file
    return None


def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_HASH_THREADS, os.cpu_count() or 1), thread_name_prefix="checksums")


def _hash_blocks(pool: ThreadPoolExecutor, path: Path) -> list[Future[str]]:
    """The checksum of each block; empty for a file of one block."""
    size = path.stat().st_size
    return [pool.submit(_hash_block, path, first) for first in range(0, size, HASH_BLOCK_BYTES)] if size > HASH_BLOCK_BYTES else []


def _hash_block(path: Path, first: int) -> str:
    hasher, remaining = hashlib.sha256(), HASH_BLOCK_BYTES
    with open(path, "rb") as file:
        file.seek(first)
        while remaining and (chunk := file.read(min(READ_BYTES, remaining))):
            hasher.update(chunk)
            remaining -= len(chunk)
    return hasher.hexdigest()
