"""Encodings cut into parts, and parts of which some documents stand twice, so that scores tie."""

from collections.abc import Sequence
from pathlib import Path

import torch

from moeir.architectures.base import KINDS
from moeir.artifacts import manifests
from tests.conftest import run_here


def doubled(encodings: Path, folder: Path) -> Path:
    """Every document twice, the second time under its name with a 2: the same numbers, so the same scores."""
    ids = manifests.read_lines(encodings / "ids.txt")
    rows = [*range(len(ids)), *range(len(ids))]
    return written(encodings, folder, rows, [*ids, *(f"{name}2" for name in ids)])


def cut(encodings: Path, folder: Path, count: int) -> list[Path]:
    """So many parts, dealt out like cards, as encodings of their own."""
    ids = manifests.read_lines(encodings / "ids.txt")
    dealt = [list(range(part, len(ids), count)) for part in range(count)]
    return [written(encodings, folder / f"part{part}", rows, [ids[row] for row in rows]) for part, rows in enumerate(dealt)]


def written(encodings: Path, folder: Path, rows: Sequence[int], ids: Sequence[str]) -> Path:
    """Encodings of chosen rows under chosen ids."""
    said = manifests.read_manifest(encodings)
    folder.mkdir(parents=True)
    for name, kind in said["counts"]["experts"].items():
        KINDS[kind].open(encodings / name).select(torch.tensor(rows)).save(folder / name)
    (folder / "ids.txt").write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
    facts = dict(said["counts"]["checkpoint"], path=str((encodings / said["counts"]["checkpoint"]["path"]).resolve()))
    counts = dict(said["counts"], texts=len(ids), checkpoint=facts)
    manifest = manifests.compose(folder, "encodings", {"stage": "encode", "settings": {}, "sources": {}}, folder.name)
    (folder / "manifest.json").write_text(manifests.text_of(manifest | {"counts": counts}), encoding="utf-8")
    return folder


def indexed(encodings: Path) -> Path:
    """An index of encodings, beside them."""
    place = encodings.with_name(f"{encodings.name}-index")
    said = run_here("index", "--encodings", encodings, "--output", place)
    assert said.code == 0, said.stderr
    return place
