"""Encodings split into parts, and encodings with duplicate documents, so that scores tie; the files of an index."""

from collections.abc import Sequence
from pathlib import Path

import torch

from moeir.artifacts import manifests
from moeir.representations.base import representation_class
from tests.conftest import run_moeir


def duplicate_documents(encodings: Path, folder: Path) -> Path:
    """Encodings with every document twice, the second time with a 2 appended to its id: equal scores."""
    ids = manifests.read_lines(encodings / "ids.txt")
    rows = [*range(len(ids)), *range(len(ids))]
    return write_encodings(encodings, folder, rows, [*ids, *(f"{name}2" for name in ids)])


def split_encodings(encodings: Path, folder: Path, count: int) -> list[Path]:
    """Split encodings round-robin into `count` encodings."""
    ids = manifests.read_lines(encodings / "ids.txt")
    rows_of_parts = [list(range(part, len(ids), count)) for part in range(count)]
    return [write_encodings(encodings, folder / f"part{part}", rows, [ids[row] for row in rows]) for part, rows in enumerate(rows_of_parts)]


def write_encodings(encodings: Path, folder: Path, rows: Sequence[int], ids: Sequence[str]) -> Path:
    """Write the encodings of some rows with new ids."""
    source_manifest = manifests.read_manifest(encodings)
    folder.mkdir(parents=True)
    for name, kind in source_manifest["counts"]["experts"].items():
        representation_class(kind).open(encodings / name).select(torch.tensor(rows)).save(folder / name)
    (folder / "ids.txt").write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
    facts = dict(source_manifest["counts"]["checkpoint"], path=str((encodings / source_manifest["counts"]["checkpoint"]["path"]).resolve()))
    counts = dict(source_manifest["counts"], texts=len(ids), checkpoint=facts)
    manifest = manifests.build_manifest(folder, "encodings", {"stage": "encode", "settings": {}, "sources": {}}, folder.name)
    (folder / "manifest.json").write_text(manifests.serialize_manifest(manifest | {"counts": counts}), encoding="utf-8")
    return folder


def build_index(encodings: Path) -> Path:
    """Build an index of encodings, next to them."""
    path = encodings.with_name(f"{encodings.name}-index")
    run_moeir("index", "--encodings", encodings, "--output", path)
    return path


def read_files(folder: Path) -> dict[str, bytes]:
    """The bytes of an index without its manifest, which holds times."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != manifests.MANIFEST)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
