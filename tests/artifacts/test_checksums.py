"""Checksums of files and of the blocks of large ones find every flipped bit."""

import hashlib
import random

import pytest

from moeir.artifacts import checksums

SIZES = (0, 1, 63, 64, 65, 128, 1000)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of random bytes with no block, one, and many blocks of 64 bytes."""
    monkeypatch.setattr(checksums, "BLOCK", 64)
    monkeypatch.setattr(checksums, "AT_ONCE", 48)
    for size in SIZES:
        (tmp_path / str(size)).write_bytes(random.Random(size).randbytes(size))
    return [tmp_path / str(size) for size in SIZES]


def test_facts_are_those_of_the_whole_and_of_every_block(files):
    for file, entry in zip(files, checksums.compute_checksums(files), strict=True):
        content = file.read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        blocks = [hashlib.sha256(content[first : first + 64]).hexdigest() for first in range(0, len(content), 64)]
        assert entry.get("blocks", []) == (blocks if len(blocks) > 1 else [])


def test_a_flipped_bit_anywhere_is_found_in_the_first_file_that_has_one(files):
    entries = dict(zip(files, checksums.compute_checksums(files), strict=True))
    assert checksums.first_mismatch(entries) is None
    for file in files[1:]:
        content = file.read_bytes()
        for position in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            file.write_bytes(damaged)
            assert checksums.first_mismatch(entries) == file
        file.write_bytes(content)
    for file in files[1:3]:
        file.write_bytes(b"x" * file.stat().st_size)
    assert checksums.first_mismatch(entries) == files[1]


def test_a_manifest_without_blocks_is_verified_by_the_whole(files):
    plain = {file: {"sha256": checksums.compute_sha256(file)} for file in files}
    assert checksums.first_mismatch(plain) is None
    files[-1].write_bytes(bytes(1000))
    assert checksums.first_mismatch(plain) == files[-1]
