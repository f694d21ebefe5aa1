"""Any change to an artifact is detected and reported in one line.

Checksums of files and of the blocks of large ones find every flipped bit.
"""

import hashlib
import json
import os
import random
from pathlib import Path

import pytest

from moeir.artifacts import atomic_write, manifests
from moeir.errors import ArtifactError

RECORD = {"stage": "encode", "settings": {"dtype": "float32"}, "sources": {"corpus": ["1"]}}


@pytest.fixture
def artifact(tmp_path):
    with atomic_write.atomic_output(tmp_path / "enc", "encodings", RECORD, force=False, folder=True) as (beside, _):
        (beside / "ids.txt").write_text("a\nb\n")
        (beside / "global").mkdir()
        (beside / "global" / "vectors.npy").write_bytes(bytes(range(256)))
        (beside / "README.md").write_text("made at noon")
    return tmp_path / "enc"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    path.write_bytes(content)


def set_keys(path: Path, **facts: object) -> None:
    path.write_text(manifests.serialize_manifest(json.loads(path.read_text()) | facts))


DAMAGE = {
    "a flipped bit": (lambda folder: flip(folder / "global/vectors.npy"), "vectors.npy: damaged: its checksum is not the one"),
    "a lost end": (lambda folder: os.truncate(folder / "global/vectors.npy", 255), "damaged: expected 256 bytes, found 255"),
    "a longer file": (lambda folder: os.truncate(folder / "global/vectors.npy", 257), "damaged: expected 256 bytes, found 257"),
    "a missing file": (lambda folder: (folder / "ids.txt").unlink(), "ids.txt: damaged artifact: the file is missing; run moeir encode"),
    "a folder for a file": (lambda folder: ((folder / "ids.txt").unlink(), (folder / "ids.txt").mkdir()), "the file is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json: unfinished, or not made by moeir"),
    "half a manifest": (lambda folder: os.truncate(folder / "manifest.json", 99), "damaged: not a manifest"),
    "a manifest of bytes": (lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\0"), "damaged: not a manifest"),
    "a list for a manifest": (lambda folder: (folder / "manifest.json").write_text("[]"), "damaged: not a manifest"),
    "files without sizes": (lambda folder: set_keys(folder / "manifest.json", files={"ids.txt": {}}), "damaged: not a manifest"),
    "no kind": (lambda folder: set_keys(folder / "manifest.json", kind=None), "damaged: not a manifest"),
    "no counts": (lambda folder: set_keys(folder / "manifest.json", counts=None), "damaged: not a manifest"),
    "another kind": (lambda folder: set_keys(folder / "manifest.json", kind="index"), "found an index (made by moeir encode)"),
    "a file outside": (
        lambda folder: set_keys(folder / "manifest.json", files={"../../etc": {"bytes": 0, "sha256": ""}}),
        "its manifest names a file outside the folder: ../../etc",
    ),
    "a link that leads outside": (
        lambda folder: ((folder / "ids.txt").unlink(), (folder / "ids.txt").symlink_to("/dev/null")),
        "its manifest names a file outside the folder: ids.txt",
    ),
}


def test_a_whole_artifact_is_accepted(artifact):
    assert manifests.verify_artifact(artifact, "encodings")["files"].keys() == {"ids.txt", "global/vectors.npy", "README.md"}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_in_one_line(artifact, name):
    damage, words = DAMAGE[name]
    damage(artifact)
    with pytest.raises(ArtifactError) as caught:
        manifests.verify_artifact(artifact, "encodings")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert str(artifact) in str(caught.value)


def test_a_file_is_no_artifact_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="expected a folder with checkpoint, found a file"):
        manifests.verify_artifact(tmp_path / "file", "checkpoint")


def test_the_digest_follows_the_products_not_the_names_nor_the_times(artifact):
    before = manifests.compute_digest(artifact)
    artifact = artifact.rename(artifact.with_name("moved"))
    set_keys(artifact / "manifest.json", seconds=99)
    assert manifests.compute_digest(artifact) == before
    files = manifests.read_manifest(artifact)["files"]
    assert manifests.digest_files(files | {"README.md": {"sha256": "other"}}) == before
    assert manifests.digest_files(files | {"ids.txt": {"sha256": "other"}}) != before


def test_the_digest_of_a_plain_folder_is_that_of_its_files(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / ".hidden").write_text("1")
    before = manifests.compute_digest(tmp_path)
    (tmp_path / ".hidden").write_text("2")
    assert manifests.compute_digest(tmp_path) == before
    (tmp_path / "a").write_text("2")
    assert manifests.compute_digest(tmp_path) != before


def test_a_product_of_another_format_or_that_was_touched_is_not_the_same(artifact):
    assert manifests.is_up_to_date(artifact, RECORD)
    set_keys(artifact / "manifest.json", format=0)
    assert not manifests.is_up_to_date(artifact, RECORD)
    set_keys(artifact / "manifest.json", format=manifests.FORMAT)
    os.truncate(artifact / "ids.txt", 1)
    assert not manifests.is_up_to_date(artifact, RECORD)


def test_changes_name_settings_and_sources():
    other = {"stage": "index", "settings": {"dtype": "bfloat16", "more": 1}, "sources": {}}
    assert manifests.diff_records(RECORD, other) == {"stage", "dtype", "more", "corpus"}
    assert manifests.diff_records(RECORD, RECORD) == set()


def test_lines_of_a_product_are_read_as_they_were_written(artifact):
    assert manifests.read_lines(artifact / "ids.txt") == ["a", "b"]
    with pytest.raises(ArtifactError, match="the file is missing from its artifact"):
        manifests.read_lines(artifact / "absent.txt")
    (artifact / "ids.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(ArtifactError, match=r"ids\.txt: damaged: lines that are not UTF-8; run the stage that made it again"):
        manifests.read_lines(artifact / "ids.txt")


SIZES = (0, 1, 63, 64, 65, 128, 1000)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of random bytes with no block, one, and many blocks of 64 bytes."""
    monkeypatch.setattr(manifests, "HASH_BLOCK_BYTES", 64)
    for size in SIZES:
        (tmp_path / str(size)).write_bytes(random.Random(size).randbytes(size))
    return [tmp_path / str(size) for size in SIZES]


def test_the_checksum_of_a_large_file_is_that_of_its_blocks(files):
    for file, entry in zip(files, manifests.compute_checksums(files), strict=True):
        content = file.read_bytes()
        blocks = [hashlib.sha256(content[first : first + 64]).hexdigest() for first in range(0, len(content), 64)]
        several = f"{hashlib.sha256(''.join(blocks).encode()).hexdigest()}-{len(blocks)}"
        digest = several if len(blocks) > 1 else hashlib.sha256(content).hexdigest()
        assert entry == {"bytes": len(content), "sha256": digest} and manifests.compute_sha256(file) == digest


def test_a_flipped_bit_anywhere_is_found_in_the_first_file_that_has_one(files):
    entries = dict(zip(files, manifests.compute_checksums(files), strict=True))
    assert manifests.first_mismatch(entries) is None
    for file in files[1:]:
        content = file.read_bytes()
        for position in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            file.write_bytes(damaged)
            assert manifests.first_mismatch(entries) == file
        file.write_bytes(content)
    for file in files[1:3]:
        file.write_bytes(b"x" * file.stat().st_size)
    assert manifests.first_mismatch(entries) == files[1]


def test_one_file_of_an_artifact_is_verified_and_other_files_are_not(artifact, tmp_path):
    manifests.verify_file(artifact / "README.md")
    (artifact / "README.md").write_text("made at midnight")
    with pytest.raises(ArtifactError, match=r"README\.md: damaged: its checksum is not the one in the manifest; run moeir encode again"):
        manifests.verify_file(artifact / "README.md")
    (artifact / "notes.txt").write_text("of one's own")
    manifests.verify_file(artifact / "notes.txt")
    (tmp_path / "alone.json").write_text("{}")
    manifests.verify_file(tmp_path / "alone.json")
    (tmp_path / "manifest.json").write_text("no JSON")
    manifests.verify_file(tmp_path / "alone.json")
