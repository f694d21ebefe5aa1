"""Checksums of whole files and of the blocks of large ones: any bit that is another is found."""

import hashlib
import random

import pytest

from moeir.artifacts import checksums

SIZES = (0, 1, 63, 64, 65, 128, 1000)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of drawn bytes, of no block, of one, and of many blocks of 64 bytes."""
    monkeypatch.setattr(checksums, "BLOCK", 64)
    monkeypatch.setattr(checksums, "AT_ONCE", 48)
    for size in SIZES:
        (tmp_path / str(size)).write_bytes(random.Random(size).randbytes(size))
    return [tmp_path / str(size) for size in SIZES]


def test_facts_are_those_of_the_whole_and_of_every_block(files):
    for file, said in zip(files, checksums.facts(files), strict=True):
        content = file.read_bytes()
        assert (said["bytes"], said["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        cut = [hashlib.sha256(content[first : first + 64]).hexdigest() for first in range(0, len(content), 64)]
        assert said.get("blocks", []) == (cut if len(cut) > 1 else [])


def test_a_flipped_bit_anywhere_is_found_in_the_first_file_that_has_one(files):
    said = dict(zip(files, checksums.facts(files), strict=True))
    assert checksums.changed(said) is None
    for file in files[1:]:
        content = file.read_bytes()
        for place in range(0, len(content), 7):
            harmed = bytearray(content)
            harmed[place] ^= 1 << place % 8
            file.write_bytes(harmed)
            assert checksums.changed(said) == file
        file.write_bytes(content)
    for file in files[1:3]:
        file.write_bytes(b"x" * file.stat().st_size)
    assert checksums.changed(said) == files[1]


def test_a_manifest_without_blocks_is_verified_by_the_whole(files):
    plain = {file: {"sha256": checksums.checksum(file)} for file in files}
    assert checksums.changed(plain) is None
    files[-1].write_bytes(bytes(1000))
    assert checksums.changed(plain) == files[-1]
