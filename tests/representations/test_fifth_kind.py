"""A kind of representation is one class: one defined here is written, indexed, searched, checked and refused by export."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from moeir.artifacts import manifests
from moeir.errors import ArtifactError
from moeir.indexes.scan import Scan
from moeir.representations.base import Representation, representation_class
from moeir.representations.evidence import ExplainedDocuments
from tests.architectures.folders import assert_refused
from tests.conftest import CommandResult

WIDTH = 8


@dataclass(frozen=True)
class Signs(Representation):
    """signs [B, D] of -1 and 1; similarity is the number of equal signs."""

    signs: Tensor
    kind: ClassVar[str] = "signs"
    files: ClassVar[dict[str, str]] = {"signs": "int8"}

    def scores(self, documents: Self) -> Tensor:
        return (self.signs[:, None] == documents.signs[None]).sum(-1).float()

    def score_pairs(self, documents: Self) -> Tensor:
        return (self.signs == documents.signs).sum(-1).float()


def random_signs(count: int, seed: int) -> Signs:
    return Signs(torch.randint(0, 2, (count, WIDTH), generator=torch.Generator().manual_seed(seed), dtype=torch.int8) * 2 - 1)


@pytest.fixture
def signs_encodings(encodings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Encodings of the toy corpus with one expert, of this kind."""
    monkeypatch.setitem(sys.modules, "moeir.representations.signs", sys.modules[__name__])
    folder, toy = tmp_path / "enc", manifests.read_manifest(encodings)["counts"]
    ids = manifests.read_lines(encodings / "ids.txt")
    random_signs(len(ids), 1).save(folder / "binary")
    (folder / "ids.txt").write_text("".join(f"{one}\n" for one in ids), encoding="utf-8")
    checkpoint = toy["checkpoint"] | {"path": str((encodings / toy["checkpoint"]["path"]).resolve())}
    manifest = manifests.build_manifest(folder, "encodings", {"stage": "encode", "settings": {}, "sources": {}}, folder.name)
    manifest["counts"] = toy | {"experts": {"binary": "signs"}, "checkpoint": checkpoint}
    (folder / "manifest.json").write_text(manifests.serialize_manifest(manifest))
    return folder


def test_it_is_opened_by_its_name(signs_encodings: Path) -> None:
    assert representation_class("signs") is Signs
    assert (Signs.open(signs_encodings / "binary").signs == random_signs(12, 1).signs).all()
    for unknown in ("base", "errors", "signs.more", ""):
        assert_refused(ArtifactError, "no representation of kind", representation_class, unknown)


def test_its_default_engine_finds_what_a_full_sort_finds(
    signs_encodings: Path, tmp_path: Path, moeir: Callable[..., CommandResult]
) -> None:
    result = moeir("index", "--encodings", signs_encodings, "--output", tmp_path / "idx")
    assert result.code == 0, result.stderr
    assert manifests.read_manifest(tmp_path / "idx")["counts"]["experts"] == {"binary": "scan"}
    index, queries, documents = Scan.open(tmp_path / "idx" / "binary"), random_signs(3, 2), random_signs(12, 1)
    assert index.kind == "signs" and len(index) == 12
    rows, scores = index.search(queries, 5)
    expected = queries.scores(documents).numpy()
    for query in range(3):
        order = sorted(range(12), key=lambda row: (expected[query, row], row), reverse=True)[:5]
        assert rows[query].tolist() == order and scores[query].tolist() == expected[query, order].tolist()
    pairs = np.array([2, 0, 2]), np.array([5, 11, 0])
    assert index.score_pairs(queries, *pairs).tolist() == expected[pairs].tolist()
    explained = ExplainedDocuments(2, lambda texts: np.empty((len(texts), 2)), str, lambda count: None, ())
    assert queries.explain(explained) == [{}, {}]


def test_export_refuses_it_plainly(signs_encodings: Path, tmp_path: Path, moeir: Callable[..., CommandResult]) -> None:
    result = moeir("export", "--to", "qdrant", "--encodings", signs_encodings, "--output", tmp_path / "out")
    assert result.code == 2 and "binary is signs, which no engine but moeir's serves" in result.stderr
